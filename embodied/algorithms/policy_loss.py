"""The protocol of policy losses, and how a loss is found by its name.

A loss is one file: a dataclass ``Loss`` whose fields are its configuration block. The files of
``embodied/algorithms/losses/`` are the names that ``algorithm.loss_type`` knows; ``my_package.my_loss.Loss`` is one of
yours. ``docs/how_to/add_a_loss.md`` has an example.

An element is a token, an action or a chunk, whatever :mod:`embodied.algorithms.layout` makes of the log-probs. All
tensors here are float [N, M], finite where nothing was executed; :mod:`embodied.algorithms.aggregation` says how the
elements add up.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from embodied.algorithms import losses
from embodied.algorithms.options import construct
from embodied.errors import ConfigError, unknown_name
from embodied.lib.targets import load_target

KEY = "algorithm.loss_type"


class PolicyLoss(NamedTuple):
    """Loss of each element, its ratio, and whether it was clipped; all float or bool [N, M]."""

    per_token: Tensor  # differentiable
    ratio: Tensor  # ρ, detached
    clipped: Tensor  # bool: elements whose gradient the clip removed (cispo: bounded)


class Anchor(Enum):
    """The policy around which a loss forms its ratio: its log-probs are given to the loss as the old ones."""

    ACTING = "the policy that acted"
    SEQUENCE = "the policy that acted, with one ratio for all elements of a sequence"
    PROXIMAL = "the policy at the beginning of the update; importance() corrects for the one that acted"


class Loss(Protocol):
    """A policy loss, with the values of its own configuration."""

    @property
    def anchor(self) -> Anchor: ...

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> PolicyLoss:
        """The loss of each element; ``logprobs`` are differentiable."""
        ...

    def importance(self, proximal: Tensor, acting: Tensor) -> Tensor:
        """Importance weights of the elements, float [N, M]. Called with ``Anchor.PROXIMAL`` alone.

        Args:
            proximal: log-probs of the policy at the beginning of the update [N, M].
            acting: log-probs of the policy that acted [N, M].
        """
        ...


def names() -> tuple[str, ...]:
    """The losses that have a file here, in alphabetical order. Imports none of them."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(losses.__path__)))


def make_loss(loss_type: str, keys: Mapping[str, Any], own: Mapping[str, Any] | None = None) -> Loss:
    """The loss called ``loss_type`` (``algorithm.loss_type``), with the values of its fields.

    Args:
        keys: values of ``algorithm``'s keys; a loss takes those that it has fields for.
        own: ``algorithm.loss``: values of fields that are no key of ``algorithm``.

    Raises:
        UnknownNameError: ``loss_type`` is not known.
        ConfigError: a class that is no loss, or a value that it refuses.
    """
    made: Loss = construct(_find(loss_type), f"the loss {loss_type}", "algorithm.loss", keys, own or {})
    return made


def _find(loss_type: str) -> Any:
    if "." not in loss_type:
        if loss_type not in names():
            raise unknown_name("loss type", loss_type, names(), KEY)
        return importlib.import_module(f"{losses.__name__}.{loss_type}").Loss
    kind = load_target(loss_type, KEY)
    if not (is_dataclass(kind) and isinstance(kind, type) and hasattr(kind, "anchor")):
        raise ConfigError(
            f"{KEY} {loss_type} is no loss: a dataclass with an anchor",
            "write it like the files of embodied/algorithms/losses/ (docs/how_to/add_a_loss.md)",
        )
    return kind
