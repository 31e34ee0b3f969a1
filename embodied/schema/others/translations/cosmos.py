"""Rules of Cosmos-RL's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.schema.others.tables import Row
from embodied.schema.others.translation import Lookup, Rule, Translation, Unknown, has, number_of, only_if
from embodied.schema.others.values import translated

POLICY = "train.train_policy."
SUITE = POLICY + "dataset.subset"
OF_VLA = ("vla.vla_type", "vla.num_envs", "vla.unnorm_key", "vla.training_chunk_size", "vla.use_proprio")
DATA = ("name", "subset", "revision", "split", "test_size", "local_dir")
LOSSES = {"grpo": "ppo", "dapo": "ppo", "gspo": "gspo"}
"""``variant`` → our loss; each is GRPO's advantage."""


def robot(get: Lookup) -> bool:
    """Returns whether a Cosmos-RL file is for robots: it then has a table ``vla``."""
    return any(has(get, key) for key in OF_VLA)


def dataset(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the name of a data set; for a robot, the name of a simulator and of its tasks."""
    last = row.key.rpartition(".")[2]
    if not robot(get):
        if value in (None, ""):
            return Translation(how="nothing", why="nothing is set")
        return Translation(translated(row.ours[0], value), "renamed")
    if row.key.startswith("validation."):
        if last == "subset" and value not in (None, "", get(SUITE)):
            return Translation({"env.eval" if get(SUITE) else "env": str(value)}, "derived", "the suite of evaluations")
        return Translation(how="nothing", why="evaluations have the env of the training")
    if last == "subset" or (last == "name" and not get(SUITE)):
        return Translation({"env": str(value)}, "derived", "the suite of tasks")
    return Translation(how="nothing", why=f"the suite says it ({SUITE})")


def kind(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the type of training; the checks of a run refuse types other than supervised and GRPO."""
    return Translation({} if value == "grpo" else {"runner.task_type": value}, "derived")


def variant(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the loss, with the keys that change it: decoupled loss, AIPO, and Dr. GRPO's advantage."""
    name = str(value).lower()
    if name not in LOSSES:
        return Translation({"algorithm.loss_type": name}, "derived")
    loss = LOSSES[name]
    if get(POLICY + "aipo_rho") is not None:
        loss = "aipo"
    elif get(POLICY + "use_decoupled_loss") is True:
        loss = "tis"
    settings: dict[str, Any] = {"algorithm.loss_type": loss}
    settings["algorithm.adv_type"] = "dr_grpo" if get(POLICY + "unbiased_advantage") is True else "grpo"
    if name == "dapo":
        settings["algorithm.dynamic_sampling"] = True
    return Translation(settings, "derived")


def part_of_variant(settings: Mapping[str, Any]) -> Rule:
    """Makes the rule for a switch that :func:`variant` reads where the other keys are known."""

    def rule(row: Row, value: Any, get: Lookup) -> Translation:
        if isinstance(get, Unknown):
            return Translation(settings if value is True else {}, "derived" if value is True else "nothing")
        return Translation(how="nothing", why="algorithm.loss_type and adv_type say it")

    return rule


def aipo(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates AIPO's bound on the ratio; empty means another loss."""
    return only_if(value, {row.ours[0]: value}, "nothing is set")


def dual_clip(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the dual clip, which only the plain loss of texts has."""
    if value is None or robot(get) or str(get(POLICY + "variant")).lower() == "gspo" or get(POLICY + "aipo_rho"):
        return Translation(how="nothing", why="this loss has none")
    return Translation({row.ours[0]: value}, "renamed")


def aggregated(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates how the loss is aggregated; for robots there is one way."""
    if robot(get):
        return Translation(how="nothing", why="for robots it is the mean over episodes of the mean over tokens")
    return Translation(translated(row.ours[0], value), "renamed")


def capped(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the largest importance weight; elements beyond it are masked."""
    return only_if(value, {row.ours[0]: value, "algorithm.behav_imp_weight_mode": "mask"}, "nothing is set")


def start_factor(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the warm-up's first factor into a first learning rate."""
    factor, base = number_of(value), number_of(get("train.optm_lr"))
    if not factor or base is None:
        return Translation(how="nothing", why="the rate rises from 0")
    return Translation({row.ours[0]: factor * base}, "derived", f"{factor:g} · {base:g}")


def bound(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a bound of the reward filter, which also switches it on."""
    return Translation({row.ours[0]: value, "algorithm.filter_rewards": True}, "derived")


def advantage(row: Row, value: Any, get: Lookup) -> Translation:
    """Drops a bound of advantages that only the trainer of diffusion models applies."""
    return Translation(how="nothing", why="Cosmos-RL bounds advantages of diffusion models alone")


def adapters(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the table of adapters, which also switches them on."""
    return Translation({row.ours[0]: value, "actor.model.is_lora": True}, "derived")


def clipped(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates one side of the clip; below 0 there is none."""
    number = number_of(value)
    if number is None or number >= 0:
        return Translation(translated(row.ours[0], value), "renamed")
    none = 0.999 if row.key.endswith("_low") else 1.0e6
    return Translation({row.ours[0]: none}, "derived", f"no clip on this side; {none:g} is nearest to that")


def no_limit(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a limit; 0 means none."""
    if not number_of(value):
        return Translation(how="nothing", why="0 is no limit")
    return Translation({row.ours[0]: value}, "renamed")


def length(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the longest length of an answer; actions have none."""
    if robot(get):
        return Translation(how="nothing", why="the tokens of a chunk follow from the model")
    return Translation(translated(row.ours[0], value), "renamed")


RULES: Mapping[str | tuple[str, str], Rule] = {
    **{("cosmos-rl", f"{start}dataset.{name}"): dataset for start in (POLICY, "validation.") for name in DATA},
    ("cosmos-rl", POLICY + "type"): kind, ("cosmos-rl", POLICY + "variant"): variant,
    ("cosmos-rl", POLICY + "unbiased_advantage"): part_of_variant({"algorithm.adv_type": "dr_grpo"}),
    ("cosmos-rl", POLICY + "use_decoupled_loss"): part_of_variant({"algorithm.loss_type": "tis"}),
    ("cosmos-rl", POLICY + "aipo_rho"): aipo, ("cosmos-rl", POLICY + "lower_bound_ratio"): dual_clip,
    ("cosmos-rl", POLICY + "loss_type"): aggregated, ("cosmos-rl", POLICY + "behav_imp_weight_cap"): capped,
    ("cosmos-rl", POLICY + "advantage_low"): advantage, ("cosmos-rl", POLICY + "advantage_high"): advantage,
    ("cosmos-rl", POLICY + "epsilon_low"): clipped, ("cosmos-rl", POLICY + "epsilon_high"): clipped,
    ("cosmos-rl", "train.optm_decay_ratio"): no_limit,
    ("cosmos-rl", "train.optm_warmup_start_factor"): start_factor,
    ("cosmos-rl", "vla.filter_lower_bound"): bound, ("cosmos-rl", "vla.filter_upper_bound"): bound,
    ("cosmos-rl", "rollout.max_response_length"): length, ("cosmos-rl", "policy.lora.r"): adapters,
}  # fmt: skip
