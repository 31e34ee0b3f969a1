"""Makes the env of each task once and says what it offers. Runs in a process of its own (:mod:`.facts`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from embodied.errors import AssetsMissingError, ConfigError, EmbodiedError
from embodied.lib.memory import own_memory

from ..shared.supervised import ANSWER, PHASE, closed, supervise, write_whole
from .calls import action_facts, to_action
from .facts import GymFacts
from .late import ProbedEnv, play_on, silent_of
from .settings import KEY, VECTOR_ENTRY_POINT, Making, Task
from .simulator import Simulator, make, prepare
from .sources import bounds_of, deep_copy, difference, entries, listed
from .vector_probe import describe_vector

_STEPS = 4
CLOSE_S = 5.0  # an env whose close() takes longer was tried all the same
Doing = Callable[[str], None]  # is told which call of the env comes next
_TRIAL = "import mujoco; c = mujoco.GLContext(64, 64); c.make_current(); print('works', flush=True)"


def main(given: Mapping[str, Any]) -> int:
    """Tries the envs that a request names, under supervision; what was found is left in its folder."""
    folder, doing = Path(given["folder"]), _Doing(Path(given["folder"], PHASE))
    tried: list[ProbedEnv] = []  # envs to play on, closed once the answer is known

    def work() -> str:
        own = os.getpid()
        found = answer(given["making"], given["remake"], doing, tried)
        if "error" not in found and os.getpid() == own:  # a fork by the env would put this over the whole answer
            write_whole(
                folder / ANSWER, json.dumps(found)
            )  # stays if the env fails, ends or hangs later in the episode
            found = {**found, **play_on(found, tried[0])}
        return json.dumps(found)

    def finish() -> None:
        for one in tried:
            doing("close()")
            one.env.close()

    return supervise(work, finish, folder, given["limit_s"], given["grace_s"])


class _Doing:
    """Leaves the call of the env that comes next in a file."""

    def __init__(self, file: Path) -> None:
        self._file, self._last = file, ""

    def __call__(self, call: str) -> None:
        if call != self._last:
            self._last = call
            write_whole(self._file, call)


def _nothing(call: str) -> None: ...


def answer(
    making: Mapping[str, Any], remake: bool, doing: Doing = _nothing, tried: list[ProbedEnv] | None = None
) -> dict[str, Any]:
    """Probes an env, in the child process; returns its facts, or an error, as JSON values. Arguments: those of
    :func:`describe`."""
    try:
        return asdict(describe(Making.of_json(making), remake, doing, tried))
    except EmbodiedError as error:
        return {"error": type(error).__name__, "message": error.message, "remedy": error.remedy}


@contextmanager
def _named(task: Task) -> Iterator[None]:
    """Says of an error of an env's code where it was raised. Raises :class:`ConfigError`."""
    try:
        yield
    except EmbodiedError:
        raise
    except ModuleNotFoundError as error:
        raise AssetsMissingError(
            f"{task.name} was tried and needs a package that is not installed here: {error}",
            "install it, or set env.python to the Python of an environment that has it",
        ) from error
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"{task.name} was tried and raised {said} (in {where.name}, {where.filename} line {where.lineno})",
            f"correct the env, or {KEY}: it was made, reset and stepped with random actions",
        ) from error


def describe(making: Making, remake: bool, doing: Doing = _nothing, tried: list[ProbedEnv] | None = None) -> GymFacts:
    """Probes each task's env: makes, resets and steps it.

    Args:
        tried: gets the env that was tried last, which stays open.

    Raises:
        EmbodiedError: an env cannot be made or does not do what an env does, or two tasks differ.
    """
    chosen = _gl(making)
    making = replace(making, variables={**making.variables, **chosen})
    prepare(making)
    import gymnasium

    imports = own_memory()
    if making.vectorization == VECTOR_ENTRY_POINT:
        with _named(making.tasks[0]):
            return describe_vector(making, tried)
    last = len(making.tasks) - 1
    found = [_describe(making, number, remake, doing, tried if number == last else None) for number in range(last + 1)]
    first = found[0]
    for task, other in zip(making.tasks, found, strict=True):
        for what, got, expected in (
            ("observations", _of(other, "obs"), _of(first, "obs")),
            ("actions", other["action"], first["action"]),
            ("pictures", other["frame"], first["frame"]),
        ):
            if got != expected:
                raise ConfigError(
                    f"the tasks of {KEY}.tasks have different {what}: {task.name} {_say(got)}, "
                    f"{making.tasks[0].name} {_say(expected)}",
                    "give them the same shapes with make_kwargs or wrappers, or train on them one by one",
                )
    return GymFacts(
        entries={name: kind for facts in reversed(found) for name, kind in facts["entries"].items()},
        action=first["action"],
        max_steps=max(facts["max_steps"] for facts in found),
        fps=first["fps"],
        threshold=first["threshold"] if len({facts["threshold"] for facts in found}) == 1 else None,
        frame=first["frame"],
        no_frame=first["no_frame"],
        differs=next((facts["differs"] for facts in found if facts["differs"]), ""),
        variables=making.variables,
        version=gymnasium.__version__,
        bounds=first["bounds"],
        whole=False,
        silent=tuple(dict.fromkeys(name for facts in found for name in facts["silent"])),
        memory=(imports, max(0, own_memory() - imports)),
    )


def _of(facts: Mapping[str, Any], root: str) -> dict[str, Any]:
    return {name: kind for name, kind in facts["entries"].items() if name.split(".")[0] == root}


def _say(what: Any) -> str:
    listable = isinstance(what, Mapping) and all(isinstance(kind, tuple) for kind in what.values())
    return listed(what) if listable else str(what)


def _describe(
    making: Making, number: int, remake: bool, doing: Doing, tried: list[ProbedEnv] | None
) -> dict[str, Any]:  # fmt: skip
    with _named(task := making.tasks[number]):
        one = replace(making, tasks=(task,))
        doing("gymnasium.make()")
        render = "render_mode" not in task.make_kwargs and _makes_pictures(one, doing)
        simulator = Simulator(one, render, remake=remake, doing=doing)
        found = _tried(simulator, task)
        if tried is None:
            doing("close()")
            closed(simulator.close, CLOSE_S)
        else:
            tried.append(ProbedEnv(simulator, partial(simulator.reset, 0, 0), partial(_drawn, simulator)))
        return found


def _tried(simulator: Simulator, task: Task) -> dict[str, Any]:
    frame, no_frame = None, "it has no render_mode rgb_array"
    seen = _play(simulator, 0)
    space, spec = simulator.env.action_space, getattr(simulator.env, "spec", None)
    limit = getattr(spec, "max_episode_steps", None) or _time_limit(simulator.env)
    action = action_facts(space, task.name)
    if simulator.env.render_mode in ("rgb_array", "rgb_array_list"):
        try:
            frame, no_frame = simulator.render().shape, ""
        except Exception as error:  # noqa: BLE001 (drivers and libraries raise anything)
            no_frame = " ".join(f"{type(error).__name__}: {error}".split())
    fps = float(simulator.env.metadata.get("render_fps") or 0)
    _play(simulator, 1)
    differs = difference(seen, _play(simulator, 0))
    found = {name: kind for step in seen for name, kind in entries("obs", step["obs"]).items()}
    found |= {name: kind for step in reversed(seen) for name, kind in entries("info", step["info"]).items()}
    return {
        "bounds": bounds_of("obs", getattr(simulator.env, "observation_space", None)), "silent": silent_of(seen),
        "entries": found, "action": action, "max_steps": limit, "fps": fps,
        "threshold": getattr(spec, "reward_threshold", None), "frame": frame, "no_frame": no_frame, "differs": differs,
    }  # fmt: skip


def _time_limit(env: Any) -> int:
    """The limit of the outermost gymnasium.wrappers.TimeLimit; 0 without one."""
    while env is not None:
        if type(env).__name__ == "TimeLimit":
            return int(env._max_episode_steps)
        env = getattr(env, "env", None)
    return 0


def _makes_pictures(making: Making, doing: Doing) -> bool:
    """Whether the env can be made with pictures; envs say so in many ways, so it is tried."""
    try:
        env = make(making.tasks[0], making, render=True)
        doing("close()")
        closed(env.close, CLOSE_S)
    except Exception:  # noqa: BLE001 (without pictures it is made again, and raises if that was not it)
        return False
    return True


def _play(simulator: Simulator, seed: int) -> list[dict[str, Any]]:
    """A short episode of random actions, the same each time."""
    simulator.reset(0, seed)
    simulator.env.action_space.seed(seed)
    seen = [simulator.values]
    for _ in range(_STEPS):
        if not simulator.ended:
            _drawn(simulator)
            seen.append(simulator.values)
    return [{name: deep_copy(value) for name, value in step.items()} for step in seen]


def _drawn(simulator: Simulator) -> None:
    """Makes a step of a random action."""
    space = simulator.env.action_space
    simulator.step(to_action(space, space.sample()))


def _gl(making: Making) -> dict[str, str]:
    """Chooses what MuJoCo renders with, where nobody has and there is no display."""
    if "MUJOCO_GL" in {**os.environ, **making.variables} or os.environ.get("DISPLAY") or find_spec("mujoco") is None:
        return {}
    for name in ("egl", "osmesa"):
        variables = {"MUJOCO_GL": name, "PYOPENGL_PLATFORM": name}
        try:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", "-c", _TRIAL],
                env={**os.environ, **variables}, capture_output=True, text=True, timeout=60, check=False,
            encoding="utf-8")  # fmt: skip
        except subprocess.TimeoutExpired:
            continue
        if "works" in done.stdout:
            return variables
    return {}
