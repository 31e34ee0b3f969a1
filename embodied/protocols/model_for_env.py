"""What a model may say of the env that it is for, before it is built; and what it may ask of it before it learns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from embodied.protocols.policy import UsesStatistics
from embodied.types import EnvSpec


@runtime_checkable
class ChoosesModel(Protocol):
    """Interface of a class under ``actor.model._target_`` that builds no policy. It is made with the keys beside it."""

    def model_for(self, env: EnvSpec) -> str:
        """Returns the file of the group ``model`` that is taken for an env. Raises
        :class:`embodied.errors.ConfigError` if there is none."""
        ...


class FitsEnv(Protocol):
    """Interface of a function ``for_env`` that a model may have beside its ``_target_``. Imports no torch."""

    def __call__(self, env: EnvSpec, given: Collection[str], **own: Any) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Returns the values of keys under ``actor.model`` that follow from the env, and a phrase for each part of its
        observations that the policy does not read.

        Args:
            given: names of the keys that the user has set.
            own: those of these keys that the function names, with their values. Values that are set are not returned.
        """
        ...


@runtime_checkable
class ScalesState(UsesStatistics, Protocol):
    """A policy that reads numbers of any size, and cannot learn from them as they are: a pose differs from another by
    centimetres, around a metre. Where neither demonstrations nor a checkpoint say how large the state's numbers are, a
    training shows it some episodes first (``use_statistics`` with ``proprio`` alone)."""

    @property
    def needs_scale(self) -> bool:
        """Whether it wants a scale of the state, and has none."""
        ...
