"""vLLM behind the engine's process, with a stand-in for the package: its arguments, of which versions know different
ones, and what its workers tell of the weights that they read."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import embodied.runtime.engine.child as child
from embodied.runtime.engine.weights import WeightsFile


@dataclasses.dataclass
class Old:
    block_size: int | None = None


@dataclasses.dataclass
class New:
    attention_backend: str | None = None


@contextmanager
def stand_in(monkeypatch, arguments) -> Iterator[Any]:
    """The module ``vllm_engine``, with a stand-in for vLLM."""
    vllm = types.ModuleType("vllm")
    vllm.__version__, vllm.EngineArgs, vllm.LLMEngine, vllm.SamplingParams = "0.0", arguments, None, None
    sampling = types.ModuleType("vllm.sampling_params")
    sampling.RequestOutputKind = None
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", sampling)
    monkeypatch.syspath_prepend(str(Path(child.__file__).parent))
    for name in ("vllm_engine", "VLLM_ATTENTION_BACKEND"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delenv(name, raising=False)
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_NO_USAGE_STATS", "HF_HUB_OFFLINE", "VLLM_CPU_KVCACHE_SPACE"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))
    module = importlib.import_module("vllm_engine")
    try:
        yield module
    finally:
        os.environ.pop("VLLM_ATTENTION_BACKEND", None)
        for name in ("vllm_engine", "vllm_worker"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("arguments", [Old, New])
def test_an_argument_that_a_version_lacks_is_refused(arguments, monkeypatch):
    with stand_in(monkeypatch, arguments) as module:
        if arguments is Old:
            assert module.arguments_of({"block_size": 16, "attention_backend": "TRITON_ATTN"}) == {"block_size": 16}
            assert os.environ["VLLM_ATTENTION_BACKEND"] == "TRITON_ATTN"
        else:
            assert module.arguments_of({"attention_backend": "X"}) == {"attention_backend": "X"}
            assert "VLLM_ATTENTION_BACKEND" not in os.environ
            with pytest.raises(ValueError, match=r"vllm 0\.0 has no block_size: leave it out of rollout\.vllm"):
                module.arguments_of({"block_size": 16})


def test_each_worker_tells_what_it_has_read_and_those_that_differ_are_named(monkeypatch):
    sent, file = {"a": torch.ones(3), "b": torch.ones(2, 2, dtype=torch.bfloat16), "c": torch.zeros(())}, WeightsFile()
    written, loaded = file.write(sent.items()), {}
    with stand_in(monkeypatch, Old) as module:
        worker = importlib.import_module("vllm_worker").LoadsFile()
        worker.model_runner = types.SimpleNamespace(
            reload_weights=lambda weights_iterator: loaded.update(weights_iterator)
        )
        read = worker.load_file(file.path)
        assert read == written
        assert all(torch.equal(loaded[name], tensor) for name, tensor in sent.items())
        engine, forgot = module.VLLM.__new__(module.VLLM), []
        engine._engine = types.SimpleNamespace(reset_prefix_cache=lambda: forgot.append(True))
        engine._engine.collective_rpc = lambda name, args: [getattr(worker, name)(*args) for _ in range(2)]
        assert (engine.load(file.path), forgot) == (written, [True])
        other = [read[0], {**read[1], "checksum": 1}]
        engine._engine.collective_rpc = lambda name, args: [read, other]
        with pytest.raises(RuntimeError, match=r"read different weights: b, c$"):
            engine.load(file.path)
    file.close()
