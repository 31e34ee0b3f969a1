"""Converts counts of starts, records and tokens from other systems: verl counts prompts, SimpleVLA-RL starts of a
robot's episodes, RLinf rounds.

Here an iteration of a robot has ``rollout_epoch · total_num_envs`` episodes, ``group_size`` from each start.
"""

from __future__ import annotations

import re
from typing import Any

from embodied.schema.keys.sections.algorithm import AlgorithmConfig
from embodied.schema.keys.sections.env import EnvSideConfig
from embodied.schema.others.tables import Row
from embodied.schema.others.translation import Lookup, Translation, Unknown, has, number_of
from embodied.schema.others.values import translated

ROBOTS = ("data.task_suite_name", "actor_rollout_ref.model.vla")
"""Keys that SimpleVLA-RL has and verl has not."""
VLA = ("vla.vla_type", "vla.num_envs", "vla.unnorm_key")
"""Keys that Cosmos-RL has of robots alone."""
SUPERVISED = ("model.path", "model.partial_pretrain", "optim.lr")
"""Keys of verl's supervised training."""
SLOTS = EnvSideConfig.model_fields["total_num_envs"].default
GROUP = AlgorithmConfig.model_fields["group_size"].default


def starts(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates verl's prompts of an iteration; of robots into rounds over the default env slots that have as many
    starts. Where they do not come out even, a round is one group."""
    given = number_of(value)
    if given is not None and any(has(get, key) for key in SUPERVISED):
        return Translation(
            {"actor.global_batch_size": int(given)}, "derived", "supervised: examples of an optimizer step"
        )
    if given is None or not any(has(get, key) for key in ROBOTS):
        return Translation(translated(row.ours[0], value), "renamed")
    samples = get("data.n_samples")
    number, group, slots = int(given), int(GROUP if samples is None else float(samples)), SLOTS
    rounds, rest = divmod(number * group, slots)
    if rest:
        rounds, slots = number, group
    return Translation(
        {"algorithm.rollout_epoch": rounds, "env.train.total_num_envs": slots}, "derived",
        f"{number} starts · {group} episodes = {rounds} rounds · {slots} env slots; fewer rounds of more slots, with "
        "the same product, are as many starts, and faster",
    )  # fmt: skip


def steps(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates RLinf's optimizer steps of an iteration into records of a step."""
    starts, group = get("data.rollout_batch_size"), get("algorithm.group_size")
    if not (starts and group and value):
        return Translation(how="derived", why="the records of an iteration divided by this")
    return Translation(
        {"actor.global_batch_size": int(starts) * int(group) // int(value)}, "derived",
        f"{starts} starts · {group} answers / {value} steps",
    )  # fmt: skip


def prompts(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates verl's batch size: prompts · ``rollout.n`` answers, because answers are counted here."""
    given = get("actor_rollout_ref.rollout.n")
    n = number_of(given) or (None if given is not None or isinstance(get, Unknown) else 1)
    count = number_of(value)
    if count is not None and any(has(get, key) for key in ROBOTS):
        why = "SimpleVLA-RL counts episodes, and here their chunks are counted"
        return Translation({"actor.global_batch_size": int(count)}, "derived", why)
    if n is None or count is None:
        why = "verl counts prompts, and here their answers are counted: this times rollout.n"
        return Translation(how="derived", why=why)
    records = int(count) * int(n)
    return Translation({"actor.global_batch_size": records}, "derived", f"{count:g} prompts · {n:g} answers to each")


def passes(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates passes over the problems (epochs); :mod:`embodied.migrate.texts` makes iterations of them."""
    if isinstance(get, Unknown):
        return Translation(
            how="derived", why=f"{row.name} counts passes over the data, and here iterations are counted"
        )
    return Translation(translated(row.ours[0], value), "renamed")


def count(devices: Any) -> int:
    """Counts the devices in ROLL's ``list(range(0,16))`` or in a list."""
    if isinstance(devices, list):
        return max(1, len(devices))
    bounds = re.search(r"range\((\d+)\s*,\s*(\d+)\)", str(devices))
    return max(1, int(bounds[2]) - int(bounds[1])) if bounds else 1


def per_replica(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates Cosmos-RL's batch size of each model replica."""
    n, replicas = get("rollout.n_generation"), get("policy.parallelism.n_init_replicas") or 1
    if get("train.train_policy.type") == "sft" and value:
        examples = int(value) * int(replicas)
        return Translation({"actor.global_batch_size": examples}, "derived", f"{value} examples · {replicas} replicas")
    if not n or not value:
        return Translation(how="derived", why="samples of an iteration divided by rollout.n_generation")
    if slots := get("vla.num_envs"):
        rounds, rest = divmod(int(value) * int(replicas), int(slots))
        why = f"{value} episodes · {replicas} replicas / {slots} env slots"
        settings = {"algorithm.rollout_epoch": rounds}
        if not number_of(get("train.train_policy.batch_size_per_optimize")):
            settings["actor.global_batch_size"] = int(value) * int(replicas)  # one optimizer step takes them all
        if rest:
            return Translation(how="refused", why=f"{why} is no whole number of rounds")
        return Translation(settings, "derived", why)
    samples = int(value) * int(replicas)
    settings = {"data.rollout_batch_size": max(1, samples // int(n))}
    if not number_of(get("train.train_policy.batch_size_per_optimize")):
        settings["actor.global_batch_size"] = samples  # one optimizer step takes them all
    return Translation(settings, "derived", f"{value} samples · {replicas} replicas / {n}")


def groups(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates RLinf's groups at a time into env slots, of which each runs one episode."""
    group = get("algorithm.group_size")
    if not group or not value:
        return Translation(how="derived", why="num_group_envs times algorithm.group_size")
    slots = int(value) * int(group)
    return Translation({"env.train.total_num_envs": slots}, "derived", f"{value} groups of {group} episodes")


def stages(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates RLinf's pipeline stages: parts of the slots that take turns, here only in a lockstep."""
    settings = {row.ours[0]: value}
    if (number_of(value) or 0) <= 1:
        return Translation(settings, "same")
    return Translation(
        {**settings, "rollout.schedule": "lockstep"}, "derived", "parts of the slots take turns in a lockstep"
    )


def whole_length(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates Cosmos-RL's length of prompt and answer together; the prompt may fill what the answer leaves."""
    if any(has(get, key) for key in VLA):
        return Translation(how="nothing", why="the length of an instruction is actor.model.max_prompt_length")
    if get("train.train_policy.type") == "sft":
        both = "data.max_prompt_length and algorithm.sampling_params.max_new_tokens"
        return Translation({}, "extra", f"prompt and answer have a length each here: share the {value} out to {both}")
    whole, answer = number_of(value), number_of(get("rollout.max_response_length"))
    if whole is None or answer is None or answer >= whole:
        return Translation(translated(row.ours[0], value), "renamed")
    settings = {row.ours[0]: value, "data.max_prompt_length": int(whole - answer)}
    return Translation(settings, "derived", f"{whole:g} − {answer:g} of the answer is left for the prompt")
