"""What follows for RLinf's policies that denoise, whose ratios and entropies are of other sums than ours.

There the log-prob of a number is one step's, or the mean over all N steps and the first noise (``joint_logprob``); an
entropy is the mean over numbers and steps. Here both are sums over the steps and numbers of an action or a chunk. The
first noise is the same for old and new weights, and adds nothing to a ratio.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from embodied.migrate.groups import FLOW
from embodied.migrate.result import Migration, Note
from embodied.schema.others.translation import number_of
from embodied.schema.others.translations.rlinf_openpi import OPENPI, STATELESS

STEPS, RANDOM, METHOD = "actor.model.num_steps", "actor.model.noise_steps", "actor.model.noise_method"
STATE = "actor.model.state_in_prompt"
BONUS = "algorithm.entropy_bonus"
LEVELS = ("algorithm.logprob_type", "algorithm.entropy_type")
CLIPS = ("algorithm.clip_ratio_low", "algorithm.clip_ratio_high", "algorithm.clip_ratio_c")
NO_KEY = {
    "actor.model.use_proprio": "the policy reads the state as its layout has it",
    "actor.model.action_dim": "the env says it",
    "actor.model.unnorm_key": "statistics are those of the folder, as there",
    "actor.model.image_preset": "pictures are prepared as openpi does",
    "actor.model.policy_setup": "the env says it",
}
"""Keys of ours that other policies have, and why this one needs none."""


def fit_flow(migration: Migration, flat: Mapping[str, Any]) -> None:
    """Converts what RLinf counts otherwise, where the policy is one that denoises.

    Args:
        flat: their dotted keys and values.
    """
    if migration.groups.get("model") not in FLOW:
        return
    for key, why in NO_KEY.items():
        _say(migration, key, None, why)
    for key in LEVELS:
        if migration.settings.get(key, "token_level") == "token_level":
            _say(migration, key, "action_level", "the finest is an action, whose numbers are summed")
    _scale_clips(migration)
    _scale_bonus(migration, flat)
    config = str(flat.get(f"{OPENPI}config_name", "pi05_libero")).removeprefix("pi05_")
    if migration.groups["model"] == "pi05" and STATE not in migration.settings and config in STATELESS:
        migration.settings[STATE] = False
        why = f"pi05_{config} reads no state there"
        migration.notes.append(
            Note(f"{OPENPI}discrete_state_input (their default)", False, "derived", {STATE: False}, why)
        )


def _terms(migration: Migration) -> int | None:
    """The terms of their mean log-prob: the steps and the first noise. None: it is one step's, or nobody knows."""
    steps = migration.settings.get(STEPS)
    return steps + 1 if migration.settings.get(RANDOM) == "all" and isinstance(steps, int) else None


def _scale_clips(migration: Migration) -> None:
    """Turns bounds of a ratio that is the (N + 1)-th root of ours into bounds of ours."""
    terms = _terms(migration)
    for key, sign in zip(CLIPS, (-1, 1, None), strict=True):
        width = number_of(migration.settings.get(key))
        if terms is None or not width:
            continue
        bound = (width if sign is None else 1 + sign * width) ** terms
        ours = round(bound if sign is None else sign * (bound - 1), 6)
        _say(migration, key, ours, f"joint_logprob: their ratio is the {terms}-th root of ours")


def _scale_bonus(migration: Migration, flat: Mapping[str, Any]) -> None:
    """Turns the weight of a mean over steps and numbers into that of their sum in an action."""
    bonus = number_of(migration.settings.get(BONUS))
    if not bonus:
        return
    if migration.settings.get(METHOD) != "flow_noise":
        _say(migration, BONUS, 0.0, "there the entropy of this noise is 0")
        return
    numbers = flat.get(f"{OPENPI}action_env_dim") or flat.get("actor.model.action_dim") or 7
    terms, size = _terms(migration) or 1, number_of(numbers)
    if size:
        why = f"their entropy is the mean of {terms * size:g}, ours the sum in an action"
        _say(migration, BONUS, round(bonus / (terms * size), 9), why)
        _say(migration, LEVELS[1], "action_level", "entropy_bonus is that of an action")


def _say(migration: Migration, key: str, value: Any, why: str) -> None:
    """Changes a setting, in the notes that say it, too; None takes it out."""
    migration.settings.pop(key, None)
    kept = {} if value is None else {key: value}
    said = False
    for number, note in enumerate(migration.notes):
        if key in note.settings:
            settings = {name: one for name, one in note.settings.items() if name != key} | kept
            how = "derived" if settings else "nothing"
            migration.notes[number] = replace(note, how=how, settings=settings, why=why)
            said = True
    if kept:
        migration.settings |= kept
        if not said:
            migration.notes.append(Note(key, value, "derived", kept, why))
