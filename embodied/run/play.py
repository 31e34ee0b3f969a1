"""The recipe of ``embodied play``: one episode of an evaluation, to look at.

    Choice ─▶ episode_of: a start, and its place in the evaluation's plan
                 ├─ policy, random actions ─▶ Rollout ─┐
                 └─ the env's expert ─▶ a worker ──────┴─▶ a video or a conversation, success, return, steps

An episode that the evaluation has, too, is the same to the bit: same start, same noise, same batches of the policy. No
run folder is made.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from embodied.errors import ConfigError
from embodied.instructions import messages
from embodied.observe.reach import actions
from embodied.observe.terminal.console import Console
from embodied.observe.terminal.window import Window
from embodied.observe.video.video import Video
from embodied.parallel.group import Group
from embodied.run.build.given import Checked, ConfiguredEnv
from embodied.run.build.policy import sampling
from embodied.run.build.simulators import Simulators
from embodied.run.build.texts import Generations
from embodied.run.build.workers.pools import pool_config, reward_of
from embodied.run.evaluation.evaluator import job_of, planned
from embodied.run.evaluation.random_actions import RandomActions
from embodied.run.evaluation.successes import split_run
from embodied.run.memory.remedies import explained
from embodied.run.session import open_session
from embodied.runtime.channel import Command, Completion, Kind
from embodied.runtime.plan import EVAL_SEEDS, states_of_training
from embodied.runtime.pool.pool import Pool
from embodied.runtime.ports import Lost
from embodied.runtime.signals import StopSignal
from embodied.runtime.slab import Slab
from embodied.runtime.worker.expert import ExpertJob, expert_fields
from embodied.schema import Config
from embodied.types import Episode, EpisodeResult, Start, StepResult

UNTRAINED = (
    "the policy is untrained: its weights are random. Name the folder of a checkpoint in the command, e.g. "
    "runs/NAME/checkpoints/000004"
)


@dataclass(frozen=True)
class Choice:
    """The episode that the command line asks for, and who acts in it.

    Args:
        actor: "policy", "expert" or "random".
        task: the number of the task; None = 0.
        state: the initial state; None = the first that an evaluation of the task takes.
        seed: of the start; None = that of the evaluation's episode with this start.
        out: the file of the video; None = one below ``env.eval.video_cfg.video_base_dir``.
    """

    actor: str = "policy"
    task: int | None = None
    state: int | None = None
    seed: int | None = None
    out: Path | None = None
    live: bool = False  # show it in a window, too


def run(checked: Checked, console: Console, stop: StopSignal, choice: Choice) -> None:
    """Plays one episode, shows or records it, and says how it went.

    Raises:
        ConfigError: the start does not exist, the env has no expert, or a setting cannot be played.
        EvaluationError: the episode could not be run.
        WorkerError: the worker of the expert failed.
        Stopped: a signal came.
    """
    side = checked.eval
    _refuse(checked.config, side, checked.processes.size, choice)
    episode = episode_of(checked.config, side, choice)
    folder = Path(side.config.video_cfg.video_base_dir) / "play"
    video = side.kind.video(str(choice.out or folder / _name(episode.start, choice.actor)))
    episode = replace(episode, video=video)
    start, who = episode.start, {"expert": "the env's expert", "random": "random actions"}.get(choice.actor)
    drawn = actions(checked.config.algorithm.val_sampling_params.do_sample is True)
    rows = [
        ["task", f"{start.task_id}: {side.spec.tasks[start.task_id]}"],
        ["start", f"initial state {start.init_state_id}, seed {start.seed}"],
        ["played by", who or f"{checked.config.runner.ckpt_path or 'the policy that actor.model builds'}, {drawn}"],
        *([["limit", limit]] if (limit := side.kind.length(f"{side.max_steps} control steps", side.max_steps)) else []),
    ]
    console.table("one episode", rows)
    if checked.config.runner.dry_run:
        return
    if choice.actor == "expert":
        result = _by_expert(checked.config, side, checked.processes, episode, folder, console, choice.live)
        texts: list[dict[str, Any]] = []
    else:
        result, texts = _by_rollout(checked, episode, folder, console, choice)
    for line in result_lines(result, texts):
        print(line)


def episode_of(config: Config, side: ConfiguredEnv, choice: Choice) -> Episode:
    """Returns the episode of the evaluation's plan that begins as chosen; if it has none, one with a number of its own.

    Raises:
        ConfigError: there is no such task or initial state, or the seed is below 0.
    """
    spec, plan = side.spec, planned(config, side)
    task = choice.task or 0
    _check_range("--task", task, len(spec.tasks), "tasks")
    states = spec.num_init_states[task]
    if choice.state is not None:
        _check_range("--state", choice.state, states, f"initial states of task {task}")
    if choice.seed is not None and choice.seed < 0:
        raise ConfigError(f"--seed {choice.seed} is below 0", "give 0 or more, e.g. a seed of eval/*.json of a run")
    for episode in plan:
        start = episode.start
        if start.task_id == task and choice.state in (None, start.init_state_id) and choice.seed in (None, start.seed):
            return episode
    held_out = config.protocol.held_out_states
    first = states_of_training(spec, held_out)[task] if held_out and states > 1 else 0
    state = first if choice.state is None else choice.state
    seed = EVAL_SEEDS + config.env.eval.seed + max(0, state - first) if choice.seed is None else choice.seed
    return Episode(len(plan), len(plan), Start(task, state, seed))


def result_lines(result: EpisodeResult, texts: list[dict[str, Any]]) -> list[str]:
    """Returns the lines that tell of an episode: its conversation or its video, and how it went."""
    lines = []
    for text in texts:
        prompt = text["prompt"]
        spoken = prompt if isinstance(prompt, list) else messages(prompt) or [{"role": "user", "content": prompt}]
        for one in [*spoken, {"role": "assistant", "content": text["response"]}]:
            lines += [f"--- {one['role']}", str(one["content"])]
        lines.append("---")
    return [
        *lines,
        f"success: {'yes' if result.success else 'no'}",
        f"return:  {result.episode_return:.4g}",
        f"{'turns' if texts else 'steps'}:   {result.num_steps}",
        *([f"video:   {file}"] if (file := result.episode.video) and Path(file).is_file() else []),
    ]


def _refuse(config: Config, side: ConfiguredEnv, size: int, choice: Choice) -> None:
    wrong = {
        "perturbations (perturb) are of whole evaluations": bool(side.conditions),
        "a file of answers (runner.answers) has no policy": config.runner.answers is not None,
        "runner.selftest evaluates several times": config.runner.selftest,
        f"WORLD_SIZE is {size}, and one episode takes one process": size > 1,
    }
    for what, is_so in wrong.items():
        if is_so:
            raise ConfigError(f"one episode is played, and {what}", "leave it out, or run embodied eval")
    sampling(config.algorithm.val_sampling_params)  # refuses do_sample=both
    printed = "leave it out: the texts are printed"
    if choice.out is not None:
        side.kind.refuse_texts(ConfigError(f"--out {choice.out}: an env of texts has no video", printed))
    if choice.live:
        side.kind.refuse_texts(ConfigError("--live: an env of texts has no pictures", printed))
    if choice.live:
        Window("embodied play").close()
    if choice.out is not None and choice.out.suffix != ".mp4":
        raise ConfigError(f"--out {choice.out} is no name of an mp4 file", f"write {choice.out.with_suffix('.mp4')}")
    if choice.actor == "expert" and side.kind.expert(side.env) is None:
        known = getattr(side.env, "experts", None)
        raise ConfigError(
            f"{side.config.target} has no expert for these tasks" + (f"; it has one for {known}" if known else ""),
            "leave out --expert, or choose another env",
        )


def _check_range(option: str, given: int, count: int, what: str) -> None:
    if not 0 <= given < count:
        raise ConfigError(f"{option} {given}: there are {count} {what}", f"give a number from 0 to {count - 1}")


def _name(start: Start, actor: str) -> str:
    by = "" if actor == "policy" else f"_{actor}"
    return f"task{start.task_id:02d}_start{start.init_state_id:02d}_seed{start.seed}{by}.mp4"


def _by_rollout(
    checked: Checked, episode: Episode, folder: Path, console: Console, choice: Choice
) -> tuple[EpisodeResult, list[dict[str, Any]]]:
    """Plays with the policy or with random actions; returns the result, and what was said in an env of texts."""
    side, config, processes = checked.eval, checked.config, checked.processes
    random = partial(RandomActions, side.spec, config.runner.seed) if choice.actor == "random" else None
    with ExitStack() as opened:
        session = opened.enter_context(open_session(checked, console, folder=folder, stand_in=random, played=[]))
        reporter, model = session.reporter, session.model
        if random is None and model.policy.spec.random_weights and config.runner.ckpt_path is None:
            console.say(UNTRAINED)
        engine = None if random is not None else opened.enter_context(session.engine())
        simulators = Simulators(
            config,
            checked.sides,
            processes.of("rollout"),
            model,
            folder,
            reporter,
            session.server,
            engine,
            is_run=False,
        )
        workers = opened.enter_context(closing(simulators.open(side, rows=2, own_slots=1, live=choice.live)))
        texts = Generations(side.spec, workers.slab.arrays, side.kind.kept_texts(episode.episode_id + 1))
        opened.enter_context(explained(model.device, config, processes, "rollout"))
        opened.enter_context(model.sharding.acting())
        results, _ = workers.run([episode], job_of(config, side, 0, 1), "episode", reporter, texts)
    return split_run(results)[0][0], texts.kept


def _by_expert(
    config: Config, side: ConfiguredEnv, processes: Group, episode: Episode, folder: Path, console: Console, live: bool
) -> EpisodeResult:  # fmt: skip
    """Lets the env's expert play, without noise, in a worker of its own."""
    start = episode.start
    with ExitStack() as opened:
        own = Slab.create(expert_fields(side.spec), 1, f"{config.env.channel.name}.slab")
        slab = opened.enter_context(closing(own))
        usual = pool_config(side, 1, config, folder / "logs", processes)
        wanted = replace(usual, num_workers=1, batch=False, expert=ExpertJob(config.runner.seed, 0.0), live=live)
        with console.progress("starting an env worker", brief=True):
            pool = opened.enter_context(closing(Pool(wanted, slab, console.say)))
        opened.enter_context(console.progress("the expert plays", brief=True))
        reward = reward_of(side.config)
        reward.begin()
        paid, steps, got, best = 0.0, 0, StepResult(0.0, False, False), 0.0
        command = Command(
            Kind.RESET, 0, task_id=start.task_id, init_state_id=start.init_state_id, seed=start.seed,
            max_steps=side.max_steps, video=True, attempt=0,
        )  # fmt: skip
        assert episode.video is not None
        video = side.config.video_cfg
        pool.send(command, Video(episode.video, video.info_on_video, video.interval or 1))
        while True:
            for event in pool.recv(1):
                if isinstance(event, Lost):
                    raise event.error
                if not isinstance(event, Completion):
                    continue
                for k in range(event.num_steps if event.kind == Kind.EXPERT else 0):
                    got = _step_at(slab, k)  # the first success is the last step
                    paid, steps, best = paid + reward(got), steps + 1, max(best, got.reward)
                if event.ended:
                    return EpisodeResult(
                        episode, (), paid, got.success, steps, got.terminated, got.truncated, progress=best,
                        solved_at=steps if got.success else 0,
                    )  # fmt: skip
                pool.send(Command(Kind.EXPERT, 0, row=0))


def _step_at(slab: Slab, k: int) -> StepResult:
    """Returns the result of control step ``k`` of the row that the expert has filled."""
    reward, success, terminated, truncated = (
        slab.arrays[name][0, k].item() for name in ("rewards", "successes", "terminated", "truncated")
    )
    return StepResult(reward, terminated, success, truncated=truncated)
