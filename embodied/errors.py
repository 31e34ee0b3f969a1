"""One exception class per cause. Each says what happened, what was got and expected, and the fix.

The entries (``embodied.train``, ``embodied.eval``) print ``message`` and ``remedy`` without a Python traceback and exit
with status 2; anything that is not an :class:`EmbodiedError` is a defect of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise


class EmbodiedError(Exception):
    """Base of all errors a user can meet.

    Args:
        message: what happened, with the values that were got and expected.
        remedy: the fix: a command to run, or a key to change and to what.
    """

    others: Sequence[EmbodiedError] = ()
    """What else stands against the same command (:func:`refuse`)."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.remedy}"


class ConfigError(EmbodiedError):
    """A configuration value is missing, of the wrong type, impossible, or contradicts another one."""


class UnknownKeyError(ConfigError):
    """A key that no part of the program reads."""


class UnknownNameError(ConfigError):
    """A name (suite, task, loss, schedule …) that is not among the known ones."""


class AssetsMissingError(EmbodiedError):
    """A simulator's package, meshes, textures or initial states are not on this machine."""


class RendererUnavailableError(EmbodiedError):
    """No way to render without a display was found."""


class SpecMismatchError(EmbodiedError):
    """The env and the policy do not fit: cameras, state, action dimension, or a value out of its declared spec."""


class WorkerError(EmbodiedError):
    """An env worker process failed; ``detail`` holds its traceback or the tail of its log."""

    def __init__(self, message: str, remedy: str, detail: str = "") -> None:
        super().__init__(message, remedy)
        self.args = (message, remedy, detail)
        self.detail = detail

    def __str__(self) -> str:
        shown = f"\n{self.detail.rstrip()}\n" if self.detail else "\n"
        return f"{self.message}{shown}  fix: {self.remedy}"

    @property
    def summary(self) -> str:
        """The message, with the first line of the exception that ended the process if ``detail`` is its traceback."""
        lines = self.detail.splitlines() if self.detail.startswith("Traceback ") else []
        raised = [line for before, line in pairwise(lines) if before.startswith(" ") and not line.startswith(" ")]
        return f"{self.message}: {raised[-1]}" if raised else self.message


class WorkerDiedError(WorkerError):
    """An env worker process ended without being told to."""


class WorkerHungError(WorkerError):
    """An env worker did not answer within its deadline."""


class EnvsDifferError(EmbodiedError):
    """An env is another than that of the launcher or of a checkpoint: other tasks, files, observations or actions."""


class EngineError(WorkerError):
    """The process of an inference engine failed, did not answer in time, or computes other numbers."""


def is_explained(error: BaseException) -> bool:
    """Returns whether an env, or what it needs, has said what is wrong, which then is no failure of its process."""
    return isinstance(error, EmbodiedError) and not isinstance(error, WorkerError)


class RunFolderError(EmbodiedError):
    """The run's folder cannot be written, or holds a run of another configuration."""


class EvaluationError(EmbodiedError):
    """An evaluation's file is missing or damaged, or cannot be compared with another."""


class CheckpointError(EmbodiedError):
    """A checkpoint is missing, damaged, of another model, or cannot be written."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint's files are not those that were written: their checksums or sizes differ."""


class DatasetError(EmbodiedError):
    """Demonstrations are missing, empty, damaged, or in a layout that is not known."""


class UploadError(EmbodiedError):
    """An exported folder could not be sent to the place that it was meant for."""


class RankError(EmbodiedError):
    """Another process of the run has ended, or did not come to where all must meet."""


class RanksDifferError(EmbodiedError):
    """The processes of a run hold different weights."""


class ClusterError(EmbodiedError):
    """A node of the cluster cannot take part in a run, or the cluster has not what the run asks for."""


class DeviceMemoryError(EmbodiedError):
    """The device has not enough memory for the chosen sizes."""


class WireError(EmbodiedError):
    """A message between a robot and a policy server cannot be written or read."""


class RequestError(EmbodiedError):
    """A policy server cannot answer a request; ``kind`` is one of ``embodied.client.wire.ERROR_KINDS``."""

    def __init__(self, message: str, remedy: str, kind: str = "request") -> None:
        super().__init__(message, remedy)
        self.args = (message, remedy, kind)
        self.kind = kind


class NumericalError(EmbodiedError):
    """Loss or gradients were not finite for too many updates in a row."""


class ServerLostError(EmbodiedError):
    """A policy server cannot be reached, has closed the connection, or does not answer in time."""


class ServerRefusedError(EmbodiedError):
    """A policy server refuses the client's token or its request, or serves another policy than before."""


class PolicyChangedError(EmbodiedError):
    """What answers behind a policy server is another policy than before: its episodes cannot be counted together."""


class DelayError(EmbodiedError):
    """A policy server's answers come too late for the number of actions that are executed of a chunk."""


class GuardStopError(EmbodiedError):
    """The robot-side guard has stopped the robot."""


class SafeStopError(EmbodiedError):
    """A robot's safe-stop hook cannot be started, failed, or took too long: how the robot stands is not known."""


class Stopped(BaseException):
    """The user or the machine's scheduler wants the run to end (SIGTERM, Ctrl-C); no failure of anything."""


def printed(error: EmbodiedError) -> str:
    """Returns what a command prints of an error: its message with the fix, its notes, and by which name
    ``embodied explain`` and docs/troubleshooting.md know it.

    >>> print(printed(UnknownKeyError("unknown key 'runner.sed'", "write runner.seed")))
    error: unknown key 'runner.sed'
      fix: write runner.seed
      kind: UnknownKeyError (embodied explain UnknownKeyError)
    """
    name = type(error).__name__
    lines = [f"error: {error}", *getattr(error, "__notes__", ()), f"  kind: {name} (embodied explain {name})"]
    return "\n".join([*lines, *map(printed, error.others)])


def broken(rules: Iterable[Callable[[], object]]) -> list[EmbodiedError]:
    """Calls each rule before it takes the next; returns the errors, equal ones once.

    Raises:
        Exception: a rule meets what it does not expect. After an error that is taken for a consequence, and left out.
    """
    found: dict[str, EmbodiedError] = {}
    for rule in rules:
        try:
            rule()
        except EmbodiedError as error:
            found.setdefault(str(error), error)
        except Exception:
            if not found:
                raise
    return list(found.values())


def refuse(found: Sequence[EmbodiedError]) -> None:
    """Raises the first of several errors, which has the others with it; nothing if there are none."""
    if found:
        found[0].others = found[1:]
        raise found[0]


def did_you_mean(got: str, known: Iterable[str]) -> str:
    """`` Did you mean 'x'?`` for the nearest of ``known``, else an empty string.

    >>> did_you_mean("value_hed", ["value_head"]), did_you_mean("max_lr", ["min_lr"])
    (" Did you mean 'value_head'?", '')
    """
    near = nearest(got, known)
    return f" Did you mean '{near}'?" if near else ""


def nearest(got: str, known: Iterable[str]) -> str | None:
    """Returns that of ``known`` which ``got`` is a slip of, if there is one."""
    near = difflib.get_close_matches(got, list(known), n=1, cutoff=0.6)
    return near[0] if near and _is_slip(got, near[0]) else None


def _is_slip(got: str, meant: str) -> bool:
    """Whether one is a slip of the other, and no other word."""
    begins = got.startswith(meant) or meant.startswith(got)
    return begins or sorted(got) == sorted(meant) or difflib.SequenceMatcher(None, meant, got).ratio() >= 0.75


def unknown_name(what: str, got: str, known: Iterable[str], key: str) -> UnknownNameError:
    """The error for a name that is not known: lists the known ones and the nearest.

    >>> str(unknown_name("loss", "po", ["ppo", "reinforce"], "algorithm.loss_type"))
    "unknown loss 'po'. Did you mean 'ppo'?\\n  fix: set algorithm.loss_type to one of: ppo, reinforce"
    """
    names = list(known)
    return UnknownNameError(
        f"unknown {what} '{got}'.{did_you_mean(got, names)}", f"set {key} to one of: {', '.join(names)}"
    )
