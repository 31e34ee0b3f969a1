"""OpenVLA-OFT (Kim, Finn, Liang, arXiv 2502.19645) with discrete action tokens: a native implementation that loads the
released checkpoints and builds small networks of the same code for CPUs.

``build_policy`` is the ``_target_`` of ``config/model/openvla_oft*.yaml``; its keyword arguments, with defaults and
meanings, are the fields of :class:`~.settings.Settings`. Importing this package imports neither torch nor transformers.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from .for_env import for_env, reads
from .released import unnorm_key
from .settings import OF_ENV, Settings

if TYPE_CHECKING:
    from .policy import OpenVLAOFTPolicy

__all__ = ["Settings", "build_policy", "for_env", "reads", "unnorm_key"]


def build_policy(**kwargs: Any) -> OpenVLAOFTPolicy:
    """Build the policy on the CPU, from a checkpoint or at random.

    Within ``torch.device("cuda")`` random weights are drawn there, so that 7B of them need no host memory; the caller
    still moves the whole policy.

    Raises:
        ConfigError: a key under ``actor.model`` is unknown, has a wrong value, or contradicts the checkpoint.
        CheckpointError: the checkpoint is missing, damaged, or of another model.
    """
    import torch

    from .build import build

    drawn_on = torch.get_default_device()
    with torch.device("cpu"):
        return build(Settings.from_kwargs(kwargs), drawn_on)


def _keyword(parameter: inspect.Parameter) -> inspect.Parameter:
    kind = f"{parameter.annotation} | None" if parameter.name in OF_ENV else parameter.annotation
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind)


# The configuration is checked against this signature. Taking it from the dataclass keeps one list of keys.
build_policy.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [*map(_keyword, inspect.signature(Settings).parameters.values())]
)
