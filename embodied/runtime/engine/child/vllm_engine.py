"""vLLM behind :class:`serve.Engine`: its ``LLMEngine``, stepped by us, in this process.

Requests are tokens, and answers are tokens with the log-probs of the distribution that was sampled, after penalty,
temperature, top-k and top-p (``logprobs_mode``). Weights are random until the first ``load``.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from serve import Answer

# Before vllm is imported: the engine's loop runs in this process; nothing is asked of the internet or sent there.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB of keys and values, on a CPU alone

import vllm
from vllm import EngineArgs, LLMEngine, SamplingParams
from vllm.sampling_params import RequestOutputKind


def make(setup: dict[str, Any]) -> VLLM:
    """Makes the vLLM engine.

    Args:
        setup: ``folder`` (config.json and tokenizer), ``dtype``, ``max_model_len``, ``max_num_seqs``,
            ``enforce_eager``, ``gpu_memory_utilization``, ``tensor_parallel_size``, ``sleeps``,
            ``options`` (further arguments of ``EngineArgs``).
    """
    return VLLM(setup)


class VLLM:
    """Drives vLLM's ``LLMEngine`` as a :class:`serve.Engine`."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.version = f"vllm {vllm.__version__}"
        options = arguments_of(setup["options"])
        arguments = EngineArgs(
            model=setup["folder"], dtype=setup["dtype"], max_model_len=setup["max_model_len"],
            max_num_seqs=setup["max_num_seqs"], enforce_eager=setup["enforce_eager"],
            gpu_memory_utilization=setup["gpu_memory_utilization"], tensor_parallel_size=setup["tensor_parallel_size"],
            enable_sleep_mode=setup["sleeps"], load_format="dummy", generation_config="vllm",
            logprobs_mode="processed_logprobs", worker_extension_cls="vllm_worker.LoadsFile", disable_log_stats=True,
            **options,
        )  # fmt: skip
        self._engine = LLMEngine.from_engine_args(arguments)
        self._sampling: dict[str, Any] = {}

    def begin(self, sampling: dict[str, Any]) -> None:
        """Sets how the requests that follow are sampled."""
        self._sampling = sampling

    def add(self, number: int, prompt: list[int], seed: int) -> None:
        """Adds a request: prompt tokens, and the seed of its sampling."""
        params = parameters(self._sampling, seed)
        self._engine.add_request(str(number), {"prompt_token_ids": prompt}, params)

    def abort(self, number: int) -> None:
        """Forgets a request, which may be finished already."""
        self._engine.abort_request([str(number)])

    @property
    def busy(self) -> bool:
        return self._engine.has_unfinished_requests()

    def step(self) -> list[Answer]:
        whole = [output for output in self._engine.step() if output.finished]
        return [answer(int(output.request_id), output.outputs[0]) for output in whole]

    def load(self, path: str) -> list[dict[str, Any]]:
        """Replaces all weights by those of a file; returns name, dtype, shape and checksum of each."""
        found = self._engine.collective_rpc("load_file", args=(path,))
        if any(one != found[0] for one in found):
            raise RuntimeError(f"the workers of the engine read different weights: {', '.join(_differing(found))}")
        self._engine.reset_prefix_cache()  # keys and values of the weights before
        return found[0]

    def sleep(self) -> None:
        """Frees the device's memory, if the engine was made to; the weights are kept."""
        self._engine.sleep(level=1)

    def wake(self) -> None:
        """Takes the device memory again that :meth:`sleep` has freed."""
        self._engine.wake_up()


def _differing(found: list[list[dict[str, Any]]]) -> list[str]:
    """Returns the names of tensors that not all workers have read, or have read alike."""
    every = {one["name"] for read in found for one in read}
    return sorted(name for name in every if len({str([t for t in read if t["name"] == name]) for read in found}) > 1)


def parameters(sampling: dict[str, Any], seed: int) -> SamplingParams:
    """Makes vLLM's sampling parameters of one text. Greedy decoding is temperature 0, which reads no seed."""
    drawn = sampling["do_sample"]
    return SamplingParams(
        temperature=sampling["temperature"] if drawn else 0.0,
        top_k=sampling["top_k"] if drawn else 0,
        top_p=sampling["top_p"] if drawn else 1.0,
        repetition_penalty=sampling["repetition_penalty"],
        max_tokens=sampling["max_tokens"],
        min_tokens=0 if sampling["ignore_eos"] else sampling["min_tokens"],
        stop=sampling["stop"],
        stop_token_ids=[] if sampling["ignore_eos"] else sampling["ends"],
        ignore_eos=sampling["ignore_eos"],
        seed=seed if drawn else None,
        logprobs=0,  # log-prob of the token that was drawn, and of no others
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def answer(number: int, text: Any) -> Answer:
    """Converts a finished text of vLLM to its tokens and their log-probs."""
    tokens = list(text.token_ids)
    found = [chosen[token].logprob for token, chosen in zip(tokens, text.logprobs, strict=True)]
    return Answer(number, tokens, found)


def arguments_of(options: dict[str, Any]) -> dict[str, Any]:
    """Converts options to arguments of vLLM's ``EngineArgs``. Versions without the argument take the attention's
    kernels from the environment.

    Raises:
        ValueError: this version knows one of them no longer, or not yet.
    """
    known, found = {field.name for field in dataclasses.fields(EngineArgs)}, dict(options)
    if "attention_backend" in found and "attention_backend" not in known:
        os.environ["VLLM_ATTENTION_BACKEND"] = found.pop("attention_backend")
    if unknown := sorted(set(found) - known):
        raise ValueError(f"vllm {vllm.__version__} has no {', '.join(unknown)}: leave it out of rollout.vllm")
    return found
