"""The policy and its optimizer: ``actor.*``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from embodied.schema.base import OpenSection, Section

Precision = Literal["fp32", "bf16", "fp16"]


class ModelConfig(OpenSection):
    freeze_pattern: str | list[str] | None = Field(
        None,
        description="Regular expressions; parameters in whose name one of them is found are not trained, whatever else "
        "says so. A model that takes the key itself is given it as well.",
    )

    external_lib: str | list[str] | None = Field(
        None,
        description="Modules that are imported before `_target_` is, such as a package of yours that registers "
        "architectures with transformers.",
    )

    @property
    def freeze_patterns(self) -> list[str]:
        """``freeze_pattern`` as a list."""
        given = self.freeze_pattern
        return [given] if isinstance(given, str) else given or []

    @property
    def precision(self) -> Precision:
        """Number format of the model's arithmetic; fp32 for a model without this key."""
        return (self.model_extra or {}).get("precision", "fp32")


class OptimConfig(Section):
    optimizer: Literal["adam", "adamw"] = Field(
        "adamw", description="adamw = weight decay apart from the gradient; adam = as a part of it."
    )
    lr: float = Field(1e-4, gt=0, description="Learning rate of the policy.")
    value_lr: float = Field(3e-3, gt=0, description="Learning rate of the value head.")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="Adam's first moment decay.")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="Adam's second moment decay.")
    adam_eps: float = Field(1e-5, gt=0, description="Adam's epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay.")
    clip_grad: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Keep the moving average of the trained weights, which an optimizer step moves by 1 − this towards "
        "the present ones. Evaluation uses the average; rollouts for training use the present weights. null = off.",
    )


class LrScheduleConfig(Section):
    lr_warmup_iters: float = Field(
        0.0, ge=0, description="Iterations in which the learning rates rise; above 0 it wins over lr_warmup_fraction."
    )
    lr_warmup_fraction: float = Field(
        0.0, ge=0, lt=1, description="The same as a share of the run (runner.max_epochs)."
    )
    lr_warmup_init: float = Field(0.0, ge=0, description="Learning rate of the policy from which it rises.")
    lr_decay_style: Literal["constant", "cosine", "linear"] = Field(
        "constant", description="How the learning rates fall after that. Both groups follow the same shape."
    )
    lr_decay_iters: float | None = Field(
        None, gt=0, description="Iteration at which the lowest rate is reached; null = runner.max_epochs."
    )
    lr_decay_fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Share of the iterations up to there in which the rates fall, at the end of them; null = from the "
        "end of the warm-up on.",
    )
    min_lr: float | None = Field(
        None, ge=0, description="Lowest learning rate of the policy; null = min_lr_ratio says it."
    )
    min_lr_ratio: float = Field(
        0.0, ge=0, le=1, description="Lowest learning rate as a share of the base one, the same for the value head."
    )
    num_cycles: float = Field(
        0.5, gt=0, description="Cosine: periods up to the end; 0.5 = down once, 1.5 = down, up and down."
    )


class GradScalerConfig(Section):
    enabled: bool | None = Field(
        None, description="Scale the loss before the backward pass; null = with actor.model.precision fp16."
    )
    init_scale: float = Field(65536.0, ge=1, le=2**24, description="Factor at the start; a power of two is exact.")
    growth_interval: int = Field(
        2000, ge=1, description="Updates in a row without overflow after which the factor doubles."
    )


class MixedPrecisionConfig(Section):
    param_dtype: Literal["fp32", "bf16"] | None = Field(
        None,
        description="fsdp2: format of the weights while they are gathered; null = their own. bf16 halves what is sent "
        "and held, and needs a policy that computes in bf16 (actor.model.precision).",
    )
    reduce_dtype: Literal["fp32", "bf16"] | None = Field(
        None, description="fsdp2: format in which gradients are added up between processes; null = their own."
    )


class FsdpConfig(Section):
    strategy: Literal["auto", "replicate", "fsdp2", "fsdp"] = Field(
        "auto",
        description="How several processes share the policy. replicate = each holds all of it, gradients are added up; "
        "fsdp2 (or fsdp) = each holds a part, weights are gathered layer by layer; auto = fsdp2 if all of the policy "
        "is trained, else (LoRA) replicate. One process always holds all of it.",
    )
    reshard_after_forward: bool = Field(
        True, description="fsdp2: free a layer's gathered weights after its forward pass and gather them again for the "
        "backward pass; false = faster, and more memory.",
    )  # fmt: skip
    cpu_offload: bool = Field(
        False, description="fsdp2: keep the parts, and the optimizer's state, in the memory of the host; slower."
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
    shard_frozen: bool = Field(
        False, description="fsdp2: share out weights that are not trained as well; false = each process holds them all."
    )
    mixed_precision: MixedPrecisionConfig = MixedPrecisionConfig()


class TokenizerConfig(Section):
    tokenizer_model: str | None = Field(
        None, min_length=1, description="Text: folder of the tokenizer on this machine; null = actor.model.model_path."
    )
    use_fast: bool = Field(True, description="Text: the tokenizer of the package tokenizers; always so.")
    trust_remote_code: bool = Field(False, description="Text: run code that comes with a tokenizer; never.")
    padding_side: Literal["left", "right"] = Field(
        "right",
        description="Text: side on which rows of prompts are filled up; always right. No result depends on it, because "
        "texts are computed end to end.",
    )


class CriticConfig(Section):
    use_critic_model: bool | None = Field(
        None,
        description="Learn a value function. algorithm.adv_type decides: gae does, the others do not; null = leave it "
        "to that.",
    )


class ActorConfig(Section):
    global_batch_size: int = Field(128, ge=1, description="Records of one optimizer step, over all processes.")
    micro_batch_size: int = Field(32, ge=1, description="Records of one forward and backward pass of a process.")
    num_threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of the policy's process while it trains and the simulators wait; null = "
        "runner.num_threads. Another number rounds differently.",
    )
    sequence_packing: bool = Field(
        True, description="Text: a pass computes texts end to end, without padding; always so."
    )
    enable_dp_load_balance: bool = Field(
        False,
        description="Move records between processes, so that all have equally many tokens; never. Each trains on the "
        "records that it has collected.",
    )
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig
    optim: OptimConfig = OptimConfig()
    lr_sched: LrScheduleConfig = LrScheduleConfig()
    grad_scaler: GradScalerConfig = GradScalerConfig()
    fsdp_config: FsdpConfig = FsdpConfig()
