"""All slots of a worker in a SyncVectorEnv or an AsyncVectorEnv of gymnasium. Imports gymnasium."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from embodied import errors
from embodied.errors import EmbodiedError
from embodied.lib.child import end_with_parent
from embodied.protocols import Env, HasProgressFeatures
from embodied.types import DiscreteAction, Obs, Start, StepResult

_STARTS = "starts"
SAID = 4  # numbers that a step says


class SlotError(Exception):
    """Carries one of our errors through gymnasium, which makes errors anew from one argument.

    Args:
        what: class, message and remedy; or such an error.
    """

    def __init__(self, what: tuple[str, str, str] | SlotError) -> None:
        super().__init__(what)
        self.what: tuple[str, str, str] = what.what if isinstance(what, SlotError) else what

    def error(self) -> EmbodiedError:
        """Returns the error that it carries."""
        kind, message, remedy = self.what
        return getattr(errors, kind)(message, remedy)


class SlotEnv(gymnasium.Env[np.ndarray, Any]):
    """Wraps one slot as a gymnasium env, so that gymnasium.vector can host it.

    Its observation is what a step says, float64 [4]: reward, terminated, success, truncated. The end of an episode is
    said there and not by Gymnasium's flags, on which a vector env would reset the slot by itself and without a seed.
    Pictures and state are asked for by :meth:`look`.
    """

    def __init__(self, slot: Env, number: int) -> None:
        self._slot, self._number = slot, number
        self._said = np.zeros(SAID)
        spaces, action = gymnasium.spaces, slot.spec.action
        self.observation_space = spaces.Box(-np.inf, np.inf, (SAID,), np.float64)
        one = (
            spaces.Discrete(action.num_actions)
            if isinstance(action, DiscreteAction)
            else spaces.Box(np.asarray(action.low, np.float32), np.asarray(action.high, np.float32))  # type: ignore[union-attr]
        )
        self.action_space = spaces.Dict({"active": spaces.Discrete(2), "action": one})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begins an episode if ``options`` has a start for this slot; else does nothing."""
        start = options[_STARTS].get(self._number)
        if start is not None:
            _tell(partial(self._slot.reset, start))
            self._said = np.zeros(SAID)
        return self._said, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Makes a step if the slot is active; else does nothing."""
        if action["active"]:
            result = _tell(partial(self._slot.step, np.asarray(action["action"])))
            self._said = np.array([result.reward, result.terminated, result.success, result.truncated], np.float64)
        return self._said, 0.0, False, False, {}

    def look(self, slots: Sequence[int]) -> dict[str, np.ndarray] | None:
        """Returns the slot's observation if it is among ``slots``; else None."""
        if self._number not in slots:
            return None
        out = {name: np.zeros(field.shape, field.dtype) for name, field in self._slot.spec.obs.items()}
        _tell(partial(self._slot.observe, out))
        return out

    def picture(self, slot: int) -> np.ndarray | None:
        """Returns the slot's frame for the video if it is among ``slots``; else None."""
        return _tell(self._slot.frame) if self._number == slot else None

    def where(self, slot: int) -> np.ndarray | None:
        """Returns the slot's progress features if its number is ``slot``; else None."""
        if self._number != slot:
            return None
        assert isinstance(self._slot, HasProgressFeatures)
        return _tell(self._slot.progress_features)

    def close(self) -> None:
        self._slot.close()


class HostedBatch:
    """Hosts ``num_slots`` slots of a worker in a gymnasium vector env, with ``apart`` each in a process
    (:class:`embodied.protocols.BatchEnv`); each behaves as it does alone.

    Args:
        slot: an env of one slot, copied for each.
        apart: each slot in a process of its own (AsyncVectorEnv), else one after another (SyncVectorEnv).
    """

    def __init__(self, slot: Env, num_slots: int, apart: bool) -> None:
        self._makes = [partial(_made, slot, number, os.getpid()) for number in range(num_slots)]
        self._apart = apart
        self._made: Any = None
        self._broken = False  # a process of a slot has ended by itself

    @property
    def _env(self) -> Any:
        if self._made is None:  # forked: whatever a worker has imported and chosen by now is there
            self._made = (
                AsyncVectorEnv(self._makes, context="fork", shared_memory=False)
                if self._apart
                else SyncVectorEnv(self._makes)
            )
        return self._made

    def reset(self, slots: Sequence[int], starts: Sequence[Start]) -> None:
        given: Mapping[int, Start] = dict(zip(slots, starts, strict=True))
        self._ask(lambda: self._env.reset(options={_STARTS: given}))

    def step(self, actions: np.ndarray, active: np.ndarray) -> Sequence[StepResult]:
        said = self._ask(lambda: self._env.step({"active": active.astype(np.int64), "action": actions}))[0]
        return [
            StepResult(float(reward), bool(ended), bool(solved), truncated=bool(cut_off))
            for reward, ended, solved, cut_off in said
        ]

    def observe(self, slots: Sequence[int], outs: Sequence[Obs]) -> None:
        seen = self._ask(lambda: self._env.call("look", tuple(slots)))
        for slot, out in zip(slots, outs, strict=True):
            for name, values in seen[slot].items():
                out[name][...] = values

    def frame(self, slot: int) -> np.ndarray:
        return self._ask(lambda: self._env.call("picture", slot))[slot]

    def progress_features(self, slot: int) -> np.ndarray:
        return self._ask(lambda: self._env.call("where", slot))[slot]

    def _ask(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except SlotError as told:
            raise told.error() from told
        except (EOFError, ConnectionError) as error:  # a worker would take them for its launcher's end
            self._broken = True
            raise RuntimeError("the process of a slot has ended (AsyncVectorEnv); its worker is replaced") from error

    def close(self) -> None:
        if self._made is not None:
            if self._broken:
                self._made.closed = True  # its own close() waits for the answers of those that are gone
                for process in self._made.processes:
                    process.kill()
                    process.join()
            self._made.close()
            self._made = None


def _made(slot: Env, number: int, launcher: int) -> SlotEnv:
    if os.getpid() != launcher:  # a process of its own ends with its worker, also with one that is killed
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent(launcher)
    return SlotEnv(copy.copy(slot), number)


def _tell(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except EmbodiedError as error:
        raise SlotError((type(error).__name__, error.message, error.remedy)) from error
