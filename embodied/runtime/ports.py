"""The env port: envs that execute commands, in worker processes of this machine or elsewhere.

    user ── send(command) ──▶ │ EnvPort │ ──▶ a slot executes it: rows of the slab are read and written
    user ◀── recv() ───────── │         │ ◀── Completion, Lost, Back

| event        | says                                             | the slot then    |
|--------------|--------------------------------------------------|------------------|
| `Completion` | the slot's command was executed                  | takes a command  |
| `Lost`       | the slot's worker has failed, its command is not | takes no command |
|              | executed                                         |                  |
| `Back`       | a new worker serves the slot                     | takes a RESET    |

Users are the rollout (:mod:`embodied.runtime.rollout.rollout`) and the recorder of demonstrations
(:mod:`embodied.runtime.recorder`). The port knows neither episodes nor policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from embodied.errors import EmbodiedError, WorkerDiedError, WorkerError, is_explained
from embodied.observe.video.video import Video
from embodied.perturbations import Draws
from embodied.runtime.channel import Command, Completion
from embodied.types import WorkerFacts


@dataclass(frozen=True)
class Lost:
    """The worker of a slot has failed: the slot's episode is gone, and it takes no command until :class:`Back`."""

    slot: int
    error: Exception
    suspects: int  # slots that the worker may have been busy with, if this is one of them; 0 if it is not

    def tries(self, most: int | None) -> int | None:
        """Returns how often an episode that ends its worker is tried: ``most`` times, None for as often as the port
        allows. What the env has explained itself it would say to each new worker, so then once."""
        return 1 if most is not None and is_explained(self.error) else most

    @property
    def why(self) -> str:
        """What happened, with the exception that ended the worker if there was one."""
        if isinstance(self.error, WorkerError):
            return self.error.summary
        return self.error.message if isinstance(self.error, EmbodiedError) else str(self.error)


def not_redone(what: str, lost: Lost) -> WorkerDiedError:
    """Makes the error for lost work that may not be redone (``EnvSpec.retry_safe``).

    Args:
        what: e.g. "episode 7".
    """
    return WorkerDiedError(
        f"{what} was lost with its worker, and this env's episodes may not be redone without asking "
        f"(EnvSpec.retry_safe is False): {lost.error}",
        "see what happened to the robot or the simulator; the same command goes on from what was saved",
    )


@dataclass(frozen=True)
class Back:
    """A new worker serves the slot."""

    slot: int


Event = Completion | Lost | Back


class EnvPort(Protocol):
    """Env slots that execute commands. Slots have the numbers 0 … ``num_slots`` − 1.

    Promises:

    - A slot has at most one command in flight. Each command is answered by one event: `Completion` or `Lost`.
    - What a command writes stands in the slab before its `Completion` is returned by :meth:`recv`.
    - `Lost` comes once for every slot of a worker that failed, with a command in flight or without, and before the
      `Back` of that slot. What the failed worker had completed comes before both.
    - A slot whose worker failed is served again without being asked for, or :meth:`recv` raises.
    """

    @property
    def num_slots(self) -> int: ...

    @property
    def up(self) -> Sequence[int]:
        """Slots that take commands, as far as :meth:`recv` has said; in ascending order."""
        ...

    @property
    def moving(self) -> AbstractSet[int]:
        """Slots whose command in flight will be answered whatever else is sent or not. A slot that is stepped together
        with others is not among them while those others have no command yet: waiting for it alone would never end.
        The collection changes with the next call of :meth:`send` or :meth:`recv`."""
        ...

    def group_of(self, slot: int) -> int:
        """A number that slots share if they wait for each other. Such slots are best given their commands one after
        another."""
        ...

    def simulators_of(self, slot: int) -> int:
        """The first of the slots that share this slot's simulators: what one of them has built serves the others. They
        have one worker. The slot itself if it shares none."""
        ...

    def send(self, command: Command, video: Video | None = None, draws: Draws | None = None) -> None:
        """Give a slot its next command. Its worker may be woken only by the next :meth:`flush` or :meth:`recv`.

        Args:
            video: how a RESET with ``video=True`` records its episode.
            draws: the perturbation of the episode that a RESET with ``perturbed=True`` begins.
        """
        ...

    def flush(self) -> None:
        """Wake the workers that have been given commands."""
        ...

    def recv(self, min_ready: int, timeout: float | None = None) -> Sequence[Event]:
        """Wait until ``min_ready`` slots have completed, a slot was lost or came back, ``timeout`` seconds have passed,
        or nothing is left to wait for. Returns all that has happened since the last call.

        Raises:
            EmbodiedError: an error that the env explains, or a worker that failed too often in a row.
        """
        ...

    @property
    def restarts(self) -> int:
        """Workers that have failed and were replaced since the port was opened."""
        ...

    def blame(self, lost: Lost, episode_id: int, count: int) -> None:
        """Report that an episode has been lost ``count`` times while the slot's worker was busy with it. Call this if
        ``lost.suspects`` is not 0.

        Raises:
            EmbodiedError: ``lost.error``, if that is too often: then the episode is at fault, not chance.
        """
        ...

    def forgive(self, slot: int) -> None:
        """Report that the episode that has ended the slot's workers is given up: it is not the slot's fault."""
        ...

    @property
    def facts(self) -> list[WorkerFacts]:
        """Facts that the serving workers found at their start."""
        ...

    @property
    def memory(self) -> int:
        """Bytes of the workers, wherever they are. No command may be in flight."""
        ...

    def rest(self) -> None:
        """End the workers until :meth:`wake`, so that all that they hold is free. No command may be in flight."""
        ...

    def wake(self) -> None:
        """Start the workers, unless they have been, and wait until they serve."""
        ...

    def close(self) -> None:
        """End the workers for good."""
        ...
