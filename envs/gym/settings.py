"""What makes an env, as the configuration says it; goes to the process that asks the env and to the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from embodied.errors import ConfigError, UnknownKeyError, did_you_mean
from embodied.types import ActionSpec, DiscreteAction

KEY = "env.train"
SYNC, ASYNC, VECTOR_ENTRY_POINT = VECTORIZATIONS = ("sync", "async", "vector_entry_point")
_TASK_KEYS = ("id", "entry_point", "make_kwargs", "instruction")


@dataclass(frozen=True)
class Task:
    """How one task's env is made (id or entry point, arguments), and its instruction."""

    id: str | None
    entry_point: str | None
    make_kwargs: Mapping[str, Any]
    instruction: str | None  # None = the name of the env

    @property
    def name(self) -> str:
        """The env's name without namespace and version, for messages and as the default instruction."""
        name = self.id.rsplit("/", 1)[-1].split(":")[-1] if self.id else str(self.entry_point).rsplit(".", 1)[-1]
        return name.rsplit("-v", 1)[0]


@dataclass(frozen=True)
class Making:
    """How the envs of all tasks are made: tasks, imports, wrappers, environment variables."""

    tasks: tuple[Task, ...]
    imports: tuple[str, ...] = ()
    wrappers: tuple[Mapping[str, Any], ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    vectorization: str | None = None  # some of VECTORIZATIONS: all slots of a worker in one vector env

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Making:
        """Reads it back from the JSON of ``dataclasses.asdict``."""
        tasks = tuple(Task(**task) for task in values["tasks"])
        return cls(
            tasks, tuple(values["imports"]), tuple(values["wrappers"]), values["variables"], values.get("vectorization")
        )


def making_of(
    id: str | None, entry_point: str | None, make_kwargs: Mapping[str, Any], instruction: str | None,
    tasks: Sequence[str | Mapping[str, Any]] | None, imports: Sequence[str], wrappers: Sequence[Any],
    variables: Mapping[str, str], vectorization: str | None = None,
) -> Making:  # fmt: skip
    """Makes the description of how envs are made from the configuration keys of a side.

    Raises:
        ConfigError: no env is named, or two are for one task; ``vectorization`` is none of those that are.
        UnknownKeyError: a key of a task or a wrapper.
    """
    _check_list("imports", imports, "[metaworld]")
    _check_list("wrappers", wrappers, "[gymnasium.wrappers.ClipAction]")
    if vectorization is not None and vectorization not in VECTORIZATIONS:
        raise ConfigError(
            f"{KEY}.vectorization is {vectorization!r}.{did_you_mean(str(vectorization), VECTORIZATIONS)}",
            f"set {KEY}.vectorization to one of {', '.join(VECTORIZATIONS)}, or to null: an env for each slot",
        )
    common: dict[str, Any] = {
        "id": id,
        "entry_point": entry_point,
        "make_kwargs": dict(make_kwargs),
        "instruction": instruction,
    }
    if tasks is None:
        found = [_task(common, KEY)]
    else:
        _check_list("tasks", tasks, "[CartPole-v1]")
        if not tasks:
            raise ConfigError(f"{KEY}.tasks is empty", f"name one task or more, or set {KEY}.tasks=null")
        found = [_task(_joined(common, task, number), f"{KEY}.tasks[{number}]") for number, task in enumerate(tasks)]
    wrapping = tuple(_wrapper(entry, number) for number, entry in enumerate(wrappers))
    texts = {name: str(value) for name, value in variables.items()}
    return Making(tuple(found), tuple(imports), wrapping, texts, vectorization)


def check_interventions(action: ActionSpec, vectorization: str | None) -> None:
    """Refuses interventions where no human can override an action. Raises :class:`ConfigError`."""
    if vectorization is not None:
        raise ConfigError(
            f"{KEY}.interventions is true and {KEY}.vectorization {vectorization}: a human overrides one env, and "
            "those of a vector env are stepped together",
            f"set {KEY}.vectorization=null",
        )
    if isinstance(action, DiscreteAction):
        raise ConfigError(
            f"{KEY}.interventions is true, and the env takes one of {action.num_actions} actions",
            f"leave {KEY}.interventions out: what a human overrides is an action of several numbers",
        )


def check_together(making: Making, remake: bool, expert: str | None) -> None:
    """Refuses keys that do not work in a vector env of several slots. Raises :class:`ConfigError`."""
    wrong = {
        "several tasks": len(making.tasks) > 1,
        f"{KEY}.remake=true": remake,
        f"{KEY}.expert": expert is not None,
    }
    if found := [what for what, is_so in wrong.items() if is_so]:
        raise ConfigError(
            f"{KEY}.vectorization={VECTOR_ENTRY_POINT} goes with one task that is reset in place, without an expert; "
            f"there is {', '.join(found)}",
            f"leave it out, or set {KEY}.vectorization={ASYNC}, which makes an env for each slot",
        )


def _joined(common: Mapping[str, Any], task: str | Mapping[str, Any], number: int) -> dict[str, Any]:
    own: dict[str, Any] = {"id": task} if isinstance(task, str) else dict(task)
    _check_keys(own, _TASK_KEYS, f"{KEY}.tasks[{number}]")
    joined = {**common, **own, "make_kwargs": {**common["make_kwargs"], **(own.get("make_kwargs") or {})}}
    for name, other in (("id", "entry_point"), ("entry_point", "id")):
        if own.get(name):
            joined[other] = own.get(other)
    return joined


def _task(found: Mapping[str, Any], key: str) -> Task:
    if bool(found["id"]) == bool(found["entry_point"]):
        given = "both an id and an entry_point" if found["id"] else "neither an id nor an entry_point"
        raise ConfigError(
            f"{key} has {given}",
            f"set {KEY}.id to a registered env, e.g. env=gym env.train.id=CartPole-v1, or entry_point to the "
            "dotted path of a function that makes one",
        )
    return Task(found["id"], found["entry_point"], found["make_kwargs"], found["instruction"])


def _wrapper(entry: Any, number: int) -> Mapping[str, Any]:
    given: dict[str, Any] = {"target": entry} if isinstance(entry, str) else dict(entry)
    _check_keys(given, ("target", "kwargs"), f"{KEY}.wrappers[{number}]")
    if not isinstance(given.get("target"), str):
        raise ConfigError(
            f"{KEY}.wrappers[{number}] names no target",
            "write {target: gymnasium.wrappers.RescaleAction, kwargs: {min_action: -1, max_action: 1}}",
        )
    return {"target": given["target"], "kwargs": dict(given.get("kwargs") or {})}


def _check_keys(given: Mapping[str, Any], known: Sequence[str], key: str) -> None:
    for name in given:
        if name not in known:
            message = f"unknown key '{key}.{name}'.{did_you_mean(name, known)}"
            raise UnknownKeyError(message, f"use some of: {', '.join(known)}")


def _check_list(name: str, got: Any, example: str) -> None:
    if isinstance(got, str) or not isinstance(got, Sequence):
        raise ConfigError(f"{KEY}.{name} is {got!r}, expected a list", f"set {KEY}.{name}={example}")
