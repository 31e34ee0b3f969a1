"""The policy and its optimizer: ``actor.*``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from embodied.schema.keys.base import GROUP_NAME, OpenSection, Precision, Section
from embodied.schema.keys.sections.fsdp import FsdpConfig


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
    value_lr: float = Field(3e-3, gt=0, description="Learning rate of the value head, or of the critics.")
    temperature_lr: float = Field(
        3e-4, gt=0, description="Learning rate of the logarithm of the temperature (algorithm.learner=sac)."
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="Adam's first moment decay.")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="Adam's second moment decay.")
    adam_eps: float = Field(1e-5, gt=0, description="Adam's epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay.")
    clip_grad: float = Field(1.0, gt=0, description="Largest norm of the gradient.")
    impl: Literal["auto", "foreach", "fused", "for-loop"] = Field(
        "auto",
        description="How torch steps: foreach = many tensors at once, fused = in one kernel, for-loop = one after the "
        "other; they round differently. auto = torch's choice (foreach on a GPU, for-loop on a CPU).",
    )
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
    lr_decay_style: Literal["constant", "cosine", "linear", "wsd"] = Field(
        "constant",
        description="How the learning rates fall after that; wsd = they stay, and fall in the last iterations alone "
        "(lr_wsd_decay_iters). Both groups follow the same shape.",
    )
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = Field(
        "exponential",
        description="wsd: how they fall, with x from 0 to 1: 2 · 0.5^x − 1, 1 − x, (1 + cos πx) / 2, 1 − √x.",
    )
    lr_wsd_decay_iters: float | None = Field(
        None, gt=0, description="wsd: iterations in which they fall; null = lr_decay_fraction says it."
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


class TokenizerConfig(Section):
    tokenizer_model: str | None = Field(
        None, min_length=1, description="Text: folder of the tokenizer on this machine; null = actor.model.model_path."
    )
    use_fast: bool = Field(True, description="Text: the tokenizer of the package tokenizers; always so.")
    trust_remote_code: bool = Field(
        False,
        description="Text: permit to run code that comes with a tokenizer (auto_map in its tokenizer_config.json). It "
        "is run where transformers has no class for the tokenizer, and a run says whether it was. Other models need "
        "none.",
    )
    padding_side: Literal["left", "right"] | None = Field(
        None,
        description="Text: side on which the tokenizer of an exported folder fills up rows; null = as it was read. A "
        "run itself computes the same on both sides.",
    )


class CriticConfig(Section):
    use_critic_model: bool | None = Field(
        None,
        description="Learn a value function. algorithm.adv_type decides: gae does, the others do not; null = leave it "
        "to that.",
    )


class RecordsChannelConfig(Section):
    name: str | None = Field(
        None,
        min_length=1,
        max_length=100,
        description="Name of the shared memory in which records wait for the update, as /proc shows it: "
        "NAME.QUEUE_NAME; null = env.channel.name.",
    )
    queue_name: str = Field("replay_buffer", min_length=1, max_length=100, description="Name of the queue within it.")
    queue_size: int = Field(
        0,
        ge=0,
        description="Most records of an iteration that may wait for the update in a process. An iteration is updated "
        "as a whole, so one that may have more is refused; 0 = as many as it has.",
    )


OTHER_BACKENDS = ("Megatron", "DeepSpeed", "torchtitan", "VeOmni")
"""What trains elsewhere."""


def _is_here(name: Any) -> Any:
    """Says of a backend of other systems that it is not there."""
    for other in OTHER_BACKENDS:
        if isinstance(name, str) and name.lower().startswith(other.lower()):
            said = "there is no {other} backend: processes share the policy out (fsdp, fsdp2) or replicate it (ddp)"
            raise PydanticCustomError("not_here", said, {"other": other})
    return name


class ActorConfig(Section):
    global_batch_size: int = Field(
        128,
        ge=1,
        description="Records of one optimizer step, over all processes. Those of an iteration that do not fill one are "
        "a step of their own, none is left out.",
    )
    micro_batch_size: int = Field(32, ge=1, description="Records of one forward and backward pass of a process.")
    group_name: str | None = Field(
        None,
        pattern=GROUP_NAME,
        description="Name of the processes that train: what ps and top call them (15 letters at most), with the rank "
        "behind it where there are several, and what their own lines on the terminal begin with; null = python, and "
        "lines that begin with the rank.",
    )
    num_threads: int | None = Field(
        None,
        ge=1,
        description="CPU threads of the policy's process while it trains and the simulators wait; null = "
        "runner.num_threads. Another number rounds differently.",
    )
    use_torch_compile: bool | None = Field(
        None,
        description="Compile the policy's layers; null = what actor.model.torch_compile says, for which it is another "
        "name.",
    )
    training_backend: Annotated[Literal["fsdp", "fsdp2", "ddp"] | None, BeforeValidator(_is_here)] = Field(
        None,
        description="How several processes train: fsdp and fsdp2 set actor.fsdp_config.strategy=fsdp2, of a policy "
        "with adapters, too, which auto replicates; ddp sets replicate. fsdp_config.sharding_strategy beside fsdp says "
        "more exactly what each holds (no_shard = all of it); a strategy that says otherwise is refused. null = what "
        "fsdp_config says.",
    )
    enable_offload: bool | None = Field(
        None,
        description="true = offload_optimizer and offload_reference. Weights have offload_weight; "
        "gradients have offload_grad. false and null say nothing.",
    )
    offload_grad: bool = Field(
        True,
        description="Free the gradients with each optimizer step, so that they take no memory while the policy acts. "
        "false = the last ones stay on the device until the next update begins, for code of yours that looks at them "
        "between updates: the same numbers, as much memory as what is trained.",
    )
    offload_optimizer: bool = Field(
        False,
        description="Keep the optimizer's state (Adam's moments) in the memory of the host while the policy acts, is "
        "evaluated or saved. It is copied to the device right before the first optimizer step of an update, and back "
        "when the update ends: the same numbers, more memory for rollouts, slower by two copies. Without effect on a "
        "CPU, and with fsdp2 and cpu_offload, where it lies on the host anyway.",
    )
    offload_reference: bool = Field(
        False,
        description="The same for the weights of the reference (algorithm.kl_beta above 0): on the device from their "
        "first use in an update to its end.",
    )
    offload_weight: bool = Field(
        False,
        description="Beside an engine (rollout.backend=vllm): keep all of the policy's weights in the memory of the "
        "host from the moment at which they are handed to the engine until it has generated. They are back on the "
        "device before the update, the end of an evaluation or a save. The engine's log-probs are then compared with "
        "theirs (rollout.max_logprob_gap) when the rollout has ended, not while it runs, on the same texts: the same "
        "numbers, room for a larger engine, slower by two copies a rollout. On a CPU nothing moves. Without an engine "
        "the policy acts and learns in one copy, and true is refused; with several processes "
        "actor.fsdp_config.strategy=fsdp2 and cpu_offload=true keep it on the host, and true is taken beside them.",
    )
    sequence_packing: bool = Field(
        True,
        description="Text: a pass of an update computes texts end to end, without padding, and equal prompts once; "
        "false = each in a row that is filled up to the longest, to compare: slower, the same numbers up to rounding.",
    )
    calculate_flops: bool = Field(
        True,
        description="Count the floating-point operations of an update (train/tflops_per_s, time/train_mfu); false = no "
        "such metrics. Reinforcement learning; needs a policy that says how many it makes.",
    )
    enable_dp_load_balance: bool = Field(
        False,
        description="Several processes: exchange the records of each optimizer step before its passes, so that each "
        "process has about equally many tokens (records, of policies that count no tokens). The longest are placed "
        "first, onto the process that has the least. The same records form a step, so numbers differ by rounding "
        "alone; passes before the update and for one ratio a sequence stay where the records were collected. A "
        "process then holds a copy of its records of a step. false = each trains on what it has collected. In one "
        "process there is nothing to exchange.",
    )
    channel: RecordsChannelConfig = RecordsChannelConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig
    optim: OptimConfig = OptimConfig()
    lr_sched: LrScheduleConfig = LrScheduleConfig()
    grad_scaler: GradScalerConfig = GradScalerConfig()
    fsdp_config: FsdpConfig = FsdpConfig()
