"""Whether training has seen the starts of an evaluation.

    runner.ckpt_path ─▶ config.yaml of its run: the plan of its iterations, its demonstrations ─▶ the run before it ─▶ …
    actor.model.model_path, lora_path ─▶ embodied.json: what its export has noted of the same

A start is known again by its task's instruction and its initial state. Starts that differ by their seeds alone were
never seen: training and evaluations draw no seed in common (:data:`embodied.runtime.plan.EVAL_SEEDS`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import index
from pathlib import Path
from typing import Any

import yaml

from embodied import schema
from embodied.data.lerobot.meta import episode_rows
from embodied.errors import ConfigError, EmbodiedError
from embodied.evaluation.kinds import kinds_of
from embodied.evaluation.results import MEANS
from embodied.lib.files import EXPORT_FILE, UNREADABLE, check_seal, folder_of, inside, read_json
from embodied.lib.spec_json import from_json
from embodied.lib.weights_folder import META_FILE
from embodied.protocols import SaysWhatKeysMean
from embodied.run.build.given import ConfiguredEnv
from embodied.runtime.plan import states_of_training, train_plan
from embodied.schema.keys.paths import leaves
from embodied.schema.keys.sections.env import EnvTrainConfig
from embodied.types import EnvSpec, Episode

NOTED = "starts"
"""Key under ``source`` of an exported folder's ``embodied.json``."""
MOST = 200_000
"""Starts that are counted one by one; a training with more has seen all that it could begin from."""


@dataclass(frozen=True)
class Trained:
    """The starts that a training began from."""

    run: str  # its name, or the folder that it is known from
    env: Mapping[str, Any] | None = None  # ``_target_`` and arguments; None: not known
    states: Mapping[str, int | None] | None = None  # instruction → how many initial states it has; None: not known
    drawn: Mapping[str, Sequence[int]] | None = None  # instruction → those that it began from; None: any it might
    held_out: int | None = None  # initial states of each task, the last ones, that it left out; None: not known

    def began_from(self, task: str, state: int, count: int, env: Mapping[str, Any]) -> bool | str:
        """Returns whether it began from an initial state of a task, or why that is not known.

        Args:
            count: initial states of the task.
            env: that is evaluated, ``_target_`` and arguments.
        """
        if self.env is None or self.states is None:
            left_out = count > 1 and self.held_out is not None and state >= count - self.held_out
            return False if left_out else f"which starts {self.run} had is not noted"
        if self.env["_target_"] != env["_target_"] or task not in self.states:
            return False
        if others := moved(self.env, env):
            return f"{self.run} had another {', '.join(others)}"
        if self.states[task] not in (None, count):
            return f"the task had {self.states[task]} initial states in {self.run}"
        if self.drawn is not None:
            return state in self.drawn.get(task, ())
        return state < count - (self.held_out or 0)


@dataclass(frozen=True)
class Seen:
    """How many starts of an evaluation training has seen."""

    seen: int
    starts: int
    unknown: int
    why: str  # why it is not known of some; empty if it is known of all

    @property
    def text(self) -> str:
        """The answer in words."""
        if self.unknown == self.starts:
            return f"unknown ({self.why})"
        known = {0: f"none of {self.starts}", self.starts: f"all {self.starts}"}
        rest = f", {self.unknown} unknown ({self.why})" if self.unknown else ""
        return known.get(self.seen, f"{self.seen} of {self.starts}") + f" starts{rest}"

    def as_json(self) -> dict[str, Any]:
        """Returns it as the evaluation's file has it."""
        return {**asdict(self), "text": self.text}


def seen(plan: Iterable[Episode], side: ConfiguredEnv, trained: Sequence[Trained]) -> Seen:
    """Returns how many starts of an evaluation's plan were seen in trainings."""
    env = {"_target_": side.config.target, **side.kwargs}
    pairs = list(dict.fromkeys((one.start.task_id, one.start.init_state_id, one.start.seed) for one in plan))
    by_seed = side.kind.has_steps
    found, reasons, times = 0, list[str](), Counter(side.spec.tasks)
    kinds = kinds_of(side.env)
    chosen_by = kinds.chosen_by if kinds else ()
    for task, state, _ in pairs:
        count = side.spec.num_init_states[task]
        if count == 1 and by_seed:
            continue
        text = side.spec.tasks[task]
        verdicts = [
            _doubted(one.began_from(text, state, count, env), one, times[text] > 1, chosen_by, env) for one in trained
        ]
        if True in verdicts:
            found += 1
        elif why := next((one for one in verdicts if isinstance(one, str)), None):
            reasons.append(why)
    return Seen(found, len(pairs), len(reasons), reasons[0] if reasons else "")


def _doubted(
    verdict: bool | str, trained: Trained, shared: bool, chosen_by: Sequence[str], env: Mapping[str, Any]
) -> bool | str:
    """Returns the verdict, or why it is not known whether a start that has the same words is the same: variations of a
    task may share them.

    Args:
        shared: several of the env's tasks have these words.
        chosen_by: arguments of ``env`` that choose variations.
    """
    before = trained.env
    if verdict is not True or before is None:
        return verdict
    if shared:
        return f"several tasks have the instruction of one that {trained.run} began from"
    if others := [key for key in chosen_by if before.get(key) != env.get(key)]:
        return f"{trained.run} had another {', '.join(others)}"
    return verdict


def seen_line(found: Seen | None) -> list[str]:
    """Returns the line for the head of the evaluation's table; none of answers in a file."""
    return [] if found is None else [f"seen in training: {found.text}"]


def moved(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Returns the arguments of an env that differ and may make other starts of equal numbers."""
    kind = schema.load_target(str(second["_target_"]), "env.eval._target_")
    still = (*MEANS, *(kind.keys_without_start if isinstance(kind, SaysWhatKeysMean) else ()))
    one, other = (dict(leaves("", side)) for side in (first, second))
    return [
        key for key in dict.fromkeys([*one, *other])
        if one.get(key) != other.get(key) and not any(key == name or key.startswith(f"{name}.") for name in still)
    ]  # fmt: skip


def of_run(config: schema.Config, side: ConfiguredEnv, iterations: int) -> list[Trained]:
    """Returns the trainings behind the weights of a run after some iterations, its own among them."""
    found = behind(config.model_dump(by_alias=True, mode="json"))
    if not config.runner.only_eval:
        found += _own(str(config.runner.experiment_name), config, side.spec, dict(side.kwargs), iterations)
    return found


def behind(config: Mapping[str, Any], later: Sequence[Path] = ()) -> list[Trained]:
    """Returns the trainings behind the weights that a run begins with: none behind those made at random."""
    if (checkpoint := config["runner"].get("ckpt_path")) is not None:
        return of_checkpoint(Path(checkpoint), later)
    paths = [config["actor"]["model"].get(key) for key in ("model_path", "lora_path")]
    return [one for path in paths if path is not None for one in _of_export(str(path))]


def of_checkpoint(checkpoint: Path, later: Sequence[Path] = ()) -> list[Trained]:
    """Returns all trainings behind a checkpoint, that of its own run last.

    Args:
        later: runs that went on from it.
    """
    run = checkpoint.absolute().parent.parent
    if run in later:
        return [Trained(str(checkpoint))]
    try:
        meta = read_json(inside(checkpoint, META_FILE))
        spec = from_json(meta["origin"]["env"])
        plain = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        config, simulator = schema.bind(plain), meta["origin"]["simulator"]
        return [
            *behind(plain, [*later, run]),
            *_own(run.name, config, spec, simulator["kwargs"], _whole(meta["iteration"])),
        ]
    except (*UNREADABLE, OSError, yaml.YAMLError, EmbodiedError):
        return [Trained(run.name)]


def _own(
    run: str, config: schema.Config, spec: EnvSpec, kwargs: Mapping[str, Any], iterations: int
) -> Iterator[Trained]:
    """Yields the trainings of a run itself: one for its episodes, one for each set of demonstrations."""
    if config.runner.task.supervised:
        yield from map(_of_demonstrations, config.data.train_data_paths)
        return
    yield from map(_of_demonstrations, config.algorithm.replay.demonstrations)
    held_out, side = config.protocol.held_out_states, config.env.train
    env = {"_target_": side.target, **kwargs}
    drawn = None if config.algorithm.dynamic_sampling else _drawn(config, spec, side, iterations)
    yield Trained(run, env, dict(zip(spec.tasks, spec.num_init_states, strict=True)), drawn, held_out)


def _drawn(config: schema.Config, spec: EnvSpec, side: EnvTrainConfig, iterations: int) -> dict[str, list[int]] | None:
    """The starts in the plans of iterations, as :class:`embodied.run.training.collector.Collector` makes them."""
    episodes, held_out = schema.episodes_per_iteration(config), config.protocol.held_out_states
    if iterations * episodes > MOST:
        return None
    found: dict[str, set[int]] = {}
    whole = sum(states_of_training(spec, held_out))
    for iteration in range(iterations):
        try:
            plan = train_plan(
                spec, seed=config.data_seed, iteration=iteration, episodes=episodes,
                group_size=config.algorithm.group_size, shared_start=side.use_fixed_reset_state_ids,
                env_seed=config.start_seed, shuffle=config.data.shuffle, drop_last=config.data.drop_last,
                held_out=held_out,
            )  # fmt: skip
        except ConfigError:
            return None
        for episode in plan:
            found.setdefault(spec.tasks[episode.start.task_id], set()).add(episode.start.init_state_id)
        if sum(map(len, found.values())) == whole:
            break
    return {task: sorted(states) for task, states in found.items()}


def _of_demonstrations(path: str) -> Trained:
    """Demonstrations that ``embodied.tools.demos`` made: each row has its start."""
    folder = Path(path)
    try:
        made = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        env = {key: value for key, value in made["env"]["train"].items() if key != "seed"}
        held_out = _whole(made["demos"].get("held_out_states", 0))
        drawn: dict[str, set[int]] = {}
        for row in episode_rows(folder):
            drawn.setdefault(str(row["tasks"][0]), set()).add(_whole(row["init_state_id"]))
        states = {task: sorted(own) for task, own in drawn.items()}
        return Trained(path, env, dict.fromkeys(drawn), states, held_out)
    except (*UNREADABLE, OSError, yaml.YAMLError, EmbodiedError):
        return Trained(path)


def _of_export(path: str) -> list[Trained]:
    """What an export has noted: the starts, or of an older one how many states were held out."""
    try:
        file = inside(folder_of(path), EXPORT_FILE)
        source = check_seal(file, read_json(file))["source"]
        if NOTED in source:
            return list(map(_noted, source[NOTED]))
        return [Trained(str(one["run"]), held_out=_whole(one["held_out_states"])) for one in source["trainings"]]
    except (*UNREADABLE, OSError, EmbodiedError):
        return [Trained(path)]


def _noted(one: Mapping[str, Any]) -> Trained:
    """A training as an export has noted it. Raises TypeError, ValueError or LookupError for what is none."""
    env, states, drawn, held_out = (one[name] for name in ("env", "states", "drawn", "held_out"))
    found = Trained(
        str(one["run"]),
        None if env is None else {**env, "_target_": str(env["_target_"])},
        None
        if states is None
        else {str(task): None if count is None else _whole(count) for task, count in states.items()},
        None if drawn is None else {str(task): list(map(_whole, own)) for task, own in drawn.items()},
        None if held_out is None else _whole(held_out),
    )
    for task, own in (found.drawn or {}).items():
        count = None if found.states is None else found.states[task]
        if count is not None and any(state >= count for state in own):
            raise ValueError(f"initial state {max(own)} of {count}")
    return found


def _whole(value: Any) -> int:
    """Returns a whole number of 0 or more. Raises TypeError or ValueError for what is none."""
    if isinstance(value, bool) or (found := index(value)) < 0:
        raise ValueError(f"{value!r} is no count")
    return found
