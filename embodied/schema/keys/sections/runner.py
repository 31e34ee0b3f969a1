"""Sections of the run: its folder, its length, its processes."""

from __future__ import annotations

import inspect
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from embodied.errors import ConfigError
from embodied.lib.targets import load_target
from embodied.schema.keys.base import Precision, Section
from embodied.schema.keys.names import Names
from embodied.schema.keys.sections.checkpoint import CheckpointConfig
from embodied.schema.keys.sections.task_type import TaskType, task_of

TRACKERS = ("jsonl", "tensorboard", "wandb", "swanlab", "mlflow", "trackio")
DEFAULT_SEED = 1234
_BACKENDS_KEY = "runner.logger.logger_backends"


def _tracker(name: str) -> str:
    """Checks a tracker's name: one of ours, or the dotted path of a user's class with a tracker's arguments."""
    if name in TRACKERS:
        return name
    if "." not in name:
        known = " or ".join(map(repr, TRACKERS))
        raise PydanticCustomError(
            "literal_error", "Input should be {expected}, or the dotted path of a class", {"expected": known}
        )
    made = load_target(name, _BACKENDS_KEY)
    try:
        inspect.signature(made).bind("folder", "resume_step", "run_id")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{_BACKENDS_KEY}: {name} cannot be called with (folder, resume_step, run_id): {error}",
            "give it these three arguments; docs/how_to/add_a_tracker.md has an example",
        ) from error
    return name


class LoggerConfig(Section):
    log_path: str = Field(description="Folder of one run: metrics, checkpoints, configuration, worker logs.")
    logger_backends: list[Annotated[str, Names(TRACKERS), AfterValidator(_tracker)]] = Field(
        ["jsonl", "tensorboard"],
        description="Trackers that metrics are written to: jsonl, tensorboard, wandb, swanlab, mlflow, trackio "
        "(docs/trackers.md; the last four need the extra of their name), or the dotted path of a class of yours "
        "(docs/how_to/add_a_tracker.md).",
    )
    project_name: str = Field(
        "embodied",
        min_length=1,
        description="Project (mlflow: experiment) of the run in wandb, swanlab, mlflow and trackio; its name there is "
        "runner.experiment_name.",
    )
    group_name: str | None = Field(
        None,
        min_length=1,
        description="Group of runs in wandb, swanlab and trackio, and the tag 'group' in mlflow, e.g. one run with "
        "several seeds; null = none.",
    )
    report: bool = Field(
        True,
        description="Write report.html into the run folder: refreshed after each evaluation and written at the end "
        "(docs/report.md). Needs the extra 'report'.",
    )
    log_val_generations: int = Field(
        0,
        ge=0,
        description="Text: answers of each evaluation that are written to generations/ in the run folder, with prompt "
        "and reward, and to the trackers that take tables (docs/trackers.md).",
    )


class ProfilerConfig(Section):
    """Settings of torch's profiler and of Nsight Systems."""

    enable: bool = Field(
        False,
        description="Record some iterations with torch's profiler; profile/ in the run folder has a trace of each "
        "process, which ui.perfetto.dev opens. Recorded iterations are slower.",
    )
    wait_steps: int = Field(1, ge=0, description="Iterations before it begins.")
    warmup_steps: int = Field(1, ge=0, description="Iterations that it watches and does not record.")
    active_steps: int = Field(1, ge=1, description="Iterations that it records.")
    rank_filter: list[Annotated[int, Field(ge=0)]] = Field(
        [0], description="Processes (ranks) that record; [] = all of them."
    )
    record_shapes: bool = Field(False, description="Record the shapes of tensors.")
    profile_memory: bool = Field(False, description="Record what memory tensors take.")
    with_stack: bool = Field(False, description="Record where in the code each operation was called.")
    with_modules: bool = Field(False, description="Record the modules that operations belong to.")
    nsys: bool = Field(
        False,
        description="Mark the phases of iterations (rollout, policy, waiting, update, evaluation, save) as NVTX ranges "
        "for Nsight Systems: nsys profile -t cuda,nvtx python -m embodied.train …. Needs a GPU. Other keys of the "
        "profiler are not for it.",
    )


class RunnerConfig(Section):
    experiment_name: str | None = Field(
        None,
        min_length=1,
        description="Name of the run and of its folder in runner.output_dir; null joins the chosen env, model and "
        "algorithm.",
    )
    run_id: str | None = Field(
        None,
        pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]*)?$",
        max_length=64,
        coerce_numbers_to_str=True,
        description="Id of this run among those of one name. The name becomes NAME-ID, and with it the run's folder; "
        "trackers know the run by the id, which has to be new in their project. null = none: the name alone, and an "
        "id that the tracker makes up.",
    )
    trace_verbosity: Literal[0, 1, 2] | None = Field(
        None,
        description="Another name of rollout.trace: 0 = false, 1 = eval, 2 = true; null = what rollout.trace says.",
    )
    task_type: Literal["embodied", "math", "sft", "demos"] = Field(
        "embodied",
        description="embodied = reinforcement learning; math = the same with an env that takes text; sft = learning "
        "from demonstrations; demos = making them. The entries embodied.train, embodied.sft and embodied.tools.demos "
        "set it.",
    )
    output_dir: str = Field("runs", description="Folder that holds all runs.")
    seed: int = Field(
        DEFAULT_SEED,
        ge=0,
        description="Seed of the whole run: plan of episodes, scenes of training, sampling noise, initial weights, "
        "minibatch order.",
    )
    max_epochs: int = Field(10, ge=0, description="Iterations (collect → update) before training ends.")
    max_steps: int = Field(
        -1, ge=-1, description="Iterations at most, whatever max_epochs says; the schedule of the learning rate counts "
        "these. -1 = max_epochs.",
    )  # fmt: skip
    seq_length: int | None = Field(
        None,
        ge=2,
        description="Text: longest prompt and answer together, tokens: sets actor.model.max_new_tokens to what the "
        "longest prompt leaves of it, and more is refused; null = the model's own limits.",
    )
    val_check_interval: int = Field(
        -1, ge=-1, description="Iterations between two evaluations; -1 = none. The last iteration is evaluated too."
    )
    val_before_train: bool = Field(False, description="Evaluate before the first iteration, too (step 0).")
    weight_sync_interval: int = Field(
        1,
        ge=1,
        description="Iterations between two in which what acts in training takes the weights that learn: of 3, "
        "iterations 1, 2 and 3 act with the first weights, 4, 5 and 6 with those that 3 has left (with "
        "algorithm.max_staleness those that 2 has left). Evaluations always have the present weights.",
    )
    weight_sync_dtype: Precision | None = Field(
        None, description="Beside an engine (rollout.backend=vllm): number format in which weights travel to it. It "
        "computes in actor.model.precision all the same; null = that format. One with fewer bits is less to send, and "
        "rounds the weights that act, not those that learn. rollout.max_logprob_gap then is 0.1 nats by default, not "
        "0.001, and rollout.recompute_logprobs=true takes old log-probs from the weights that learn. Without an engine "
        "nothing travels, and a value is refused.",
    )  # fmt: skip
    save_interval: int = Field(10, ge=-1, description="Iterations between two checkpoints; -1 = only at the end.")
    save_interval_s: float | None = Field(
        None,
        gt=0,
        description="Also save when this many seconds have passed since the checkpoint before (or the start): at the "
        "end of an iteration, in supervised training after an optimizer step; null = off.",
    )
    stop_timeout_s: float = Field(
        20.0,
        gt=0,
        description="Time in which a run ends after SIGTERM or Ctrl-C: an update that would take more than half of it "
        "is cut short between two passes, the other half is for saving. torchrun and most schedulers grant 30 s.",
    )
    enable_dynamic_batch_size: bool = Field(
        False,
        description="Text: fill the passes of an update by tokens (max_tokens_per_mbs) instead of by records alone.",
    )
    max_tokens_per_mbs: int = Field(
        2048,
        ge=1,
        description="With enable_dynamic_batch_size: most tokens of a forward and backward pass of a process, prompts "
        "included; actor.micro_batch_size still bounds its records. A longer text has a pass of its own.",
    )
    only_eval: bool = Field(False, description="Evaluate and stop; no training.")
    answers: str | None = Field(
        None,
        min_length=1,
        description="Text, embodied.eval: a file of answers (.jsonl, .json, .csv, .parquet) to verify in place of a "
        "model's; each row has a response (or responses) and names its problem by prompt, problem (its row in "
        "the file, from 0) or start (as generations/ does). answers=FILE is short for it.",
    )
    selftest: bool = Field(
        False,
        description="embodied.eval: evaluate with two numbers of envs, two schedules and, where there are two, two "
        "renderers, and say how much the episodes differ. selftest=true is short for it.",
    )
    dry_run: bool = Field(
        False,
        description="Compose, check, count the policy and its passes, print the derived numbers with the memory that "
        "the run will take, exit. What cannot fit is refused. Of more than 1 GiB of tensors only sizes are worked out.",
    )
    device_memory_gib: float | None = Field(
        None,
        gt=0,
        description="dry_run: memory of the GPU that the run is planned for, GiB, whatever this machine has; null = "
        "this machine's.",
    )
    resume_dir: str | None = Field(
        "auto",
        description="Checkpoint folder to go on from; auto = newest complete one of this run; null = start anew, "
        "refusing a folder that has checkpoints.",
    )
    ckpt_path: str | None = Field(
        None,
        description="Checkpoint folder whose weights are loaded at the start (evaluation, or training from other "
        "weights). A value head that it lacks begins anew; one that the policy lacks is left out.",
    )
    first: list[str] = Field(
        [],
        description="Arguments of a supervised run (python -m embodied.sft) that is made before this one, in first/ of "
        "the run folder; training begins with the weights of its last checkpoint. [] = none.",
    )
    deterministic: bool = Field(
        True,
        description="Policy batches of one fixed shape, so that the order in which workers finish changes no number.",
    )
    max_bad_updates: int = Field(
        3, ge=1, description="Updates in a row that may be skipped for a loss or gradient that is not finite."
    )
    device: Annotated[str, Names(("auto", "cpu", "cuda"))] = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="Where the policy runs: auto (a GPU if there is one), cpu, cuda, cuda:1 …",
    )
    num_threads: int = Field(
        1,
        ge=1,
        description="CPU threads of the policy's process. More than one beside busy simulators is many times slower "
        "(for training alone: actor.num_threads).",
    )
    peak_tflops: Literal["measure"] | Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="What the device could do, 10¹² floating-point operations a second; measure = what a square matrix "
        "product reaches when the run starts. Training is compared with it (time/train_mfu); null = no such metric.",
    )
    logger: LoggerConfig
    checkpoint: CheckpointConfig = CheckpointConfig()
    profiler: ProfilerConfig = ProfilerConfig()

    @property
    def task(self) -> TaskType:
        """The properties of a run that follow from ``task_type``."""
        return task_of(self.task_type)


def check_name(runner: RunnerConfig) -> None:
    """Raises :class:`ConfigError` if the run's name would put its folder outside of ``runner.output_dir``."""
    name = PurePath(runner.experiment_name or "run")
    if name.is_absolute() or ".." in name.parts or not name.parts or name.parts[0].startswith("~"):
        folder = f"runner.output_dir={name.parent} " if name.parent.name else ""
        raise ConfigError(
            f"runner.experiment_name is {runner.experiment_name}, expected a name for a folder in runner.output_dir",
            f"set {folder}runner.experiment_name={name.name.strip('.~') or 'NAME'}",
        )
