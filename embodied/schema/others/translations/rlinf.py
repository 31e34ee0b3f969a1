"""Rules of RLinf's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.schema.others.tables import Row
from embodied.schema.others.translation import Lookup, Rule, Translation, Unknown, nothing, number_of, only_if
from embodied.schema.others.values import translated

OPTIM = "actor.optim."
TASKS = ("reasoning", "math", "coding_online_rl")
"""``runner.task_type`` of texts."""
STYLES = {
    "constant": "constant", "torch_constant": "constant", "cosine": "cosine", "torch_cosine": "cosine",
    "openpi_cosine": "cosine", "ref_warmup_cosine": "cosine",
}  # fmt: skip
TORCH_COSINE_MIN = 1.0e-6


def of_texts(get: Lookup) -> bool:
    """Returns whether an RLinf file is for texts."""
    return get("runner.task_type") in TASKS or get("data.rollout_batch_size") is not None


def eval_temperature(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the temperature of evaluations; at 0 they take the likeliest token."""
    number = number_of(value)
    if number is None:
        return Translation(how="nothing", why="nothing is set")
    section = "algorithm.val_sampling_params"
    if number <= 0:
        return Translation({f"{section}.do_sample": False}, "derived", "the likeliest token")
    return Translation({f"{section}.temperature": value, f"{section}.do_sample": True}, "renamed")


def tokens(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the most new tokens of an answer; the length of an action follows from the model."""
    if value is None or not (isinstance(get, Unknown) or of_texts(get)):
        return Translation(how="nothing", why="the tokens of a chunk follow from the model")
    return Translation(dict.fromkeys(row.ours, value), "renamed")


def whitened(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the normalisation of advantages; for robots RLinf normalises only those of gae."""
    adv = str(get("algorithm.adv_type")).lower()
    known = not isinstance(get, Unknown) and get("algorithm.adv_type") is not None
    if known and value in (True, "True") and not of_texts(get) and "gae" not in adv and adv != "ppo":
        return Translation(how="nothing", why=f"RLinf whitens those of gae alone for robots, and adv_type is {adv}")
    return Translation({row.ours[0]: value}, "same")


def style(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the name of the learning rate schedule, which also sets the last rate."""
    name = str(value).lower()
    if name not in STYLES:
        return Translation(how="refused", why=f"there is no schedule {value} here")
    settings: dict[str, Any] = {row.ours[0]: STYLES[name]}
    if name == "torch_cosine":
        settings["actor.lr_sched.min_lr"] = TORCH_COSINE_MIN
    base, steps = number_of(get(OPTIM + "lr")), number_of(get(OPTIM + "lr_warmup_steps"))
    if name in ("openpi_cosine", "ref_warmup_cosine") and base and steps and steps > 0:
        settings["actor.lr_sched.lr_warmup_init"] = base / (steps + 1)
    return Translation(settings, "renamed" if len(settings) == 1 else "derived")


def _warms_up(get: Lookup) -> bool:
    return not str(get(OPTIM + "lr_scheduler")).startswith("torch_")


def warmup(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the warm-up in iterations; below 0 it is a share of ``total_training_steps``."""
    number, share = number_of(value), row.key.endswith("_ratio")
    if number is None or not _warms_up(get):
        return Translation(
            how="nothing", why="this schedule has no warm-up" if number is not None else "nothing is set"
        )
    if share:
        first, total = number_of(get(OPTIM + "lr_warmup_steps")), number_of(get(OPTIM + "total_training_steps"))
        if first is not None and first >= 0:
            return Translation(how="nothing", why="lr_warmup_steps says it")
        iterations = int(number * (total or 0))
        return Translation({row.ours[0]: iterations}, "derived", f"{number:g} · {total or 0:g} steps")
    return (
        Translation({row.ours[0]: value}, "renamed")
        if number >= 0
        else Translation(how="nothing", why="the share says it")
    )


def total(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the total steps over which the learning rate falls; dropped with a constant rate."""
    number = number_of(value)
    falls = isinstance(get, Unknown) or STYLES.get(str(get(OPTIM + "lr_scheduler")).lower()) == "cosine"
    if not falls or not number or number <= 0:
        return Translation(how="nothing", why="the rates do not fall")
    return Translation({row.ours[0]: value}, "renamed")


def capped(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the largest importance weight; elements beyond it are masked."""
    mode = {"algorithm.behav_imp_weight_mode": "mask"}
    return only_if(value, {row.ours[0]: value, **mode}, "nothing is set")


def precision(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the rollout model's number format, which is that of learning here."""
    same = str(value).lower() == str(get("actor.model.precision")).lower()
    if same or isinstance(get, Unknown):
        return Translation(how="nothing", why="the policy acts in the format in which it learns")
    return Translation(translated(row.ours[0], value), "renamed")


def chat(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the switch of the chat template."""
    return Translation({row.ours[0]: "always" if value in (True, "True") else "never"}, "renamed")


def width(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates RLinf's one clip width of the ratio, for the sides that have none of their own."""
    own = {key: get(key) for key in row.ours}
    settings = {key: value for key in row.ours if own[key] is None}
    return Translation(settings, "renamed" if len(settings) == 2 else "derived" if settings else "nothing")


def simulator(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the name of a simulator; for LIBERO, the suite names our env."""
    if isinstance(get, Unknown):
        return Translation({"env": str(value)}, "renamed")
    name = str(value).lower()
    side = "eval" if all(key.startswith("env.eval.") for key in row.ours) else "train"
    suite = get(f"env.{side}.task_suite_name") or get("task_suite_name")
    if name == "libero" and suite:
        return Translation({"env" if side == "train" else "env.eval": str(suite)}, "derived", "the suite of tasks")
    if name in ("libero", "maniskill"):
        return Translation(how="nothing", why="the list of defaults names the env")
    return Translation({"env" if side == "train" else "env.eval": str(value)}, "renamed")


def group(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the group size of an env; dropped beside ``algorithm.group_size``, and in evaluations."""
    if get("algorithm.group_size") is not None or all(key.startswith("env.eval.") for key in row.ours):
        return Translation(how="nothing", why="algorithm.group_size says it")
    return Translation({row.ours[0]: value}, "renamed")


def steps_of_round(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates control steps of a slot in a round; refused for several episodes, of which a slot here has one."""
    steps, limit = number_of(value), number_of(get(f"{row.key.rpartition('.')[0]}.max_episode_steps"))
    if steps is None or steps == limit:
        return Translation(how="nothing", why="a slot has one episode in a round" if steps else "nothing is set")
    if limit is None:
        return Translation(how="refused", why=row.meaning)
    rounds = "algorithm.rollout_epoch" if row.key.startswith("env.train") else "env.eval.episodes_per_task"
    why = f"there a slot has {steps:g} / {limit:g} steps of an episode in a round, and here one episode: raise {rounds}"
    return Translation(how="refused", why=why if steps > limit else row.meaning)


def estimator(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the advantage; REINFORCE++ may first subtract the mean of the group."""
    if str(value).lower() == "reinpp" and get("algorithm.use_reinpp_baseline") in (True, "True"):
        return Translation({row.ours[0]: "reinforce_plus_plus_baseline"}, "derived", "use_reinpp_baseline is on")
    settings = translated(row.ours[0], value)
    return Translation(settings, "same" if settings == {row.key: value} else "renamed")


def kl_in_reward(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates REINFORCE++'s KL in the reward; refused beside a KL in the loss."""
    if not number_of(value):
        return Translation(how="nothing", why="there is none")
    if number_of(get("algorithm.kl_beta")):
        return Translation(
            how="refused", why="kl_beta is above 0, too, and here one KL stands in the loss or in the reward"
        )
    return Translation({"algorithm.kl_beta": value, "algorithm.use_kl_in_reward": True}, "derived")


def kl_in_loss(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the weight of the KL in the loss; dropped beside a KL in the reward."""
    if not number_of(value) and number_of(get("algorithm.reinpp_kl_beta")):
        return Translation(how="nothing", why="the KL stands in the reward (reinpp_kl_beta)")
    return (
        Translation({row.ours[0]: value}, "same")
        if value is not None
        else Translation(how="nothing", why="nothing is set")
    )


RULES: Mapping[str | tuple[str, str], Rule] = {
    **{("rlinf", f"env.{side}.max_steps_per_rollout_epoch"): steps_of_round for side in ("train", "eval")},
    ("rlinf", "rollout.sampling_params.temperature_eval"): eval_temperature,
    ("rlinf", "algorithm.sampling_params.temperature_eval"): eval_temperature,
    ("rlinf", "rollout.sampling_params.max_new_tokens"): tokens,
    ("rlinf", "algorithm.normalize_advantages"): whitened,
    ("rlinf", "algorithm.adv_type"): estimator, ("rlinf", "algorithm.kl_beta"): kl_in_loss,
    ("rlinf", "algorithm.reinpp_kl_beta"): kl_in_reward,
    ("rlinf", "algorithm.use_reinpp_baseline"): nothing("adv_type says it"),
    ("rlinf", "algorithm.ratio_clip_eps"): width,
    ("rlinf", "env_type"): simulator, ("rlinf", "group_size"): group,
    ("rlinf", "actor.optim.lr_scheduler"): style, ("rlinf", "actor.optim.warmup_style"): style,
    ("rlinf", "actor.optim.lr_warmup_steps"): warmup, ("rlinf", "actor.optim.lr_warmup_steps_ratio"): warmup,
    ("rlinf", "actor.optim.total_training_steps"): total,
    ("rlinf", "algorithm.behave_weight_threshold"): capped,
    ("rlinf", "rollout.model.precision"): precision,
    ("rlinf", "data.apply_chat_template"): chat, ("rlinf", "data.use_chat_template"): chat,
}  # fmt: skip
