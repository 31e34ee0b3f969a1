"""Says what a dry run's iteration sends between its processes, which link saturates first, and what to change."""

from __future__ import annotations

from collections.abc import Mapping

from embodied import instructions, schema
from embodied.parallel.group import Group
from embodied.parallel.links import Link, Traffic, busiest, links
from embodied.parallel.shard_sizes import parts_of
from embodied.run.build.given import Sides
from embodied.run.build.policy import Sizes
from embodied.run.memory.counting import Counted
from embodied.run.memory.footprint import Weights
from embodied.run.placement.table import table_of
from embodied.types import ArraySpec, PolicySpec

SCORED = ("num_steps", "rewards", "version", "length", "value", "progress_features")
"""Fields of a record that scoring reads, beside those of the observation and of the decision."""
RESULTS = (
    "rewards", "num_steps", "terminated", "truncated", "success", "progress", "solved_at", "progress_features",
)  # fmt: skip
"""Fields of a record that a simulator writes beside the observation."""


def rows(
    config: schema.Config, sides: Sides, processes: Group, numbers: Sizes, spec: PolicySpec, counted: Counted
) -> list[list[str]]:  # fmt: skip
    """Returns a row a link, and one of the link that saturates first; none for a run of one process without hosts."""
    table = table_of(config, processes)
    if len(table.ranks) == 1 and not table.hosts:
        return []
    sizes, speed = traffic(config, sides, processes, numbers, spec, counted), config.cluster.network_gbps
    found = links(table, sizes)
    change = _changes(sizes, counted.whole or counted.weights)
    return [*([link.name, _told(link, speed)] for link in found if link.total), _first(busiest(found), speed, change)]


def traffic(
    config: schema.Config, sides: Sides, processes: Group, numbers: Sizes, spec: PolicySpec, counted: Counted
) -> Traffic:  # fmt: skip
    """Returns the sizes of an iteration."""
    learners = processes.of("train").size
    records = numbers.episodes * -(-sides.train.max_steps // spec.num_action_chunks)
    finals = numbers.episodes if config.algorithm.bootstraps else 0
    fields, obs = numbers.fields, sides.train.spec.obs
    whole, fsdp = counted.whole or counted.weights, config.actor.fsdp_config
    told = () if instructions.FIELD in obs else ("task_id",)
    sharded = counted.gathered.act
    passes = -(-records // (config.actor.micro_batch_size * learners)) * config.algorithm.update_epoch
    steps = numbers.optimizer_steps
    return Traffic(
        groups=numbers.groups, episodes=numbers.episodes, records=records, observations=records + finals,
        observation=_bytes(fields, {*obs, *RESULTS}), record=_bytes(fields, {*obs, *spec.decision, *SCORED, *told}),
        trained=whole.trained or 0, steps=steps, gathered=sharded,
        gathers=1 + passes * (2 if fsdp.reshard_after_forward else 1),
        scatters=steps if fsdp.enable_gradient_accumulation else max(passes, steps), shards=parts_of(fsdp, learners),
    )  # fmt: skip


def _bytes(fields: Mapping[str, ArraySpec], names: set[str]) -> int:
    return sum(field.nbytes for name, field in fields.items() if name in names)


def _told(link: Link, speed: float | None) -> str:
    if not link.most:
        return f"{readable(link.total)} an iteration, none of it between nodes"
    took = "" if speed is None else f": {_seconds(link.seconds(speed))} at {speed:g} Gb/s"
    return f"{readable(link.total)} an iteration, at most {readable(link.most)} through one node ({link.node}){took}"


def _first(link: Link | None, speed: float | None, change: Mapping[str, str]) -> list[str]:
    if link is None:
        return ["saturates first", "nothing: no byte leaves its node"]
    took = "cluster.network_gbps=N says for how long" if speed is None else _seconds(link.seconds(speed))
    return ["saturates first", f"{link.name} ({took}). To send less: {change[link.name]}"]


def _changes(sizes: Traffic, weights: Weights) -> dict[str, str]:
    """Returns what lowers the bytes of each link."""
    fewer = "train adapters in place of all weights, " if weights.trained == weights.all else ""
    within = ", or set actor.fsdp_config.fsdp_size to the processes of a node, which then gather weights within it"
    return {
        "host → rollout": "use smaller or fewer pictures, or let processes on more nodes act, each with fewer slots",
        "rollout → train": "let the same devices act and train (cluster.component_placement=all): records then stay",
        "train → rollout": f"{fewer}or let the same devices act and train".removeprefix("or "),
        "among train ranks": f"{fewer}raise actor.global_batch_size, which makes fewer optimizer steps"
        + (within if sizes.gathered else ""),
        "everything small": "let fewer processes collect more episodes each",
    }


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s of an iteration"


def readable(size: float) -> str:
    """Formats bytes as networks count them.

    >>> readable(25_800_000_000), readable(1_300)
    ('25.8 GB', '1.3 kB')
    """
    for unit in ("GB", "MB", "kB"):
        if size >= (large := {"GB": 1e9, "MB": 1e6, "kB": 1e3}[unit]):
            return f"{size / large:.1f} {unit}"
    return f"{size:.0f} B"
