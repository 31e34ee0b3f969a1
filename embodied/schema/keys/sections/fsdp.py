"""Section of the sharing of the policy among processes: ``actor.fsdp_config``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from embodied.schema.keys.base import Precision, Section


class MixedPrecisionConfig(Section):
    param_dtype: Literal["fp32", "bf16"] | None = Field(
        None,
        description="fsdp2: format of the weights while they are gathered; null = their own. bf16 halves what is sent "
        "and held, and needs a policy that computes in bf16 (actor.model.precision).",
    )
    reduce_dtype: Literal["fp32", "bf16"] | None = Field(
        None, description="fsdp2: format in which gradients are added up between processes; null = their own."
    )
    buffer_dtype: Literal["fp32", "bf16"] | None = Field(
        None,
        description="fsdp2: format of the policy's buffers, such as the frequencies of positions or the bounds of "
        "actions; null = their own. bf16 rounds them to three digits, in this run alone: a checkpoint is evaluated "
        "elsewhere with the exact ones.",
    )


class WrapPolicyConfig(Section):
    transformer_layer_cls_to_wrap: list[str] | None = Field(
        None,
        min_length=1,
        description="fsdp2: class names of the modules whose weights are gathered together; null = what the policy "
        "says, else the elements of its lists of modules.",
    )
    min_num_params: int = Field(
        0, ge=0, description="fsdp2: a module with fewer weights than this is gathered with the rest of the policy."
    )


class AutocastConfig(Section):
    enabled: bool = Field(
        False, description="Compute in a lower number format than the weights have: what actor.model.precision does."
    )
    precision: Precision | None = Field(
        None, description="The format; has to be actor.model.precision where enabled is true, and says nothing else."
    )


class FsdpConfig(Section):
    strategy: Literal["auto", "replicate", "fsdp2", "fsdp"] = Field(
        "auto",
        description="How several processes share the policy. replicate = each holds all of it, gradients are added up; "
        "fsdp2 (or fsdp) = each holds a part, weights are gathered layer by layer; auto = fsdp2 if all of the policy "
        "is trained, else (LoRA) replicate. One process always holds all of it, and a run says which keys have no "
        "effect then.",
    )
    sharding_strategy: Literal["full_shard", "shard_grad_op", "hybrid_shard", "no_shard"] | None = Field(
        None,
        description="The same in FSDP1's words, null = not said: full_shard and hybrid_shard (with fsdp_size) = fsdp2, "
        "shard_grad_op = fsdp2 with reshard_after_forward=false, no_shard = replicate.",
    )
    reshard_after_forward: bool = Field(
        True, description="fsdp2: free a layer's gathered weights after its forward pass and gather them again for the "
        "backward pass; false = faster, and more memory.",
    )  # fmt: skip
    cpu_offload: bool = Field(
        False, description="fsdp2: keep the parts, and the optimizer's state, in the memory of the host; slower."
    )
    offload_pin_memory: bool = Field(
        True, description="fsdp2 with cpu_offload: the memory of the host is pinned, from which copies are faster."
    )
    gradient_checkpointing: bool | None = Field(
        None,
        description="Compute layers again in the backward pass, so that their activations need no memory; null = what "
        "actor.model.gradient_checkpointing says, for which it is another name.",
    )
    activation_offload: bool = Field(
        False,
        description="Keep what the backward pass needs in the memory of the host until then; slower, less memory of a "
        "GPU, the same numbers.",
    )
    enable_gradient_accumulation: bool = Field(
        False,
        description="fsdp2: send gradients after the last micro-batch of an optimizer batch, not after each; faster, "
        "and each process holds the gradients of all weights.",
    )
    fsdp_size: int = Field(
        -1,
        ge=-1,
        description="fsdp2: processes that share one copy of the policy (those of one machine, say); -1 = all of them.",
    )
    forward_prefetch: bool = Field(
        False,
        description="fsdp2: ask for the next layer's weights as soon as a layer has its own, so that a host that lags "
        "behind the GPU holds up none of them; the weights of one layer more are held at a time.",
    )
    backward_prefetch: Literal["pre", "backward_pre", "post", "backward_post", False] | None = Field(
        None,
        description="fsdp2: pre (backward_pre, null) = the backward pass gathers the next layer's weights while one "
        "computes; post (backward_post, false) = when their turn has come: slower, and less memory.",
    )
    shard_frozen: bool = Field(
        False, description="fsdp2: share out weights that are not trained as well; false = each process holds them all."
    )
    mixed_precision: MixedPrecisionConfig = MixedPrecisionConfig()
    amp_autocast: AutocastConfig = AutocastConfig()
    wrap_policy: WrapPolicyConfig = WrapPolicyConfig()


OF_SHARDS = (
    "reshard_after_forward", "cpu_offload", "offload_pin_memory", "enable_gradient_accumulation", "fsdp_size",
    "forward_prefetch", "backward_prefetch", "shard_frozen", "mixed_precision", "wrap_policy",
)  # fmt: skip
"""Keys of ``actor.fsdp_config`` that say how shards are held."""
