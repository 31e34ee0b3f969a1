"""Rules of RLinf's keys of π0 and π0.5 (``actor.model.openpi``).

Their meaning was read in rlinf/models/embodiment/openpi (openpi_action_model.py, dataconfig) of August 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.schema.others.tables import Row
from embodied.schema.others.translation import Lookup, Rule, Translation, nothing, number_of, only_off, wrist
from embodied.schema.others.values import translated

OPENPI = "actor.model.openpi."
ON = (True, "True", "true")
FAMILIES = {"pi0_": "pi0", "pi05_": "pi05", "smolvla_": "smolvla"}
"""Beginning of a name of their configurations → our policy."""
METHODS = ("flow_sde", "flow_noise")
STATELESS = (
    "libero", "maniskill", "franka", "franka_pnp", "maniskill_sim_real_co_training", "metaworld", "calvin", "gsenv",
    "isaaclab_stack_cube", "dualfranka_tcp_rot6d",
)  # fmt: skip
"""Names behind ``pi05_`` of their configurations in which π0.5 reads no state."""


def policy_of(name: Any) -> str | None:
    """Returns our policy for a name of their configurations (``pi05_libero``); None where no policy is known."""
    return next((ours for start, ours in FAMILIES.items() if str(name).startswith(start)), None)


def config(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the name of a configuration, which begins with the policy's."""
    if (policy := policy_of(value)) is None:
        return Translation(how="refused", why="its name says neither pi0 nor pi05: give model=pi0 or pi05")
    return Translation({"model": policy}, "derived", "the data set's part of the name needs no key: the env says it")


def architecture(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the tag of an architecture; that of π0 and π0.5 is one, and their configuration says which."""
    if value in (None, ""):
        return Translation(how="nothing", why="nothing is set")
    if str(value).lower() != "openpi":
        return Translation(translated(row.ours[0], value), "renamed")
    policy = policy_of(get(f"{OPENPI}config_name"))
    why = "openpi.config_name says whether it is pi0 or pi05"
    return Translation({"model": policy}, "derived", why) if policy else Translation(how="nothing", why=why)


def method(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates where a chain is random."""
    if value in METHODS:
        return Translation({row.ours[0]: value}, "renamed")
    return Translation(how="refused", why=f"there is no {value} here, but {' and '.join(METHODS)}")


def level(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the strength of Flow-SDE's noise, which does not change during a training here."""
    if get(f"{OPENPI}noise_anneal") in ON and (get(f"{OPENPI}noise_method") or METHODS[0]) != METHODS[1]:
        why = "noise_anneal is on, so that noise_params says it, and here the level is constant"
        return Translation(how="refused", why=why)
    return Translation({row.ours[0]: value}, "renamed")


def anneal(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the switch of a noise level that falls, and its three numbers."""
    if get(f"{OPENPI}noise_method") == METHODS[1]:
        return Translation(how="nothing", why="flow_noise learns its standard deviation")
    if get(f"{OPENPI}noise_anneal") not in ON:
        return Translation(how="nothing", why="noise_anneal is off")
    return Translation(how="refused", why="the level of the noise is constant here: set actor.model.noise_level")


def spread(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the bounds of Flow-Noise: standard deviations, whatever their key is called."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return Translation(how="refused", why="two standard deviations are expected")
    return Translation({row.ours[0]: list(value)}, "renamed", "both are standard deviations")


def steps(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates denoising steps: those of training and those of evaluations, which are one number there."""
    if not row.key.startswith(OPENPI) and get(f"{OPENPI}num_steps") is not None:
        return Translation(how="nothing", why="openpi.num_steps says it")
    return Translation(dict.fromkeys(row.ours, value), "renamed", "evaluations have as many there")


def joint(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates which denoising steps are random and have a log-prob: all, or one that is drawn."""
    return Translation({row.ours[0]: "all" if value in ON else "one"}, "renamed")


def value_head(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the switch of the value head, which the network reads below ``openpi``."""
    if not row.key.startswith(OPENPI) and get(f"{OPENPI}add_value_head") is not None:
        return Translation(how="nothing", why="openpi.add_value_head says it")
    return Translation({row.ours[0]: value}, "renamed")


def _has_values(get: Lookup) -> bool:
    own, above = get(f"{OPENPI}add_value_head"), get("actor.model.add_value_head")
    return (above if own is None else own) in ON


def value_place(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates what the value head reads; here it is the mean of the trunk's last hidden state."""
    if not _has_values(get):
        return Translation(how="nothing", why="there is no value head")
    same = value in ON if row.key.endswith("value_after_vlm") else value in (None, "mean_token", False)
    why = "the value head reads the mean of the trunk's last hidden state here"
    return Translation(how="nothing" if same else "refused", why=why)


def detached(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates whether gradients of the value loss stop at the value head; here they go on where the trunk is
    trained."""
    frozen = get(f"{OPENPI}train_expert_only") in ON and get("actor.model.is_lora") not in ON
    if not _has_values(get):
        return Translation(how="nothing", why="there is no value head")
    if frozen:
        return Translation(
            how="nothing", why="the value head reads the trunk, which is frozen: its gradient ends there"
        )
    if value in ON:
        return Translation(how="refused", why="the trunk is trained, and the value loss trains it, too")
    return Translation(how="nothing", why="the value loss trains the trunk, too, if it is trained")


def pictures(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the number of cameras of LIBERO that the policy reads; it reads all that the env gives."""
    number = number_of(value)
    if number not in (1, 2):
        return Translation(how="refused", why="name the env's cameras in actor.model.cameras")
    said = wrist(row, number == 2, get)
    return Translation({key: one for key, one in said.settings.items() if key in row.ours}, said.how, said.why)


def state(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates whether π0.5 reads the state in its prompt; π0 reads it elsewhere, always."""
    if policy_of(get(f"{OPENPI}config_name")) == "pi0":
        return Translation(how="nothing", why="pi0 reads the state in a token of its own")
    return Translation({row.ours[0]: value}, "renamed")


RULES: Mapping[str | tuple[str, str], Rule] = {
    **{
        ("rlinf", f"{section}.model.{tag}"): architecture
        for section, tag in (("actor", "model_type"), ("actor", "model_name"), ("rollout", "model_type"))
    },
    ("rlinf", "actor.model.num_steps"): steps,
    ("rlinf", "actor.model.add_value_head"): value_head,
    ("rlinf", f"{OPENPI}config_name"): config,
    ("rlinf", f"{OPENPI}noise_method"): method,
    ("rlinf", f"{OPENPI}noise_level"): level,
    ("rlinf", f"{OPENPI}noise_anneal"): anneal, ("rlinf", f"{OPENPI}noise_params"): anneal,
    ("rlinf", f"{OPENPI}noise_logvar_range"): spread,
    ("rlinf", f"{OPENPI}num_steps"): steps,
    ("rlinf", f"{OPENPI}joint_logprob"): joint,
    ("rlinf", f"{OPENPI}add_value_head"): value_head,
    ("rlinf", f"{OPENPI}value_after_vlm"): value_place, ("rlinf", f"{OPENPI}value_vlm_mode"): value_place,
    ("rlinf", f"{OPENPI}chunk_critic_input"): nothing("the value head reads the trunk, and no actions"),
    ("rlinf", f"{OPENPI}detach_critic_input"): detached,
    ("rlinf", f"{OPENPI}num_images_in_input"): pictures,
    ("rlinf", f"{OPENPI}action_env_dim"): nothing("the env says it"),
    ("rlinf", f"{OPENPI}discrete_state_input"): state,
    ("rlinf", f"{OPENPI}safe_get_logprob"): only_off("log-probs are densities here"),
    ("rlinf", f"{OPENPI}double_layer"): only_off("one step of a chain is random, or all are"),
    ("rlinf", f"{OPENPI}ignore_last"): only_off("the random step is any of the chain's, the last one included"),
}  # fmt: skip
