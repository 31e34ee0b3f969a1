"""Sections of simulators and rollouts: ``env.*`` and ``rollout.*``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from embodied.schema.keys.base import GROUP_NAME, OpenSection, Precision, Section
from embodied.schema.keys.sections.perturb import PerturbConfig
from embodied.schema.keys.sections.vllm import VllmConfig


class VideoConfig(Section):
    save_video: bool = Field(
        False, description="Record videos (costs one render for each picture of a recorded episode)."
    )
    info_on_video: bool = Field(
        True,
        description="Write instruction, step and reward onto the video, with the policy's value (where a value "
        "head is trained) and the probability of the chunk that is executed: the geometric mean of its tokens'.",
    )
    frame_interval: Annotated[int, Field(ge=1)] | Literal["chunk"] = Field(
        1,
        description="Control steps between two pictures of a video; more cost less. chunk = the pictures that the "
        "policy sees, one a chunk, so that nothing is rendered for the video. The video keeps the speed of life.",
    )
    video_base_dir: str = Field(description="Folder of the videos.")
    max_videos: int = Field(
        10, ge=0, description="Recorded episodes of one evaluation, spread over the tasks; 0 = none."
    )

    @property
    def interval(self) -> int | None:
        """Control steps between two pictures of a video; None = pictures that the policy sees."""
        return None if self.frame_interval == "chunk" else self.frame_interval

    @property
    def records(self) -> bool:
        """Returns whether any video is recorded."""
        return self.save_video and self.max_videos > 0


class TrainVideoConfig(VideoConfig):
    frame_interval: Annotated[int, Field(ge=1)] | Literal["chunk"] = Field(
        "chunk", description=VideoConfig.model_fields["frame_interval"].description
    )
    max_videos: int = Field(
        4,
        ge=0,
        description="Recorded episodes of one training iteration, spread over the tasks; 0 = none. Four of 64 short "
        "episodes make its rollout less than 5 % slower.",
    )
    video_interval: int = Field(
        10, ge=1, description="Training: record videos in each iteration whose number this divides, e.g. 10, 20, …."
    )


class EvalVideoConfig(VideoConfig):
    grid: bool = Field(
        True,
        description="Write `grid.mp4` beside the videos of an evaluation: up to 16 of them side by side, each marked "
        "as success or failure, at most 2 MB.",
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
    reward_mode: Literal["sparse", "dense", "own_successes"] = Field(
        "sparse",
        description="sparse = 1 while the task is solved, else 0; dense = the env's own reward for progress; "
        "own_successes = sparse, and more for coming nearer to the states of earlier successes (reward.own_successes).",
    )
    reward_coef: float = Field(1.0, description="Factor on the reward.")
    use_rel_reward: bool = Field(False, description="Record the change of the reward since the previous control step.")
    video_cfg: VideoConfig
    perturb: PerturbConfig | None = Field(
        None,
        description="Perturbations of episodes (`+perturb=robot`). env.eval: each start is run once more under each of "
        "them; env.train: each group of episodes draws one.",
    )


class EnvTrainConfig(EnvSideConfig):
    video_cfg: TrainVideoConfig
    seed: int | None = Field(
        None,
        ge=0,
        description="Offset of the starts' seeds, for envs that randomise beyond the initial state; null = another for "
        "each runner.seed (0 for its default).",
    )


class EnvEvalConfig(EnvSideConfig):
    reward_mode: Literal["sparse", "dense"] = Field(
        "sparse", description="sparse = 1 while the task is solved, else 0; dense = the env's own reward for progress."
    )
    video_cfg: EvalVideoConfig
    seed: int = Field(
        0,
        ge=0,
        description="Offset of the starts' seeds, for envs that randomise beyond the initial state; the same whatever "
        "runner.seed is, so that trainings of several seeds are evaluated from the same starts.",
    )
    episodes_per_task: int = Field(10, ge=1, description="Evaluation episodes a task, over its first initial states.")


class ChannelConfig(Section):
    name: str = Field("embodied", min_length=1, description="Name of the shared memory (as /proc shows it).")
    queue_name: str = Field(min_length=1, description="Name of the queue within it.")
    queue_size: int = Field(
        0, ge=0, description="Messages in flight to or from one worker; 0 = bounded by its slots only."
    )


class EnvConfig(Section):
    num_workers: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        None,
        description="Env workers of each process that trains; null = one a slot, at most one a CPU core; of an env "
        "that hosts all slots of a worker in one simulator (GPU simulation) one a GPU. auto = at most as many of these "
        "as fit into four fifths of the free memory, by what the env says of its simulators.",
    )
    group_name: str = Field(
        "worker",
        pattern=GROUP_NAME,
        description="Name of the env workers' log files in logs/ of the run folder: worker-00.log.",
    )
    init_timeout_s: float = Field(120.0, gt=0, description="Deadline for a worker to start and choose its renderer.")
    reset_timeout_s: float = Field(
        180.0, gt=0, description="Deadline for a reset; the first of a task builds its simulator."
    )
    step_timeout_s: float = Field(120.0, gt=0, description="Deadline for one chunk of control steps with its render.")
    safe_stop_timeout_s: float = Field(
        10.0,
        gt=0,
        description="Time that a robot's safe_stop() may take before its worker is killed (envs with "
        "retry_safe=False); then the run ends and says that the robot may still move.",
    )
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
    start_method: Literal["auto", "spawn", "forkserver"] = Field(
        "auto",
        description="How workers start, also those that replace failed ones: spawn = a fresh interpreter each; "
        "forkserver = forks of one process that has imported the simulator, and built its tasks if the env can "
        "(LIBERO), so that they share the memory of both; auto = forkserver for envs that can. embodied.tools.bench "
        "always spawns.",
    )
    enable_offload: bool = Field(
        False,
        description="End the env workers before each update, so that all of their memory is free for it, on GPUs too, "
        "and start them again for the next episodes, which build their simulators anew. No number changes; what it "
        "costs is in docs/scaling.md. With start_method=forkserver they need not import anything again, and LIBERO's "
        "need not build anything.",
    )
    pin_workers: bool = Field(
        False, description="Pin each worker to cores of its own, shared out evenly over the NUMA nodes."
    )
    render_gpus: list[int] | None = Field(
        None,
        description="GPUs that the workers render on, in turn, as nvidia-smi counts; null = those that "
        "cluster.component_placement numbers, else all that are visible; [] = leave it to the simulator. A worker "
        "finds its own in EMBODIED_RENDER_GPU and MUJOCO_EGL_DEVICE_ID.",
    )
    channel: ChannelConfig = ChannelConfig(queue_name="obs_buffer")
    train: EnvTrainConfig
    eval: EnvEvalConfig


class RolloutConfig(Section):
    backend: Literal["native", "vllm", "sglang"] = Field(
        "native",
        description="What generates: native = the policy itself; vllm = a language model in an inference engine, which "
        "is a process of its own and is given the weights after each update; sglang is not offered yet.",
    )
    python: str | None = Field(
        None,
        min_length=1,
        description="Python interpreter of the engine, of an environment that has it; null = that of the launching "
        "process.",
    )
    gpu_memory_utilization: float = Field(
        0.5, gt=0, le=1, description="Share of a GPU's memory that the engine takes while it generates."
    )
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs over which the engine splits each layer.")
    attention_backend: str | None = Field(
        None,
        min_length=1,
        description="backend vllm: its attention kernels, by vLLM's name, e.g. FLASH_ATTN or TRITON_ATTN; null = "
        "vLLM's own choice.",
    )
    precision: Precision | None = Field(
        None,
        description="Number format of what generates. It is the network that learns, or an engine that is given its "
        "weights as they are, so it has to be actor.model.precision; null = the same.",
    )
    group_name: str = Field(
        "engine",
        pattern=GROUP_NAME,
        description="Name of the engine's log file in logs/ of the run folder: engine.log.",
    )
    eos: int | list[int] | None = Field(
        None,
        description="Text: ids of the tokens that end a text, in place of the tokenizer's and the checkpoint's; the "
        "first is appended to demonstrated answers. null = theirs.",
    )
    padding: int | None = Field(
        None,
        ge=0,
        description="Text: id of the token that fills up rows of prompts, and that an exported tokenizer pads with; "
        "null = the tokenizer's own. No answer of a checkpoint depends on it.",
    )
    print_outputs: bool = Field(
        False,
        description="Text: print the prompt, the answer and the return of each episode of a training when its rollout "
        "has ended; for debugging.",
    )
    detokenize: bool = Field(
        False,
        description="Text: what rollout.print_outputs prints and runner.logger.log_val_generations writes has each "
        "sampled token of an answer, as text with its log-prob; for debugging. It needs one of them.",
    )
    cuda_graph_max_bs: int | None = Field(
        None,
        ge=1,
        description="enforce_eager false: largest batch (rollout.policy_batch) that is replayed as a CUDA graph; a "
        "larger one is computed as if enforce_eager were true. null = any.",
    )
    use_torch_compile: bool | None = Field(
        None,
        description="Compile the policy's layers where it acts: true beside actor.model.torch_compile=false compiles "
        "acting alone, false beside true learning and scoring alone. The two then round differently "
        "(train/logprob_gap). null = what actor.model.torch_compile says.",
    )
    torch_compile_max_bs: int | None = Field(
        None,
        ge=1,
        description="Acting compiled (use_torch_compile, actor.model.torch_compile): largest batch that acts so (rows "
        "of a call); a larger one runs as it is. null = any.",
    )
    enable_offload: bool = Field(
        True,
        description="The engine sleeps while the policy is updated: its weights wait in host memory, its cache is "
        "freed. On a CPU there is nothing to free.",
    )
    init_timeout_s: float = Field(
        600.0, gt=0, description="Deadline for the engine to start, to take weights, to sleep and to wake."
    )
    answer_timeout_s: float = Field(
        120.0, gt=0, description="Longest silence of an engine that generates; it is replaced after that."
    )
    max_engine_restarts: int = Field(
        3,
        ge=0,
        description="How often an engine that failed is replaced in a row, without a finished text in between; what it "
        "was asked is asked again. The failure after that stops the run.",
    )
    max_logprob_gap: float | None = Field(
        None,
        gt=0,
        description="Largest mean difference, nats, between the engine's log-probs and the policy's own, over the "
        "first texts after each change of weights; null = 0.001 if the engine computes in fp32 and its weights travel "
        "in fp32 (runner.weight_sync_dtype), 0.1 with bf16 or fp16 in either.",
    )
    validate_save_dir: str | None = Field(
        None,
        min_length=1,
        description="Folder for what was compared where an engine's weights or log-probs differ from the policy's: "
        "weights_N.json (each tensor of transfer N as sent and as read) and logprobs_N.json (of the first texts, both "
        "sides). Of several processes each has a folder in it. null = the error alone.",
    )
    validate_weight: bool | None = Field(
        None,
        description="Compare version and checksum of each tensor that comes to a process which only collects "
        "(cluster.component_placement), before it acts; null = true. Of an engine each change of weights is compared "
        "anyway: true = write to validate_save_dir after the first transfer, too; null = false.",
    )
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
    trace: bool | Literal["first", "eval"] = Field(
        "first",
        description="Write traces of rollouts, who waited for whom, to trace/ in the run folder; the report and "
        "https://ui.perfetto.dev show them. first = of two iterations and two evaluations, at most 10 MB in all; "
        "true = of each rollout; eval = of each evaluation; false = none.",
    )
    policy_batch: int | None = Field(
        None,
        ge=1,
        description="Rows of one policy call; null = as many as there are slots, at most 8. Texts that are decoded at "
        "the same time, here or by an engine; null = as many as there are slots, at most 256.",
    )
    enforce_eager: bool = Field(
        True,
        description="false = replay policy calls as a CUDA graph, which has one batch shape (short batches are filled "
        "up), and of texts the step that gives each lane a token; on a CPU the calls stay as they are. An engine "
        "is told the same.",
    )
    recompute_logprobs: bool = Field(
        False,
        description="The old log-probs of the loss, and the values of a value head, are computed before the update by "
        "the network that is trained; false = those that were recorded. For decoders with another arithmetic. "
        "loss_type tis then weighs for the recorded ones; train/logprob_gap is the difference.",
    )
    vllm: VllmConfig = VllmConfig()
    channel: ChannelConfig = ChannelConfig(queue_name="action_buffer")

    def eager(self, rows: int) -> bool:
        """Returns whether policy calls of ``rows`` rows are computed without a CUDA graph."""
        return self.enforce_eager or (self.cuda_graph_max_bs is not None and rows > self.cuda_graph_max_bs)
