"""Rules for keys of other systems whose values mean something else here, or depend on other keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from embodied.schema.others.tables import Row
from embodied.schema.others.values import Settings, translated

How = Literal["same", "renamed", "derived", "extra", "refused", "nothing"]


@dataclass(frozen=True)
class Translation:
    """How a key of another system is translated: into which settings of ours, and why."""

    settings: Settings = field(default_factory=dict)
    how: How = "renamed"
    why: str = ""


Lookup = Callable[[str], Any]
"""Their key → its value, null if their file has none."""
Rule = Callable[[Row, Any, Lookup], Translation]


def plain(value: Any) -> str:
    """Normalises a value for comparison with a table's default: lower case, "none" for nothing."""
    text = str(value).lower()
    return "none" if text in ("null", "-", '""', "") else text


@dataclass(frozen=True)
class Unknown:
    """Stands for the other keys of a foreign file where they are unknown, but perhaps for the group size."""

    group_size: int | None = None

    def __call__(self, key: str) -> Any:
        return self.group_size if key in ("algorithm.group_size", "actor_rollout_ref.rollout.n") else None


unknown = Unknown()


class Unresolved(str):
    """A value in a foreign file that only a run of its program can know. Nothing is computed from its text."""


class UnresolvedError(Exception):
    """A rule asked for the value of the foreign key ``key``, which cannot be resolved."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def has(get: Lookup, key: str) -> bool:
    """Returns whether their file has a key, also with a value that cannot be resolved."""
    try:
        return get(key) not in (None, "")
    except UnresolvedError:
        return True


def number_of(value: Any) -> float | None:
    """Converts a value to a number; None if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def only_if(value: Any, settings: Settings, why: str = "") -> Translation:
    """Translates to ``settings`` if ``value`` is true; otherwise to nothing."""
    return Translation(settings if value else {}, "derived" if value else "nothing", why if not value else "")


def only_off(why: str) -> Rule:
    """Makes the rule for a switch that can only be off here; on is refused."""
    return lambda row, value, get: Translation(how="refused" if value in (True, "True", "true") else "nothing", why=why)


def nothing(why: str) -> Rule:
    """Makes the rule for a key that needs no counterpart here, whatever its value."""
    return lambda row, value, get: Translation(how="nothing", why=why)


def offload(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates RLinf's switch for offloading; the weights stay on the device."""
    why = "optimizer and reference; weights stay, because the policy acts with them" if value is True else ""
    return Translation({row.ours[0]: value}, "same", why)


def kl_loss(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the KL loss of verl and ROLL, whose coefficient counts only if its switch is on."""
    switch, in_reward = {
        "verl": ("actor_rollout_ref.actor.use_kl_loss", "algorithm.use_kl_in_reward"),
        "roll": ("use_kl_loss", "add_token_level_kl"),
    }["roll" if row.system == "roll" else "verl"]
    on = get(switch)
    if row.key.endswith("use_kl_loss"):
        return Translation(how="nothing", why="algorithm.kl_beta above 0 switches it on") if value else Translation(
            {} if get(in_reward) else {"algorithm.kl_beta": 0.0}, "derived"
        )  # fmt: skip
    if on and get(in_reward) and not isinstance(get, Unknown):
        return Translation(
            how="refused", why=f"{in_reward} is on, too, and here one KL stands in the loss or in the reward"
        )
    if isinstance(get, Unknown) or on:
        return Translation(translated(row.ours[0], value), "renamed")
    return Translation(how="nothing", why="use_kl_loss is off")


def kl_reward(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the weight of the KL in the reward, which counts only if its switch is on."""
    switch = "add_token_level_kl" if row.system == "roll" else "algorithm.use_kl_in_reward"
    if isinstance(get, Unknown) or get(switch):
        return Translation(translated(row.ours[0], value), "renamed")
    return Translation(how="nothing", why=f"{switch.rpartition('.')[2]} is off")


def clip_range(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the ratio's clip of ROLL, which has one width or two."""
    if row.key == "use_pg_clip_range":
        return Translation(how="nothing", why="pg_clip_low and pg_clip_high say it" if value else "pg_clip says it")
    if not isinstance(get, Unknown) and bool(get("use_pg_clip_range")) != (row.key != "pg_clip"):
        return Translation(how="nothing", why=f"use_pg_clip_range is {'on' if row.key == 'pg_clip' else 'off'}")
    return Translation(dict.fromkeys(row.ours, value), "renamed")


def clip_ratio(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates verl's single width of the ratio's clip, for the sides that have none of their own."""
    own = {
        f"algorithm.{name}": get(f"actor_rollout_ref.actor.{name}") for name in ("clip_ratio_low", "clip_ratio_high")
    }
    settings = {key: value for key in row.ours if own[key] is None}
    if len(settings) == len(row.ours):
        return Translation(settings, "renamed")
    why = "clip_ratio_low and clip_ratio_high come before it"
    return Translation(settings, "derived" if settings else "nothing", why)


def dual_clip(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates ROLL's switch for the dual clip, whose constant follows from the clip."""
    clip = number_of(get("pg_clip"))
    return only_if(value, {row.ours[0]: 1 + 2 * (0.2 if clip is None else clip)}, "it is off")


def filtered(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the metric that DAPO filters by in verl: ``acc`` is success, the others are the return."""
    if value is None:
        return Translation(how="nothing", why="nothing is set")
    return Translation({row.ours[0]: "success" if value == "acc" else "return"}, "renamed")


def both_sides(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a bound on both sides, ±value, into a lower and an upper one."""
    number = number_of(value)
    if not number:
        return Translation(how="nothing", why="nothing is set")
    return Translation({row.ours[0]: -number, row.ours[1]: number}, "renamed")


def loggers(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the trackers, without the console, which shows metrics anyway."""
    given = [value] if isinstance(value, str) else list(value or [])
    names = [name for name in given if name not in ("console", "stdout")]
    shown = "" if names == given else "the console always shows the metrics"
    return Translation(
        {"runner.logger.logger_backends": ["jsonl", *(n for n in names if n != "jsonl")]}, "renamed", shown
    )


def switched(backend: str) -> Rule:
    """Makes the rule for the switch of a tracker: on adds ``backend``."""
    return lambda row, value, get: only_if(value, {"runner.logger.logger_backends": ["jsonl", backend]}, "it is off")


def resume(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates resuming: verl has ``resume_mode`` and a path, Cosmos-RL a switch or a path."""
    if row.key.endswith("resume_from_path"):
        return only_if(value, {"runner.resume_dir": value}, "it begins anew")
    if value in (True, "auto"):
        return Translation({"runner.resume_dir": "auto"}, "renamed")
    if value in (False, None, "disable", "False", "resume_path"):
        return Translation(how="nothing", why="it begins anew, or goes on from the path")
    return Translation({"runner.resume_dir": value}, "renamed")


def shard(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates Cosmos-RL's number of shards; 1 and -1 need no key here."""
    if row.key.endswith("dp_replicate_size"):
        return Translation(how="nothing", why="processes beyond fsdp_size hold further copies")
    return only_if((number_of(value) or 0) > 1, {"actor.fsdp_config.fsdp_size": value}, "one process holds it all")


def either(on: Settings, off: Settings | None = None, why: str = "") -> Rule:
    """Makes the rule for a switch that stands for settings: ``on``, or ``off`` where it is not set."""

    def rule(row: Row, value: Any, get: Lookup) -> Translation:
        settings = on if value in (True, "true", "True") else off or {}
        return Translation(settings, "derived" if settings else "nothing", why)

    return rule


def opposite(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a switch whose counterpart has the opposite meaning."""
    return Translation({row.ours[0]: not value}, "renamed", "the opposite")


def unless(key: str) -> Rule:
    """Makes the rule for a frequency that the switch ``key`` may turn off."""

    def rule(row: Row, value: Any, get: Lookup) -> Translation:
        if row.key == key:
            on = Translation(how="nothing", why="its frequency says it")
            return on if value else Translation({row.ours[0]: -1}, "derived")
        off = not isinstance(get, Unknown) and not get(key)
        return Translation(how="nothing", why=f"{key} is off") if off else Translation({row.ours[0]: value}, "renamed")

    return rule


def frequency(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a frequency in iterations; 0 and below mean never."""
    count = number_of(value)
    return Translation({row.ours[0]: -1 if count is None or count <= 0 else int(count)}, "renamed")


def warmup(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a warm-up: a share below 1, else steps; dropped if negative."""
    number = number_of(value)
    if number is None or number < 0:
        return Translation(how="nothing", why="the share of all steps says it")
    share = 0 < number < 1
    return Translation({f"actor.lr_sched.lr_warmup_{'fraction' if share else 'iters'}": value}, "renamed")


def positive(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a number that counts only if it is positive."""
    number = number_of(value)
    if not (number and number > 0):
        return Translation(how="nothing", why="nothing is set")
    return Translation({row.ours[0]: value}, "renamed")


def cold(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates sampling's temperature and top-k; temperature 0 and top-k 1 mean greedy."""
    number = number_of(value)
    section = row.ours[0].rpartition(".")[0]
    greedy = (number == 0) if row.ours[0].endswith("temperature") else (number == 1)
    if greedy:
        return Translation({f"{section}.do_sample": False}, "derived", "the likeliest token")
    if number is None:
        return Translation(how="nothing", why="nothing is set")
    sampling = {f"{section}.do_sample": True} if "val_" in section else {}
    return Translation({**translated(row.ours[0], value), **sampling}, "renamed")


def adapters(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates verl's rank of adapters, which also switches them on."""
    rank = int(number_of(value) or 0)
    settings = {"actor.model.is_lora": rank > 0, **({"actor.model.lora_rank": rank} if rank else {})}
    return Translation(settings, "derived", "is_lora decides whether there are adapters")


def reshard(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates Cosmos-RL's switch that frees gathered weights after the forward pass."""
    return Translation({row.ours[0]: value not in ("never", False, "False")}, "renamed")


def flash(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the attention; flash-attn becomes sdpa, which computes the same without that package."""
    if value in (None, "", "sdpa", "eager"):
        return Translation({row.ours[0]: value}, "same") if value else Translation(how="nothing", why="nothing is set")
    return Translation(
        {row.ours[0]: "sdpa"}, "extra", "flash_attention_2 needs the package flash-attn; sdpa computes the same"
    )


def wrist(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the switch for the wrist camera into the cameras' names."""
    if value not in (True, "True"):
        return Translation(how="nothing", why="one camera is the default")
    both = ("agentview", "robot0_eye_in_hand")
    sides = {f"env.{side}.init_params.camera_names": [*both] for side in ("train", "eval")}
    return Translation({"actor.model.num_images_in_input": 2, **sides}, "derived")


def strategy(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the name of the training backend (FSDP, Megatron, DeepSpeed)."""
    name = str(value).lower()
    if name.startswith("fsdp"):
        ours = "fsdp2" if name.startswith("fsdp2") else "fsdp"
        return Translation({"actor.training_backend": ours}, "renamed")
    if row.key.startswith("reference"):
        return Translation(how="nothing", why="the reference is computed where the policy is trained")
    return Translation(
        how="refused", why=f"there is no {value} here: one process trains alone, several replicate or use fsdp2"
    )


def staleness(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates Cosmos-RL's limit of weight staleness, in which ``on_policy`` wins."""
    if row.key.endswith("on_policy"):
        return only_if(value, {row.ours[0]: 0}, "allowed_outdated_steps says it")
    if row.key.endswith("fetch_batch_size"):
        return Translation(how="nothing", why="follows from algorithm.max_staleness")
    off = get("train.train_policy.on_policy")
    return Translation(how="nothing", why="on_policy is set") if off else lag_within(row, value)


def lag_within(row: Row, limit: Any) -> Translation:
    """Translates a limit of the age of weights. Here it is a fixed lag, and 1 is the least beside updates."""
    if isinstance(limit, int | float) and limit > 1:
        return Translation({row.ours[0]: 1}, "derived", f"at most {limit:g} there, a fixed lag here: 1 is the least")
    return Translation({row.ours[0]: limit}, "renamed")


def betas(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a pair of Adam's betas into two keys."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return Translation(how="refused", why="two numbers are expected")
    return Translation(dict(zip(row.ours, value, strict=True)), "derived")


def schedule(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates synchronous or asynchronous rollouts into the schedule of env slots."""
    ready = value in (True, "async", "True")
    return Translation({"rollout.schedule": "ready" if ready else "lockstep"}, "renamed")


def turns(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates Cosmos-RL's most turns of a conversation, which count only if its switch is on."""
    if row.key.endswith("enable"):
        return Translation(how="nothing", why="max_assistant_turns says it" if value else "one turn is the default")
    if not isinstance(get, Unknown) and not get("rollout.multi_turn_config.enable"):
        return Translation(how="nothing", why="several turns are off")
    return Translation(dict.fromkeys(row.ours, value), "renamed")


def template(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the name of a chat template; only the tokenizer's own has a counterpart."""
    if value in (None, "", "native"):
        return Translation(how="nothing", why="the tokenizer's own chat template")
    return Translation(how="refused", why=f"'{value}' is a name of ROLL's; give a file with a Jinja template")
