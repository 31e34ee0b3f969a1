"""Section of arguments that vLLM chooses itself unless they are set: ``rollout.vllm``."""

from __future__ import annotations

from pydantic import Field

from embodied.schema.keys.base import Section


class VllmConfig(Section):
    block_size: int | None = Field(
        None, ge=1, description="backend vllm: tokens of a block of its cache; null = vLLM's own choice."
    )
    max_num_batched_tokens: int | None = Field(
        None, ge=1, description="backend vllm: most tokens that it computes in one step; null = vLLM's own choice."
    )
    enable_chunked_prefill: bool | None = Field(
        None, description="backend vllm: compute long prompts in pieces, beside other texts; null = vLLM's own choice."
    )
    swap_space: float | None = Field(
        None,
        ge=0,
        description="backend vllm: host memory of each GPU for parts of its cache, GiB; null = vLLM's own choice. "
        "Versions without it refuse it.",
    )
    use_flashinfer_sampler: bool | None = Field(
        None, description="backend vllm: draw tokens with FlashInfer's kernels (VLLM_USE_FLASHINFER_SAMPLER); null = "
        "vLLM's own choice.",
    )  # fmt: skip
