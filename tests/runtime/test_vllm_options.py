"""Options of vLLM's arguments, with a stand-in for the package, whose versions know different ones."""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
import types
from pathlib import Path

import pytest

import embodied.runtime.engine.child as child


@dataclasses.dataclass
class Old:
    block_size: int | None = None


@dataclasses.dataclass
class New:
    attention_backend: str | None = None


@pytest.mark.parametrize("arguments", [Old, New])
def test_an_argument_that_a_version_lacks_is_refused(arguments, monkeypatch):
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
        if arguments is Old:
            assert module.arguments_of({"block_size": 16, "attention_backend": "TRITON_ATTN"}) == {"block_size": 16}
            assert os.environ["VLLM_ATTENTION_BACKEND"] == "TRITON_ATTN"
        else:
            assert module.arguments_of({"attention_backend": "X"}) == {"attention_backend": "X"}
            assert "VLLM_ATTENTION_BACKEND" not in os.environ
            with pytest.raises(ValueError, match=r"vllm 0\.0 has no block_size: leave it out of rollout\.vllm"):
                module.arguments_of({"block_size": 16})
    finally:
        os.environ.pop("VLLM_ATTENTION_BACKEND", None)
        sys.modules.pop("vllm_engine", None)
