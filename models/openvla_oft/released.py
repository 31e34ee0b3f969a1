"""Released checkpoints with action tokens, and the names of their statistics (``unnorm_key``)."""

from __future__ import annotations

from typing import NamedTuple


class Released(NamedTuple):
    """A checkpoint on the Hugging Face hub. It was not trained by this library."""

    name: str  # OWNER/NAME on the hub
    model: str  # the file of config/model that reads it
    env: str  # task suite or simulator that it was trained for
    unnorm_key: str


_OFT, _BEFORE = "openvla_oft", "openvla"
_SFT = "Haozhan72/Openvla-oft-SFT-"
RELEASED = (
    Released(f"{_SFT}libero-spatial-traj1", _OFT, "libero_spatial", "libero_spatial_no_noops"),
    Released(f"{_SFT}libero-object-traj1", _OFT, "libero_object", "libero_object_no_noops"),
    Released(f"{_SFT}libero-object-trajall", _OFT, "libero_object", "libero_object_no_noops"),
    Released(f"{_SFT}libero-goal-traj1", _OFT, "libero_goal", "libero_goal_no_noops"),
    Released(f"{_SFT}libero-goal-trajall", _OFT, "libero_goal", "libero_goal_no_noops"),
    Released(f"{_SFT}libero10-traj1", _OFT, "libero_10", "libero_10_no_noops"),
    Released(f"{_SFT}libero10-trajall", _OFT, "libero_10", "libero_10_no_noops"),
    Released("RLinf/RLinf-OpenVLAOFT-LIBERO-90-Base-Lora", _OFT, "libero_90", "libero_90_no_noops_trajall"),
    Released("RLinf/RLinf-OpenVLAOFT-LIBERO-130-Base-Lora", _OFT, "any of LIBERO", "libero_130_no_noops_trajall"),
    Released("RLinf/RLinf-OpenVLAOFT-ManiSkill-Base-Main", _OFT, "maniskill_putonplate25", "bridge_orig"),
    Released("openvla/openvla-7b-finetuned-libero-spatial", _BEFORE, "libero_spatial", "libero_spatial"),
    Released("openvla/openvla-7b-finetuned-libero-object", _BEFORE, "libero_object", "libero_object"),
    Released("openvla/openvla-7b-finetuned-libero-goal", _BEFORE, "libero_goal", "libero_goal"),
    Released("openvla/openvla-7b-finetuned-libero-10", _BEFORE, "libero_10", "libero_10"),
)
USUAL = "libero_10"
"""The suite whose statistics are taken where the env has none."""


def unnorm_key(suite: str | None = None, decoding: str = "parallel") -> str:
    """Returns the name of the statistics that released checkpoints have for a task suite of LIBERO, or of LIBERO-PRO,
    whose suites have the same actions.

    >>> unnorm_key("libero_spatial"), unnorm_key("libero_goal_swap"), unnorm_key("libero_10", "autoregressive")
    ('libero_spatial_no_noops', 'libero_goal_no_noops', 'libero_10')

    Args:
        suite: of the env; None, or one that is not LIBERO's: :data:`USUAL`.
        decoding: as the network decodes.
    """
    model = _BEFORE if decoding == "autoregressive" else _OFT
    known = {one.env: one.unnorm_key for one in RELEASED if one.model == model}
    fits = (one for one in known if f"{suite}_".startswith(f"{one}_"))
    return known[next(fits, USUAL)]
