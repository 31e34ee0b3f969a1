"""The typed configuration: every key with its meaning. ``docs/configuration.md`` is generated from this file.

Hydra composes YAML groups into one mapping (:mod:`embodied.compose`); the models below check types and ranges and
refuse unknown keys; :func:`check` refuses combinations that cannot work, with the numbers. Defaults live here and
nowhere else: a YAML file only says what it changes.

Under ``env.train``, ``env.eval`` and ``actor.model`` the keys that are not listed here belong to the class that
``_target_`` names; :func:`target_kwargs` checks them against its signature.
"""

from __future__ import annotations

import importlib
import inspect
import re
import shutil
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from embodied.errors import ConfigError, UnknownKeyError, did_you_mean
from embodied.targets import load_target as load_target

Precision = Literal["fp32", "bf16", "fp16"]


class Section(BaseModel):
    """A part of the configuration; unknown keys are errors, values cannot change after composition."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OpenSection(Section):
    """A section that also carries the keyword arguments of its ``_target_``."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    target: str = Field(alias="_target_", description="Class or function to build, as a dotted import path.")


class LoggerConfig(Section):
    log_path: str = Field(description="Folder of one run: metrics, checkpoints, configuration, worker logs.")
    logger_backends: list[Literal["jsonl", "tensorboard"]] = Field(
        ["jsonl", "tensorboard"], description="Trackers that metrics are written to."
    )


class CheckpointConfig(Section):
    max_keep: int = Field(
        3, ge=1, description="How many checkpoints stay; older ones are deleted after a newer one is complete."
    )
    async_save: bool = Field(
        True,
        description="Write a checkpoint in the background while the run goes on, from a copy in host memory (of what "
        "is trained and the optimizer's state); false = the run waits until it is on the disk.",
    )


class RunnerConfig(Section):
    experiment_name: str | None = Field(
        None,
        min_length=1,
        description="Name of the run and of its folder; null joins the chosen env, model and algorithm.",
    )
    task_type: Literal["embodied", "sft", "demos"] = Field(
        "embodied",
        description="embodied = reinforcement learning; sft = learning from demonstrations; demos = making them. The "
        "entries embodied.train, embodied.sft and embodied.tools.demos set it.",
    )
    output_dir: str = Field("runs", description="Folder that holds all runs.")
    seed: int = Field(
        1234,
        ge=0,
        description="Seed of the whole run: plan of episodes, sampling noise, initial weights, minibatch order.",
    )
    max_epochs: int = Field(10, ge=0, description="Iterations (collect → update) before training ends.")
    val_check_interval: int = Field(
        -1, ge=-1, description="Iterations between two evaluations; -1 = none. The last iteration is evaluated too."
    )
    save_interval: int = Field(10, ge=-1, description="Iterations between two checkpoints; -1 = only at the end.")
    save_interval_s: float | None = Field(
        None,
        gt=0,
        description="Also save at the end of the first iteration that ends this many seconds after the checkpoint "
        "before (or the start); null = off.",
    )
    only_eval: bool = Field(False, description="Evaluate and stop; no training.")
    dry_run: bool = Field(False, description="Compose, check, build the policy, print the derived numbers, exit.")
    resume_dir: str | None = Field(
        "auto",
        description="Checkpoint folder to go on from; auto = newest complete one of this run; null = start anew, "
        "refusing a folder that has checkpoints.",
    )
    ckpt_path: str | None = Field(
        None,
        description="Checkpoint folder whose weights are loaded at the start (evaluation, or training from other "
        "weights).",
    )
    deterministic: bool = Field(
        True,
        description="Policy batches of one fixed shape, so that the order in which workers finish changes no number.",
    )
    max_bad_updates: int = Field(
        3, ge=1, description="Updates in a row that may be skipped for a loss or gradient that is not finite."
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="Where the policy runs: auto (a GPU if there is one), cpu, cuda, cuda:1 …",
    )
    num_threads: int = Field(
        1,
        ge=1,
        description="CPU threads of the policy's process. More than one beside busy simulators is many times slower.",
    )
    peak_tflops: Literal["measure"] | Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="What the device could do, 10¹² floating-point operations a second; measure = what a square matrix "
        "product reaches when the run starts. Training is compared with it (time/train_mfu); null = no such metric.",
    )
    logger: LoggerConfig
    checkpoint: CheckpointConfig = CheckpointConfig()


class SamplingConfig(Section):
    do_sample: bool = Field(True, description="Draw actions; false = most likely token.")
    temperature: float = Field(1.0, gt=0, description="Temperature of the action logits.")
    top_k: int = Field(0, ge=0, description="Keep the k most likely action tokens; 0 = all.")
    top_p: float = Field(
        1.0, gt=0, le=1, description="Keep the most likely action tokens up to this probability; 1 = all."
    )


class KlControlConfig(Section):
    type: Literal["fixed", "adaptive"] = Field(
        "fixed", description="fixed = the KL's weight stays kl_beta; adaptive = it begins there and aims at target_kl."
    )
    target_kl: float = Field(0.1, gt=0, description="adaptive: mean KL of an element (logprob_type) to aim at, nats.")
    horizon: int = Field(
        10_000, ge=1, description="adaptive: episodes after which the weight has changed by at most a fifth."
    )


class AlgorithmConfig(Section):
    adv_type: Literal[
        "grpo", "dr_grpo", "rloo", "raw", "remax", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gae"
    ] = Field(
        "grpo",
        description="Advantage estimator (embodied.algorithms.estimators); gae needs a value head, remax runs one more "
        "episode a start, without sampling.",
    )
    adv_std_ddof: int = Field(
        1, ge=0, le=1, description="Degrees of freedom taken off in the group's standard deviation."
    )
    normalize_advantages: bool = Field(
        False, description="Whiten the advantages over all elements of the iteration that count."
    )
    gamma: float = Field(
        0.99,
        gt=0,
        le=1,
        description="Discount from one reward (algorithm.reward_type) to the next, for gae and reinforce_plus_plus.",
    )
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="gae: how far later rewards count; 0 = the next value alone, 1 = all of them."
    )
    bootstrap_type: Literal["standard", "always"] = Field(
        "standard",
        description="gae: which episodes end with the value of their final observation instead of 0. standard = those "
        "that the step limit cut off; always = those that terminated too.",
    )
    value_loss: Literal["huber", "mse"] = Field("huber", description="Loss of the value head.")
    huber_delta: float = Field(10.0, gt=0, description="Error beyond which the Huber loss grows linearly.")
    value_clip: float | None = Field(
        None,
        gt=0,
        description="How far a value may move from that at action time before its gradient ends; null = off.",
    )
    critic_warmup_steps: int = Field(
        0, ge=0, description="gae: optimizer steps at the start of a run that train the value head alone."
    )
    loss_type: Literal["ppo", "gspo", "cispo", "aipo", "tis", "reinforce"] = Field(
        "ppo", description="Policy loss (embodied.algorithms.losses)."
    )
    behav_imp_weight_cap: float | None = Field(
        2.0,
        gt=0,
        description="loss_type tis: largest weight of an element for the probability that it had when it acted; null = "
        "no cap.",
    )
    behav_imp_weight_mode: Literal["cap", "mask"] = Field(
        "cap", description="loss_type tis: what a weight beyond the cap becomes: the cap, or 0."
    )
    aipo_rho: float = Field(5.0, gt=1, description="loss_type aipo: largest ratio that counts.")
    off_policy_masking_delta: float | None = Field(
        None,
        gt=0,
        description="Drop negative advantages of episodes whose mean log-prob has fallen by more than this since they "
        "acted, nats; null = off.",
    )
    positive_nll_coef: float = Field(
        0.0, ge=0, description="Weight of the mean of −log-prob over episodes with a positive return; 0 = off."
    )
    early_stop_imp_ratio: float | None = Field(
        None,
        gt=1,
        description="Mean ratio of an optimizer batch beyond which it and the rest of its epoch are not trained on; "
        "null = off.",
    )
    unbiased_loss_max_tokens: int | None = Field(
        None,
        ge=1,
        description="Constant of seq-mean-token-sum-norm: elements (logprob_type) of the longest episode; null = "
        "derived from the step limit.",
    )
    loss_agg_func: Literal[
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
    ] = Field("seq-mean-token-mean", description="How token losses become one number, over the whole optimizer batch.")
    group_size: int = Field(8, ge=1, description="Episodes of one start whose returns are compared.")
    filter_rewards: bool = Field(
        False,
        description="Train only on groups whose mean return lies between the two bounds; the others leave the "
        "denominators as well.",
    )
    rewards_lower_bound: float = Field(0.1, description="filter_rewards: least mean return of a group.")
    rewards_upper_bound: float = Field(0.9, description="filter_rewards: largest mean return of a group.")
    dynamic_sampling: bool = Field(
        False,
        description="Replace groups without a gradient (all scores equal, or beyond filter_rewards) by groups of new "
        "starts, before training.",
    )
    max_sampling_rounds: int = Field(
        3,
        ge=1,
        description="dynamic_sampling: rollouts of an iteration at most, the first included. What is missing then "
        "stays as it is.",
    )
    filter_reward_metric: Literal["return", "success"] = Field(
        "return",
        description="dynamic_sampling: which score of the episodes must differ: return = rewards with the overlong "
        "penalty, success.",
    )
    rollout_epoch: int = Field(
        1, ge=1, description="Episodes of an iteration = rollout_epoch · env.train.total_num_envs."
    )
    update_epoch: int = Field(1, ge=1, description="Passes over an iteration's records.")
    clip_ratio_low: float = Field(0.2, ge=0, lt=1, description="Lower clip of the ratio: 1 − this.")
    clip_ratio_high: float = Field(0.28, ge=0, description="Upper clip of the ratio: 1 + this.")
    clip_ratio_c: float | None = Field(None, gt=1, description="Dual clip for negative advantages; null = off.")
    kl_beta: float = Field(
        0.0, ge=0, description="Weight of the KL penalty towards the policy that training began with; 0 = none is kept."
    )
    use_kl_in_reward: bool = Field(
        False,
        description="The penalty stands in the rewards, before advantages are made of them, instead of in the loss.",
    )
    kl_penalty_type: Literal["k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl", "full"] = Field(
        "low_var_kl",
        description="Estimate of that KL (embodied.algorithms.kl); full = the KL itself, from the distributions over "
        "all action tokens.",
    )
    kl_ctrl: KlControlConfig = KlControlConfig()
    logprob_forward_micro_batch_size: int | None = Field(
        None,
        ge=1,
        description="Records of one pass without gradients (reference in the rewards, loss_type tis); null = "
        "actor.micro_batch_size.",
    )
    reference_reset_interval: int | None = Field(
        None,
        ge=1,
        description="Iterations after which the present policy becomes the one that the KL is measured from; null = "
        "never.",
    )
    reset_optimizer_with_reference: bool = Field(
        True, description="reference_reset_interval: forget the optimizer's moments at the same time."
    )
    unbiased_kl_estimate: bool = Field(
        False, description="Multiply the estimate by the ratio to the acting policy; for k3 (low_var_kl) alone."
    )
    entropy_bonus: float = Field(0.0, ge=0, description="Weight of the entropy in the loss.")
    reward_type: Literal["chunk_level", "action_level"] = Field(
        "chunk_level", description="One reward a record, or one a control step."
    )
    logprob_type: Literal["token_level", "action_level", "chunk_level"] = Field(
        "token_level", description="One ratio a token, an action, or a chunk."
    )
    entropy_type: Literal["token_level", "action_level", "chunk_level"] = Field(
        "token_level", description="How entropy is summed before averaging."
    )
    sampling_params: SamplingConfig = SamplingConfig()
    val_sampling_params: SamplingConfig = SamplingConfig(do_sample=False)


class VideoConfig(Section):
    save_video: bool = Field(
        False, description="Record videos (costs one render a control step of the recorded episodes)."
    )
    info_on_video: bool = Field(True, description="Write instruction, step and reward onto the video.")
    video_base_dir: str = Field(description="Folder of the videos.")
    max_videos: int = Field(
        10, ge=1, description="Recorded episodes of one evaluation or training iteration; spread over the tasks."
    )


class EnvSideConfig(OpenSection):
    total_num_envs: int = Field(
        8, ge=1, description="Env slots: simulators that are in use at the same time, over all processes."
    )
    auto_reset: bool = Field(
        True, description="A slot takes the next episode at once; false = when all slots have ended theirs."
    )
    ignore_terminations: bool = Field(False, description="Go on to the step limit after success.")
    use_fixed_reset_state_ids: bool = Field(
        True,
        description="Training: the episodes of a group share one start; false = each has its own. "
        "Evaluation: the first initial states of each task; false = drawn by runner.seed.",
    )
    max_episode_steps: int | None = Field(
        None, ge=1, description="Step limit of an episode in control steps; null = the env's own."
    )
    seed: int = Field(
        0, ge=0, description="Offset of the starts' seeds, for envs that randomise beyond the initial state."
    )
    reward_mode: Literal["sparse", "dense"] = Field(
        "sparse", description="sparse = 1 while the task is solved, else 0; dense = the env's own reward for progress."
    )
    reward_coef: float = Field(1.0, description="Factor on the reward.")
    use_rel_reward: bool = Field(False, description="Record the change of the reward since the previous control step.")
    video_cfg: VideoConfig


class EnvEvalConfig(EnvSideConfig):
    episodes_per_task: int = Field(
        10, ge=1, description="Evaluation episodes of each task, over its first initial states."
    )


class ChannelConfig(Section):
    name: str = Field("embodied", min_length=1, description="Name of the shared memory (as /proc shows it).")
    queue_name: str = Field(min_length=1, description="Name of the queue within it.")
    queue_size: int = Field(
        0, ge=0, description="Messages in flight to or from one worker; 0 = bounded by its slots only."
    )


class EnvConfig(Section):
    num_workers: int | None = Field(
        None,
        ge=1,
        description="Env workers of each process that trains; null = one a slot, at most one a CPU core.",
    )
    init_timeout_s: float = Field(120.0, gt=0, description="Deadline for a worker to start and choose its renderer.")
    reset_timeout_s: float = Field(
        180.0, gt=0, description="Deadline for a reset; the first of a task builds its simulator."
    )
    step_timeout_s: float = Field(120.0, gt=0, description="Deadline for one chunk of control steps with its render.")
    max_worker_restarts: int = Field(
        3,
        ge=0,
        description="How often a worker that failed is replaced in a row, without a finished episode of it in between; "
        "its episodes are redone. The failure after that stops the run; 0 = the first does.",
    )
    python: str | None = Field(
        None,
        min_length=1,
        description="Python interpreter of the workers, e.g. of another virtual environment that has the simulator "
        "(3.10 or newer, with numpy); null = that of the launching process.",
    )
    pin_workers: bool = Field(
        False, description="Pin each worker to cores of its own, shared out evenly over the NUMA nodes."
    )
    render_gpus: list[int] | None = Field(
        None,
        description="GPUs that the workers render on, in turn, as nvidia-smi counts; null = all that are visible, "
        "[] = leave it to the simulator. A worker finds its own in EMBODIED_RENDER_GPU and MUJOCO_EGL_DEVICE_ID.",
    )
    channel: ChannelConfig = ChannelConfig(queue_name="obs_buffer")
    train: EnvSideConfig
    eval: EnvEvalConfig


class RolloutConfig(Section):
    schedule: Literal["ready", "lockstep"] = Field(
        "ready", description="ready = serve the slots that are waiting; lockstep = wait for all."
    )
    min_batch: int | None = Field(
        None,
        ge=1,
        description="Slots of a process that must wait before its policy runs; null = an eighth of its slots.",
    )
    max_wait_ms: float | None = Field(
        None,
        gt=0,
        description="schedule ready: longest wait of a slot for min_batch others, milliseconds; null = as long as it "
        "takes.",
    )
    pipeline_stage_num: int = Field(
        1,
        ge=1,
        description="schedule lockstep: fixed parts of the slots that take turns, so that the policy serves one while "
        "the simulators of the others work; 1 = all slots wait for each other.",
    )
    trace: bool = Field(
        False,
        description="Write a trace of each rollout, who waited for whom, to trace/ in the run folder; "
        "https://ui.perfetto.dev shows it.",
    )
    policy_batch: int | None = Field(
        None, ge=1, description="Rows of one policy call; null = as many as there are slots, at most 8."
    )
    enforce_eager: bool = Field(
        True,
        description="false = replay policy calls as a CUDA graph, which has one batch shape (short batches are filled "
        "up); on a CPU the calls stay as they are.",
    )
    channel: ChannelConfig = ChannelConfig(queue_name="action_buffer")


class ModelConfig(OpenSection):
    freeze_pattern: str | list[str] | None = Field(
        None,
        description="Regular expressions; parameters in whose name one of them is found are not trained, whatever else "
        "says so. A model that takes the key itself is given it as well.",
    )

    @property
    def freeze_patterns(self) -> list[str]:
        """As a list."""
        given = self.freeze_pattern
        return [given] if isinstance(given, str) else given or []

    @property
    def precision(self) -> Precision:
        """Number format of the model's arithmetic, fp32 for a model that takes no such key."""
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


class ActorConfig(Section):
    global_batch_size: int = Field(128, ge=1, description="Records of one optimizer step, over all processes.")
    micro_batch_size: int = Field(32, ge=1, description="Records of one forward and backward pass of a process.")
    model: ModelConfig
    optim: OptimConfig = OptimConfig()
    lr_sched: LrScheduleConfig = LrScheduleConfig()
    grad_scaler: GradScalerConfig = GradScalerConfig()
    fsdp_config: FsdpConfig = FsdpConfig()


class ClusterConfig(Section):
    timeout_s: float = Field(
        1800.0,
        gt=0,
        description="How long a process waits for the others of its run (torchrun) before it gives up; longer than any "
        "rollout takes.",
    )


class OverlongPenaltyConfig(Section):
    enable: bool = Field(False, description="Take something from the last reward of episodes near the step limit.")
    buffer_length: int = Field(
        16, ge=1, description="Control steps before the step limit in which the penalty grows from 0."
    )
    factor: float = Field(1.0, gt=0, description="The penalty of an episode that reaches the step limit.")


class RewardConfig(Section):
    overlong_penalty: OverlongPenaltyConfig = OverlongPenaltyConfig()


class DataConfig(Section):
    train_data_paths: list[str] = Field(
        [],
        description="Demonstrations: LeRobot folders, LIBERO .hdf5 files or folders of them, ManiSkill .h5 files. "
        "data=PATH is short for one.",
    )
    val_data_paths: list[str] = Field(
        [], description="Demonstrations for the validation loss alone; empty = data.test_size of the others."
    )
    test_size: float = Field(
        0.1, ge=0, description="Episodes held out for the validation loss: a share if below 1, else a number."
    )
    camera_keys: list[str] | None = Field(
        None, description="Names that the env's cameras have in the files, in the env's order; null = the same."
    )
    state_keys: list[str] | None = Field(
        None, description="Arrays of the files whose concatenation is the env's state; null = the layout's own."
    )
    instruction: str | None = Field(
        None, description="Instruction of files that have none (ManiSkill); null = that of the env's only task."
    )
    random_crop: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Augmentation: share of a picture's area that a random crop keeps before it is enlarged again; "
        "1 = off. Models of which actor.model.center_crop is true expect 0.9.",
    )
    brightness: float = Field(
        0.0, ge=0, lt=1, description="Augmentation: pixels are multiplied by a random factor in 1 ± this; 0 = off."
    )


class SftConfig(Section):
    steps_per_iteration: int = Field(
        100, ge=1, description="Optimizer steps of an iteration (runner.max_epochs, save_interval … count those)."
    )
    statistics: Literal["auto", "quantiles", "env"] = Field(
        "auto",
        description="Ranges over which action tokens are spread: quantiles = 1 % and 99 % quantiles of the "
        "demonstrations (of the state as well); env = the env's range; auto = those that the policy brings from its "
        "checkpoint, else quantiles. They are kept with every checkpoint.",
    )
    val_samples: int = Field(
        256, ge=0, description="Samples, spread over the held-out demonstrations, of the validation; 0 = none."
    )


class DemosConfig(Section):
    path: str | None = Field(None, description="Folder of the data set; null = demos/ENV.")
    episodes: int = Field(100, ge=1, description="Successful episodes to record. episodes=N is short for it.")
    noise_std: float = Field(
        0.0,
        ge=0,
        description="Standard deviation of the noise on executed actions, as a share of half the range; recorded "
        "actions have none. noise_std=X is short for it.",
    )
    max_attempts: int | None = Field(
        None, ge=1, description="Episodes to try at most; null = ten times demos.episodes."
    )


class Config(Section):
    runner: RunnerConfig
    algorithm: AlgorithmConfig = AlgorithmConfig()
    env: EnvConfig
    rollout: RolloutConfig = RolloutConfig()
    actor: ActorConfig
    reward: RewardConfig = RewardConfig()
    data: DataConfig = DataConfig()
    sft: SftConfig = SftConfig()
    demos: DemosConfig = DemosConfig()
    cluster: ClusterConfig = ClusterConfig()


def defaults(section: type[BaseModel] = Config) -> dict[str, Any]:
    """Every default of a section as a nested mapping, so that ``${runner.seed}`` finds it if no file mentions it."""
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            given = {} if field.is_required() else field.default.model_dump(by_alias=True, exclude_unset=True)
            found[name] = {**defaults(kind), **given}
        elif not field.is_required():
            found[field.alias or name] = field.default
    return found


def bind(mapping: Mapping[str, Any]) -> Config:
    """The checked configuration. Raises :class:`UnknownKeyError` or :class:`ConfigError` naming every wrong key."""
    try:
        return Config.model_validate(mapping)
    except ValidationError as error:
        raise _config_error(error) from None


def _config_error(error: ValidationError) -> ConfigError:
    problems = error.errors(include_url=False)
    unknown = [p for p in problems if p["type"] == "extra_forbidden"]
    if unknown:
        lines = [_unknown_line(p["loc"]) for p in unknown]
        return UnknownKeyError(
            "\n".join(lines), "correct the key, or remove it; docs/configuration.md lists every key with its meaning"
        )
    lines = [_wrong_value(problem) for problem in problems]
    return ConfigError(
        "\n".join(lines), "set the key to a value of that kind; docs/configuration.md says what it means"
    )


def _wrong_value(problem: Any) -> str:
    key, got, message = _dotted(problem["loc"]), problem["input"], problem["msg"]
    if problem["type"] == "missing":
        return f"{key} is missing"
    if problem["type"] == "literal_error":
        message += "." + did_you_mean(str(got), re.findall(r"'([^']*)'", problem["ctx"]["expected"]))
    return f"{key} = {got!r}: {message[:1].lower()}{message[1:]}"


def _dotted(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location)


def _unknown_line(location: tuple[int | str, ...]) -> str:
    section: type[BaseModel] = Config
    for part in location[:-1]:
        section = section.model_fields[str(part)].annotation  # type: ignore[assignment]
    return unknown_key(_dotted(location), [f.alias or name for name, f in section.model_fields.items()]).message


def unknown_key(key: str, known: list[str]) -> UnknownKeyError:
    """The error for ``a.b.key`` where ``known`` are the keys of ``a.b``."""
    section, _, name = key.rpartition(".")
    message = f"unknown key '{key}'.{did_you_mean(name, known)}"
    return UnknownKeyError(message, f"known keys of {section or 'the top'}: {', '.join(sorted(known))}")


def target_kwargs(section: OpenSection, path: str) -> dict[str, Any]:
    """Keyword arguments for the section's ``_target_``, checked against its signature.

    Raises:
        UnknownKeyError: a key that the target does not take.
        ConfigError: the target cannot be imported, a required argument is missing, or a value is of another type.
    """
    signature = inspect.signature(load_target(section.target, f"{path}._target_"))
    given = dict(section.model_extra or {})
    own = [f.alias or name for name, f in type(section).model_fields.items()]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    if isinstance(section, ModelConfig) and (takes_any or "freeze_pattern" in signature.parameters):
        # It may choose number formats by what is frozen.
        given |= {"freeze_pattern": section.freeze_pattern} if section.freeze_pattern is not None else {}
    for name in given:
        if name not in signature.parameters and not takes_any:
            raise unknown_key(f"{path}.{name}", [*own, *signature.parameters])
    for name, parameter in signature.parameters.items():
        if parameter.default is parameter.empty and name not in given and parameter.kind is not parameter.VAR_KEYWORD:
            raise ConfigError(f"{path}.{name} is missing", f"set {path}.{name}; {section.target} needs it")
    names = importlib.import_module(section.target.rpartition(".")[0]).__dict__
    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return {name: _of_type(annotations.get(name, Any), names, value, f"{path}.{name}") for name, value in given.items()}


def _of_type(annotation: Any, names: dict[str, Any], value: Any, key: str) -> Any:
    """``value`` as the target's annotation wants it, or as it is where the annotation is none that can be checked."""
    try:
        hints = get_type_hints(SimpleNamespace(__annotations__={"value": annotation}), names)
        adapter = TypeAdapter(hints["value"])
    except (NameError, PydanticSchemaGenerationError):
        return value
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise ConfigError(
            _wrong_value({**problem, "loc": (key, *problem["loc"])}), "set the key to a value of that kind"
        ) from None


def episodes_per_iteration(config: Config) -> int:
    return config.algorithm.rollout_epoch * config.env.train.total_num_envs


def check(config: Config) -> None:
    """Refuse combinations that cannot work. Raises :class:`ConfigError` with the numbers."""
    algorithm, episodes = config.algorithm, episodes_per_iteration(config)
    _check_patterns(config.actor.model)
    slots = max(config.env.train.total_num_envs, config.env.eval.total_num_envs)
    if (config.env.num_workers or 1) > slots:
        raise ConfigError(
            f"env.num_workers {config.env.num_workers} is more than the {slots} env slots: some would be idle",
            f"set env.num_workers to {slots} or less, or raise env.train.total_num_envs and env.eval.total_num_envs",
        )
    _check_rollout_schedule(config)
    if config.env.python is not None and shutil.which(config.env.python) is None:
        raise ConfigError(
            f"env.python is {config.env.python}, which is no program that can be run",
            "set it to the interpreter of an environment that has the simulator, e.g. /path/to/bin/python, or null",
        )
    if config.runner.only_eval or config.runner.task_type == "demos":
        return
    _check_batches(config)
    _check_schedule(config)
    if config.runner.task_type == "sft":
        _check_sft(config)
        return
    if episodes % algorithm.group_size:
        raise ConfigError(
            f"group_size {algorithm.group_size} does not divide {episodes} episodes "
            f"(rollout_epoch {algorithm.rollout_epoch} · env.train.total_num_envs {config.env.train.total_num_envs})",
            "change algorithm.group_size, algorithm.rollout_epoch or env.train.total_num_envs so that it does",
        )
    if algorithm.adv_type in GROUP_ADVANTAGES:
        _check_groups(config)
    if algorithm.reward_type == "action_level" and algorithm.logprob_type == "chunk_level":
        raise ConfigError(
            "algorithm.reward_type action_level gives an advantage to each action, and algorithm.logprob_type "
            "chunk_level has one ratio for all of them",
            "set algorithm.logprob_type=action_level or algorithm.reward_type=chunk_level",
        )
    if algorithm.filter_rewards and algorithm.rewards_lower_bound > algorithm.rewards_upper_bound:
        raise ConfigError(
            f"algorithm.rewards_lower_bound {algorithm.rewards_lower_bound} is above rewards_upper_bound "
            f"{algorithm.rewards_upper_bound}: no group would be left",
            "exchange algorithm.rewards_lower_bound and algorithm.rewards_upper_bound",
        )
    _check_kl(config)
    if algorithm.critic_warmup_steps and algorithm.adv_type != "gae":
        raise ConfigError(
            f"algorithm.critic_warmup_steps {algorithm.critic_warmup_steps} trains the value head alone, and "
            f"algorithm.adv_type {algorithm.adv_type} trains none",
            "set algorithm.critic_warmup_steps=0, or algorithm.adv_type=gae (algorithm=ppo)",
        )
    if algorithm.behav_imp_weight_mode == "mask" and algorithm.behav_imp_weight_cap is None:
        raise ConfigError(
            "algorithm.behav_imp_weight_mode is mask, and behav_imp_weight_cap is null: no weight would be masked",
            "set algorithm.behav_imp_weight_cap, e.g. to 2.0, or algorithm.behav_imp_weight_mode=cap",
        )
    if algorithm.unbiased_kl_estimate and algorithm.kl_penalty_type not in ("k3", "low_var_kl"):
        raise ConfigError(
            f"algorithm.unbiased_kl_estimate corrects low_var_kl, and kl_penalty_type is {algorithm.kl_penalty_type}",
            "set algorithm.kl_penalty_type=low_var_kl or algorithm.unbiased_kl_estimate=false",
        )
    _check_rounds(config)


def _check_batches(config: Config) -> None:
    if config.actor.micro_batch_size > config.actor.global_batch_size:
        raise ConfigError(
            f"actor.micro_batch_size {config.actor.micro_batch_size} is larger than "
            f"actor.global_batch_size {config.actor.global_batch_size}",
            "lower actor.micro_batch_size: it is the part of an optimizer batch that is computed at once",
        )
    _check_fsdp(config.actor.fsdp_config)


def _check_fsdp(fsdp: FsdpConfig) -> None:
    usual = FsdpConfig(strategy=fsdp.strategy)
    changed = [name for name in FsdpConfig.model_fields if getattr(fsdp, name) != getattr(usual, name)]
    if fsdp.strategy == "replicate" and changed:
        raise ConfigError(
            f"actor.fsdp_config.strategy is replicate, and {', '.join(changed)} of it are for fsdp2",
            "set actor.fsdp_config.strategy=fsdp2, or leave the others out",
        )
    if fsdp.fsdp_size == 0:
        raise ConfigError(
            "actor.fsdp_config.fsdp_size is 0", "set it to the processes that share a copy, or to -1 for all of them"
        )


def _check_patterns(model: ModelConfig) -> None:
    for pattern in model.freeze_patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"actor.model.freeze_pattern '{pattern}' is no regular expression: {error}", "correct it"
            ) from error


def _check_rounds(config: Config) -> None:
    algorithm = config.algorithm
    compared = (*GROUP_ADVANTAGES, "reinforce_plus_plus_baseline")
    if algorithm.dynamic_sampling and algorithm.adv_type not in compared:
        raise ConfigError(
            f"algorithm.dynamic_sampling refills groups whose episodes do not differ, and algorithm.adv_type "
            f"{algorithm.adv_type} does not compare the episodes of a group",
            f"set algorithm.dynamic_sampling=false, or algorithm.adv_type to one of {', '.join(compared)}",
        )
    if algorithm.dynamic_sampling and algorithm.max_sampling_rounds == 1:
        raise ConfigError(
            "algorithm.dynamic_sampling with max_sampling_rounds 1 never refills anything",
            "set algorithm.max_sampling_rounds to 2 or more, or algorithm.dynamic_sampling=false",
        )
    if algorithm.adv_type == "remax" and not algorithm.sampling_params.do_sample:
        raise ConfigError(
            "algorithm.adv_type remax with sampling_params.do_sample false compares the greedy episode with itself",
            "set algorithm.sampling_params.do_sample=true",
        )


def _check_schedule(config: Config) -> None:
    lr, schedule, iterations = config.actor.optim.lr, config.actor.lr_sched, config.runner.max_epochs
    for key, rate in (("min_lr", schedule.min_lr), ("lr_warmup_init", schedule.lr_warmup_init)):
        if rate is not None and rate > lr:
            raise ConfigError(
                f"actor.lr_sched.{key} {rate:g} is above actor.optim.lr {lr:g}",
                f"lower actor.lr_sched.{key}, or raise actor.optim.lr",
            )
    if schedule.min_lr is not None and schedule.min_lr_ratio:
        raise ConfigError(
            f"actor.lr_sched.min_lr {schedule.min_lr:g} and min_lr_ratio {schedule.min_lr_ratio:g} both say the lowest "
            "learning rate",
            "set one of them: actor.lr_sched.min_lr=null or actor.lr_sched.min_lr_ratio=0",
        )
    end = iterations if schedule.lr_decay_iters is None else schedule.lr_decay_iters
    warmup = schedule.lr_warmup_iters or schedule.lr_warmup_fraction * iterations
    if schedule.lr_decay_style != "constant" and iterations and warmup >= end:
        raise ConfigError(
            f"the learning rates rise until iteration {warmup:g} and would have fallen by iteration {end:g} "
            f"(actor.lr_sched, runner.max_epochs {iterations})",
            "shorten the warm-up, raise actor.lr_sched.lr_decay_iters, or set actor.lr_sched.lr_decay_style=constant",
        )


def _check_kl(config: Config) -> None:
    algorithm, episodes = config.algorithm, episodes_per_iteration(config)
    for key, value in (
        ("use_kl_in_reward=true", algorithm.use_kl_in_reward),
        ("kl_ctrl.type=adaptive", algorithm.kl_ctrl.type == "adaptive"),
        (f"reference_reset_interval={algorithm.reference_reset_interval}", algorithm.reference_reset_interval),
    ):
        if value and not algorithm.kl_beta:
            raise ConfigError(
                f"algorithm.{key} says how a KL penalty is used, and algorithm.kl_beta is 0: there is none",
                f"set algorithm.kl_beta above 0, or remove algorithm.{key.partition('=')[0]}",
            )
    if algorithm.use_kl_in_reward and algorithm.unbiased_kl_estimate:
        raise ConfigError(
            "algorithm.unbiased_kl_estimate corrects the KL in the loss for steps since it acted, and "
            "algorithm.use_kl_in_reward is true: the KL in the reward is that of the policy that acted",
            "set algorithm.unbiased_kl_estimate=false or algorithm.use_kl_in_reward=false",
        )
    if algorithm.kl_ctrl.type == "adaptive" and algorithm.kl_ctrl.horizon < episodes:
        raise ConfigError(
            f"algorithm.kl_ctrl.horizon {algorithm.kl_ctrl.horizon} is less than the {episodes} episodes of an "
            "iteration: the weight would change by more than a fifth at a time",
            f"set algorithm.kl_ctrl.horizon to {episodes} or more; 100 iterations are {100 * episodes}",
        )


def _check_rollout_schedule(config: Config) -> None:
    rollout, slots = config.rollout, max(config.env.train.total_num_envs, config.env.eval.total_num_envs)
    if rollout.schedule == "ready" and rollout.pipeline_stage_num > 1:
        raise ConfigError(
            f"rollout.pipeline_stage_num {rollout.pipeline_stage_num} divides the slots of a lockstep, and "
            "rollout.schedule is ready, which serves whichever slots wait",
            "set rollout.schedule=lockstep, or leave rollout.pipeline_stage_num at 1",
        )
    if rollout.schedule == "lockstep" and rollout.max_wait_ms is not None:
        raise ConfigError(
            f"rollout.max_wait_ms {rollout.max_wait_ms:g} ends the wait for rollout.min_batch slots, and "
            "rollout.schedule lockstep waits for all",
            "set rollout.schedule=ready, or leave rollout.max_wait_ms at null",
        )
    if rollout.pipeline_stage_num > slots:
        raise ConfigError(
            f"rollout.pipeline_stage_num {rollout.pipeline_stage_num} is more than the {slots} env slots",
            f"set rollout.pipeline_stage_num to {slots} or less, or raise env.train.total_num_envs",
        )


def _check_sft(config: Config) -> None:
    data = config.data
    if not data.train_data_paths:
        raise ConfigError(
            "data.train_data_paths is empty: there is nothing to learn from",
            "add data=PATH to the command; python -m embodied.tools.demos env=NAME makes demonstrations",
        )
    if data.test_size >= 1 and data.test_size % 1:
        raise ConfigError(
            f"data.test_size {data.test_size:g} is neither a share below 1 nor a whole number of episodes",
            "set data.test_size=0.1 or data.test_size=10",
        )
    if config.actor.optim.ema_decay is not None:
        raise ConfigError(
            f"actor.optim.ema_decay {config.actor.optim.ema_decay:g}: supervised training keeps no average of weights",
            "set actor.optim.ema_decay=null",
        )
    precision = (config.actor.model.model_extra or {}).get("precision")
    if precision == "fp16":
        raise ConfigError(
            "actor.model.precision fp16 needs a scaled loss, which supervised training does not have",
            "set actor.model.precision=bf16 or fp32",
        )


GROUP_ADVANTAGES = ("grpo", "dr_grpo", "rloo")


def _check_groups(config: Config) -> None:
    algorithm = config.algorithm
    if algorithm.group_size == 1:
        raise ConfigError(
            f"algorithm.adv_type {algorithm.adv_type} compares episodes of a group, and group_size is 1",
            "set algorithm.group_size to 2 or more",
        )
    if not config.env.train.use_fixed_reset_state_ids:
        raise ConfigError(
            f"algorithm.adv_type {algorithm.adv_type} compares episodes of one start, and "
            "env.train.use_fixed_reset_state_ids is false, which gives each episode its own",
            "set env.train.use_fixed_reset_state_ids=true",
        )
    if not algorithm.sampling_params.do_sample:
        raise ConfigError(
            f"algorithm.adv_type {algorithm.adv_type} with sampling_params.do_sample false: all episodes of a group "
            "would be equal",
            "set algorithm.sampling_params.do_sample=true",
        )
