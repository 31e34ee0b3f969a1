"""Runs one evaluation with variations that must not change its numbers (``python -m embodied.eval … selftest=true``).

| run | differs from the first in |
|---|---|
| as asked | |
| other number of envs | ``env.eval.total_num_envs`` |
| the same, with the rows of a policy call that it has by itself | that, and ``rollout.policy_batch`` |
| other schedule | ``rollout.schedule`` |
| other renderer | ``env.eval.renderer``, where the machine has two |

The same episodes run each time, so they are compared one by one. Rows of a policy call (``rollout.policy_batch``) are
part of the arithmetic. They stay those of the first run, but for the third of the table: who sets another number of
envs gets other rows, too, unless the rows are set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from embodied.errors import ConfigError, RendererUnavailableError
from embodied.lib.targets import arguments_of
from embodied.observe import statistics
from embodied.observe.terminal.console import Console
from embodied.parallel.group import Group
from embodied.protocols import NeedsOfMachine, Policy
from embodied.run import summary
from embodied.run.build.given import Checked, ConfiguredEnv, Sides
from embodied.run.build.policy import sizes
from embodied.run.build.shares import slots_of
from embodied.run.build.simulators import MAX_POLICY_BATCH, rows_of_call
from embodied.run.evaluation.conditions import conditions
from embodied.run.evaluation.evaluator import EvaluationRunner
from embodied.run.evaluation.protocol import described, protocol
from embodied.run.session import Session, open_session
from embodied.runtime.engine.engine import Engine
from embodied.runtime.signals import StopSignal
from embodied.schema import Config
from embodied.schema.compose.compose import Composed
from embodied.types import EpisodeResult, WorkerFacts

NAME = "selftest.json"


class Variation(NamedTuple):
    """A configuration of the self-test's evaluation, with its envs."""

    composed: Composed
    sides: Sides


@dataclass(frozen=True)
class Difference:
    """How a varied evaluation's episodes differ from those of the first run, on the same starts."""

    name: str  # name of the variation
    successes: int
    episodes: int  # episodes that both have run
    other_success: int  # episodes with another success
    other_steps: int  # episodes with another number of control steps
    other_return: int
    largest_return: float  # largest difference of an episode's return
    other_progress: int  # episodes with another progress, which the smallest deviation of a motion changes
    largest_progress: float
    difference: float  # difference of the success rates, this run − the first
    low: float  # its 95 % interval, of pairs (Tango)
    high: float

    @property
    def zero(self) -> bool:
        """Returns whether every episode gave the same numbers."""
        return not (self.other_success or self.other_steps or self.other_return or self.other_progress)


def run(checked: Checked, console: Console, stop: StopSignal) -> None:
    """Runs the evaluation once as asked and once under each variation, prints the differences and writes them.

    Raises:
        Stopped: a signal came before there were results.
    """
    composed, sides, processes = checked.composed, checked.sides, checked.processes
    config = composed.config
    with ExitStack() as opened:
        session = opened.enter_context(open_session(checked, console, counts=False, played=[sides.eval]))
        engine, policy = opened.enter_context(session.engine()), session.model.policy
        numbers = sizes(config, sides, processes, policy.spec)
        lines = summary.of_evaluation(composed, sides.eval, processes, session.model, numbers, session.path)
        console.table(config.runner.experiment_name or "", lines)
        if config.runner.dry_run:
            return
        stop.hold_from_now()
        asked = Variation(composed, sides)
        usual = prepared(asked, processes, policy)
        console.say("as asked")
        first, facts = _results(session, usual, engine, stop)
        simulator, side = described(facts), usual.sides.eval
        under = conditions(usual.composed.config, side, policy, session.path, 0)
        held_to = protocol(usual.composed, side, under, facts, policy)
        console.say(held_to.head)
        others = variations(usual, asked.composed.config.rollout.policy_batch, processes, policy,
                            simulator.get("renderer", ""), console)  # fmt: skip
        rows = []
        for name, other in others:
            console.say(name)
            same = other.sides.eval.kwargs == side.kwargs  # the server has prepared the first renderer
            forked = session if same else replace(session, server=None)
            rows.append(difference(name, first, _results(forked, other, engine, stop)[0]))
        if processes.is_main:
            found = {
                "protocol": held_to.named,
                "simulator": simulator,
                "runs": [asdict(row) | {"zero": row.zero} for row in rows],
            }
            (session.path / NAME).write_text(json.dumps(found, indent=1), encoding="utf-8")
        console.table("selftest: against the run as asked, on the same starts", cells(rows))
        console.say(verdict(rows))


def _results(
    session: Session, one: Variation, engine: Engine | None, stop: StopSignal
) -> tuple[list[EpisodeResult], Sequence[WorkerFacts]]:  # fmt: skip
    simulators = session.simulators(one.composed.config, one.sides, engine)
    return EvaluationRunner(one.composed, one.sides.eval, simulators, session.path, session.reporter).results(stop)


def prepared(variation: Variation, processes: Group, policy: Policy) -> Variation:
    """Prepares the self-test's first evaluation: no videos, and a fixed number of rows a policy call."""
    config = variation.composed.config
    video = config.env.eval.video_cfg.model_copy(update={"save_video": False})
    return _changed(variation, {"video_cfg": video}, {"policy_batch": _rows(config, processes, policy)})


def _rows(config: Config, processes: Group, policy: Policy) -> int:
    """Rows of a policy call of an evaluation."""
    return rows_of_call(policy, config.rollout, slots_of(config, processes.of("rollout")))


def variations(
    usual: Variation, policy_batch: int | None, processes: Group, policy: Policy, renderer: str, console: Console
) -> Iterator[tuple[str, Variation]]:
    """Yields variations of the first evaluation that must not change its numbers (slots, batch, renderer), each with
    its name.

    Args:
        usual: the first run, as :func:`prepared` gives it.
        policy_batch: rows of a policy call that the user asked for.
        renderer: that drew the first run.
    """
    side, config, most = usual.sides.eval, usual.composed.config, processes.of("rollout").size
    rollout = config.rollout
    slots = side.config.total_num_envs
    other = max(most, slots // 2) if slots > 1 else 2
    if other != slots:
        yield f"env.eval.total_num_envs={other} in place of {slots}", _changed(usual, {"total_num_envs": other}, {})
    for few in dict.fromkeys((other, max(most, MAX_POLICY_BATCH // 2))):
        by_itself = _changed(usual, {"total_num_envs": few}, {"policy_batch": policy_batch})
        rows = _rows(by_itself.composed.config, processes, policy)
        if (
            few != slots
            and rows != _rows(config, processes, policy)
            and config.algorithm.val_rollout_batch_size_per_gpu is None
        ):
            name = f"env.eval.total_num_envs={few} in place of {slots}, with its own rows of a policy call ({rows})"
            yield name, by_itself
            break
    schedule = "lockstep" if rollout.schedule == "ready" else "ready"
    also = {"schedule": schedule, "pipeline_stage_num": 1}
    yield f"rollout.schedule={schedule} in place of {rollout.schedule}", _changed(usual, {}, also)
    for name in _renderers(side, renderer, console):
        yield f"env.eval.renderer={name} in place of {renderer}", _changed(usual, {"renderer": name}, {})


def _renderers(side: ConfiguredEnv, used: str, console: Console) -> Iterator[str]:
    """Yields the other renderers of the env that work here."""
    takes = "renderer" in arguments_of(side.config.target, "env.eval._target_").named
    if not takes or not isinstance(side.env, NeedsOfMachine):
        return
    drawing = {name.lower(): draw for name, draw in side.env.needs().renderers.items()}
    if used not in drawing:
        return
    for name, draw in drawing.items():
        if name != used:
            try:
                draw()
            except RendererUnavailableError as error:
                console.say(f"no run with renderer {name}: {error.message}")
            else:
                yield name


def _changed(usual: Variation, of_eval: dict[str, Any], of_rollout: dict[str, Any]) -> Variation:
    config, before = usual.composed.config, usual.sides.eval
    side = config.env.eval.model_copy(update=of_eval)
    rollout = config.rollout.model_copy(update=of_rollout)
    env = config.env.model_copy(update={"eval": side})
    composed = replace(usual.composed, config=config.model_copy(update={"env": env, "rollout": rollout}))
    kwargs = {**before.kwargs, **{key: value for key, value in of_eval.items() if key == "renderer"}}
    return Variation(composed, usual.sides._replace(eval=replace(before, config=side, kwargs=kwargs)))


def difference(name: str, first: Sequence[EpisodeResult], second: Sequence[EpisodeResult]) -> Difference:
    """Compares the episodes that two evaluations have in common.

    Raises:
        ConfigError: there are none.
    """
    before = {result.episode.episode_id: result for result in first if not result.not_run}
    pairs = [(before[one.episode.episode_id], one) for one in second
             if not one.not_run and one.episode.episode_id in before]  # fmt: skip
    if not pairs:
        raise ConfigError(f"{name}: no episode could be run both ways", "look into the workers' logs")
    both = statistics.paired([one.success for one, _ in pairs], [other.success for _, other in pairs])
    returns = [abs(other.episode_return - one.episode_return) for one, other in pairs]
    progress = [abs(other.progress - one.progress) for one, other in pairs]
    return Difference(
        name, both.second, both.starts, sum(one.success != other.success for one, other in pairs),
        sum(one.num_steps != other.num_steps for one, other in pairs), sum(gap != 0 for gap in returns), max(returns),
        sum(gap != 0 for gap in progress), max(progress),
        both.difference, both.low, both.high,
    )  # fmt: skip


def cells(rows: Sequence[Difference]) -> list[list[str]]:
    """Formats the differences as a table."""
    head = [
        "run",
        "success",
        "difference",
        "95 % interval",
        "other success",
        "other length",
        "other progress",
        "largest gap",
    ]
    return [
        head,
        *(
            [
                row.name, f"{row.successes}/{row.episodes}", f"{row.difference:+.1%}",
                f"{row.low:+.1%} to {row.high:+.1%}", str(row.other_success), str(row.other_steps),
                str(row.other_progress), f"{row.largest_progress:.3g}",
            ]
            for row in rows
        ),
    ]  # fmt: skip


def verdict(rows: Sequence[Difference]) -> str:
    """Says in words whether numbers depend on something that they must not depend on, and by how much."""
    wrong = [row for row in rows if not row.zero]
    if not wrong:
        return f"no difference: each of {rows[0].episodes} episodes gave the same numbers in {len(rows) + 1} runs"
    worst = max(wrong, key=lambda row: (row.other_success, row.other_progress))
    return (
        f"{len(wrong)} of {len(rows)} runs differ from the one as asked; the largest: {worst.other_success} of "
        f"{worst.episodes} episodes with another success ({worst.name}). Take differences of this size between two "
        "checkpoints for noise"
    )
