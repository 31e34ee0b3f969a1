"""Checks an exported folder by evaluation: the policy that is read from it against the checkpoint's, greedy, on equal
starts.

    checkpoint ─ load ─────────▶ policy ─▶ episodes ─▶ observations, actions, results
    folder ─ load ─────────────▶ policy ─▶ episodes ─▶ results          same starts
                                     └───▶ actions ◀── observations     same observations

"Verified" needs both: actions agree on the same observations, and success on the same starts does not differ by more
than chance. Equal success alone says little after few episodes, and equal actions say nothing of what follows them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodied.errors import ConfigError
from embodied.export.observations import GREEDY, examples_of, spread
from embodied.instructions import fields_of
from embodied.learn.checkpoint.exported import read_export
from embodied.observe.statistics import Paired, paired
from embodied.observe.terminal.console import Console
from embodied.parallel.group import Group
from embodied.parallel.sharding import Replicas
from embodied.protocols import ROUNDINGS, Examples, Policy
from embodied.random import Stream
from embodied.run.build.given import ConfiguredEnv, Sides
from embodied.run.build.policy import Model, reproducible_arithmetic
from embodied.run.build.preflight import check
from embodied.run.build.simulators import Simulators, Workers, policy_batch
from embodied.run.evaluation.conditions import Conditions, conditions, sampling_facts
from embodied.run.evaluation.protocol import protocol
from embodied.run.folder.reporter import Reporter
from embodied.runtime.policy.policy_port import Draw, Request
from embodied.runtime.rollout.rollout import Job
from embodied.runtime.wait_policy import cores_are_shared
from embodied.schema import Config
from embodied.schema.compose.compose import Composed, compose
from embodied.serving.loading import load
from embodied.types import ContinuousAction, EnvSpec, Episode, EpisodeResult, WorkerFacts

EPISODES = 8  # unless ``episodes=N`` says otherwise
MOST_RECORDS = 256  # observations on which actions are compared
NOT_HERE = ("model", "algorithm", "actor.")
"""Beginnings of keys that name the policy, which the folder does."""


@dataclass(frozen=True)
class Tolerance:
    """Tolerance for actions: they agree if at least ``share`` of their numbers differ by at most ``largest``."""

    largest: float  # largest difference that counts as equal, relative to the range of the action dimension
    share: float

    def __str__(self) -> str:
        return f"{self.share:.1%} of the actions' numbers within {self.largest:g} of their range"


EXACT, ROUNDED, COARSE = Tolerance(1e-4, 0.999), Tolerance(0.01, 0.95), Tolerance(0.02, 0.9)
"""For fp32 (sums in another order decide between two equally likely tokens now and then), for 16 bits (a token next to
the likeliest is one of 255 bins away), and for int8."""
TOLERANCES = dict(zip(ROUNDINGS, (EXACT, ROUNDED, COARSE), strict=True))
"""What may differ, by what the folder or its run rounds (``ExportFile.rounding``)."""


@dataclass(frozen=True)
class Agreement:
    """Agreement of greedy actions on the same observations."""

    observations: int
    share: float  # share of the numbers that are within the tolerance
    largest: float  # largest difference, relative to the range of the action dimension
    mean: float
    episodes: tuple[float, ...]  # the share, in each episode that was compared


@dataclass(frozen=True)
class Verdict:
    """The result of verifying an export: agreement of actions, and paired success."""

    env: str  # overrides that named it
    episodes: int
    protocol: Mapping[str, str | None]  # name and hash, of both evaluations
    tolerance: Tolerance
    agreement: Agreement
    success: Paired
    # the episodes that differ: start, success, return and steps of each, share of equal actions
    differ: list[dict[str, Any]]

    @property
    def verified(self) -> bool:
        return self.agreement.share >= self.tolerance.share and not self.success.differ

    def as_json(self) -> dict[str, Any]:
        return {
            "verified": self.verified, "env": self.env, "episodes": self.episodes, "protocol": self.protocol,
            "tolerance": asdict(self.tolerance),
            "agreement": asdict(self.agreement), "success": self.success._asdict(), "differ": self.differ,
        }  # fmt: skip

    @property
    def lines(self) -> list[str]:
        """Returns the verdict as lines of text."""
        found, both = self.agreement, self.success
        return [
            f"{'verified' if self.verified else 'NOT VERIFIED'}: {self.env}, {self.episodes} greedy episodes each, "
            f"protocol {self.protocol['name'] or 'of no name'} ({self.protocol['hash']})",
            f"actions: {found.share:.2%} agree on {found.observations} observations (needed: "
            f"{self.tolerance}), largest difference {found.largest:.2g}, mean {found.mean:.2g} of the range",
            f"success: {both.first}/{both.starts} by the checkpoint, {both.second}/{both.starts} by the export; "
            f"difference {both.difference:+.0%}, 95 % interval {both.low:+.0%} to {both.high:+.0%}",
            f"episodes that differ: {len(self.differ)}",
        ]

    @property
    def table(self) -> list[list[str]]:
        """The episodes that differ; the head is the first row."""
        head = ["task", "initial state", "seed", "", "success", "return", "steps", "equal actions"]
        rows = [
            [*(str(one["start"][key]) for key in ("task_id", "init_state_id", "seed")), who, *_cells(one, who)]
            for one in self.differ
            for who in ("checkpoint", "export")
        ]
        return [head, *rows]


def _cells(one: Mapping[str, Any], who: str) -> list[str]:
    facts, share = one[who], one["equal_actions"]
    equal = "" if share is None or who == "checkpoint" else f"{share:.1%}"
    return ["yes" if facts["success"] else "no", f"{facts['return']:.4g}", str(facts["steps"]), equal]


@dataclass(frozen=True)
class VerifyRequest:
    """The evaluation that ``export --verify`` was asked to make."""

    env: str  # overrides that name it
    composed: Composed
    sides: Sides
    episodes: int
    logs: Path  # folder for what the workers say
    base: str | None = None  # address of the server of the policy that a head changes


@contextmanager
def verify_request(overrides: Sequence[str], config_dirs: Sequence[str] = ()) -> Iterator[VerifyRequest]:
    """Composes and checks the evaluation of ``export --verify``, before anything else runs. It sets how this process
    computes, too, which must come before torch computes.

    Args:
        overrides: of an evaluation, e.g. ``["env=libero_spatial", "episodes=4"]``; ``episodes`` counts all of them.

    Raises:
        ConfigError: an override names a policy.
        EmbodiedError: what else keeps an evaluation from running.
    """
    with tempfile.TemporaryDirectory(prefix="embodied-verify-") as logs:
        named = " ".join(one for one in overrides if not one.startswith("episodes="))
        yield _asked(named, overrides, config_dirs, logs)


def verify(checkpoint: Path, folder: Path, requested: VerifyRequest, console: Console, device: str = "cpu") -> Verdict:
    """Evaluates a checkpoint and its export on the same starts, and compares success and greedy actions.

    Raises:
        ConfigError: nothing here can build a policy from the folder.
        EmbodiedError: what else keeps an evaluation from running.
    """
    within, place, side = TOLERANCES[read_export(folder).rounding], torch.device(device), requested.sides.eval
    reporter = Reporter(console, Group(), requested.composed.config.runner)
    plan = spread(side.spec, requested.episodes)
    run = _Runs(requested.composed.config, requested.sides, plan, requested.logs, reporter, place)
    with console.progress("loading the checkpoint", brief=True):
        original = load(checkpoint, place, trust=True, base=requested.base).policy
    theirs = run.of_policy(original, "checkpoint", keep=True)
    under = _conditions(requested.composed.config, side, original, checkpoint, len(theirs.results))
    held_to = protocol(requested.composed, side, under, theirs.facts, original)
    with console.progress("loading the export", brief=True):
        policy = load(folder, place, trust=True, base=requested.base).policy  # written just now
    ours = run.of_policy(policy, "export", keep=False)
    found = agreement(policy, theirs, side.spec, within, run.batch, place)
    success = paired([one.success for one in theirs.results], [one.success for one in ours.results])
    differ = _differing(theirs.results, ours.results, found.episodes, within)
    return Verdict(requested.env, len(theirs.results), held_to.named, within, found, success, differ)


def _conditions(
    config: Config, side: ConfiguredEnv, policy: Policy, checkpoint: Path, episodes: int
) -> Conditions:  # fmt: skip
    """The conditions of a verification, whose plan and sampling are its own (:func:`spread`)."""
    under, own = conditions(config, side, policy, checkpoint, 0), sampling_facts(GREEDY, side, policy)
    per_task = -(-episodes // len(side.spec.tasks))
    return replace(
        under, episodes_per_task=per_task, use_fixed_reset_state_ids=True, sampling=own, env_seed=0, group_size=1,
        held_out_states=0,
    )  # fmt: skip


def _asked(named: str, overrides: Sequence[str], config_dirs: Sequence[str], logs: str) -> VerifyRequest:
    """Composes and checks the evaluation."""
    episodes, others = EPISODES, []
    for override in overrides:
        key, _, value = override.partition("=")
        if key.lstrip("+~").startswith(NOT_HERE):
            raise ConfigError(
                f"--verify {override}: the checkpoint and the folder say which policy acts", "leave it out"
            )
        if key == "episodes":
            if not value.isdigit() or not int(value):
                raise ConfigError(f"--verify {override}: expected how many episodes", "give e.g. episodes=4")
            episodes = int(value)
        else:
            others.append(override)
    if not any(one.startswith(("env=", "env@")) for one in others):
        raise ConfigError("--verify names no env", "add one, e.g. --verify env=libero_spatial episodes=4")
    quiet = ["tracker=jsonl", "env.eval.video_cfg.save_video=false", f"runner.logger.log_path={logs}"]
    cores_are_shared()
    checked = check(compose([*quiet, *others], "eval", config_dirs), Group())
    if checked.eval.config.perturb is not None:
        raise ConfigError(
            "--verify has env.eval.perturb, and checkpoint and export are compared unperturbed",
            "leave out +perturb=…; python -m embodied.eval model=exported … +perturb=… evaluates the folder under it",
        )
    if checked.config.runner.deterministic:
        reproducible_arithmetic()
    torch.set_num_threads(checked.config.runner.num_threads)
    return VerifyRequest(named, checked.composed, checked.sides, episodes, Path(logs))


@dataclass(frozen=True)
class PolicyRun:
    """Results of one policy's verification episodes, in the plan's order, with the first observations and actions."""

    results: list[EpisodeResult]
    seen: Examples
    actions: np.ndarray  # [N, *decision]
    asked: Sequence[Request]  # N, each with the keys of its noise
    draw: Draw
    owners: np.ndarray  # [N], place in the plan of the episode that each is of
    facts: Sequence[WorkerFacts]  # facts that the env workers have found


class _Runs:
    """Runs the same plan with one policy after the other, each with workers of its own."""

    def __init__(
        self, config: Config, sides: Sides, plan: Sequence[Episode], folder: Path, reporter: Reporter,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._config, self._sides, self._plan = config, sides, plan
        self._folder, self._reporter, self._device = folder, reporter, device
        slots = min(sides.eval.config.total_num_envs, len(plan))
        self._slots = slots
        self.batch = policy_batch(config.rollout, sides.eval.config.total_num_envs)

    def of_policy(self, policy: Policy, name: str, keep: bool) -> PolicyRun:
        """Runs the plan.

        Args:
            keep: whether observations and actions of the first episodes are kept.
        """
        side, processes = self._sides.eval, self._reporter.processes
        policy.bind(side.spec)
        model = Model(policy, self._device, Replicas(policy, processes.of("train")))
        hosts = processes.of("rollout")
        simulators = Simulators(self._config, self._sides, hosts, model, self._folder / name, self._reporter)
        rows = self._job(keep).rows_needed(policy.spec.num_action_chunks)
        kept = max(1, min(len(self._plan), MOST_RECORDS // rows)) if keep else 0
        with closing(simulators.open(side, max(kept * rows, 2 * side.config.total_num_envs))) as workers:
            facts = workers.pool.facts
            first = self._part(workers, self._plan[:kept], name, keep=True)
            owners = np.array([place for place, result in enumerate(first) for _ in result.rows], int)
            asked = [Request(0, row, one.episode.episode_id, t) for one in first for t, row in enumerate(one.rows)]
            used = [one.row for one in asked]
            seen, actions = examples_of(side.spec, workers.slab, used), np.array(workers.slab.arrays["actions"][used])
            for result in first:
                for lease in result.leases:
                    workers.rollout.records.give_back(lease)
            rest = self._part(workers, self._plan[kept:], name, keep=False)
        draw = Draw(GREEDY, self._config.runner.seed, Stream.EVAL_NOISE)
        return PolicyRun([*first, *rest], seen, actions, asked, draw, owners, facts)

    def _part(self, workers: Workers, plan: Sequence[Episode], name: str, keep: bool) -> list[EpisodeResult]:
        if not plan:
            return []
        return workers.run(plan, self._job(keep), f"evaluation of the {name}", self._reporter)[0]

    def _job(self, keep: bool) -> Job:
        side = self._sides.eval
        return Job(
            GREEDY, self._config.runner.seed, Stream.EVAL_NOISE, 0, side.max_steps, keep, self._slots,
            ignore_terminations=side.config.ignore_terminations, retry_safe=side.spec.retry_safe,
        )  # fmt: skip


def agreement(
    policy: Policy, theirs: PolicyRun, env: EnvSpec, tolerance: Tolerance, batch: int, device: torch.device
) -> Agreement:  # fmt: skip
    """Compares ``policy``'s greedy actions with another's, on the same observations in batches of the same size."""
    assert theirs.seen.obs is not None
    policy.bind(env)
    obs = {name: theirs.seen.obs[name] for name in fields_of(env)}
    answers, drawn = [], torch.from_numpy(theirs.draw.noise_of(theirs.asked, policy.spec.noise)).to(device)
    for first in range(0, len(theirs.actions), batch):
        rows = [*range(first, min(first + batch, len(theirs.actions)))]
        filled = rows + rows[-1:] * (batch - len(rows))
        told = policy.encode_instructions([theirs.seen.instructions[row] for row in filled])
        given = {name: torch.from_numpy(values[filled]).to(device) for name, values in obs.items()}
        given |= {name: values.to(device) for name, values in told.items()}
        with torch.inference_mode():
            answers.append(policy.act(given, drawn[filled], GREEDY).fields["actions"][: len(rows)].cpu().numpy())
    apart = distance(theirs.actions, np.concatenate(answers), env)
    equal = apart <= tolerance.largest
    episodes = tuple(float(equal[theirs.owners == place].mean()) for place in np.unique(theirs.owners))
    return Agreement(len(apart), float(equal.mean()), float(apart.max()), float(apart.mean()), episodes)


def distance(first: np.ndarray, second: np.ndarray, env: EnvSpec) -> np.ndarray:
    """Computes differences of actions: numbers as shares of their range [N, …], choices as 0 or 1 for each decision."""
    if isinstance(env.action, ContinuousAction):
        low, high = np.array(env.action.low, np.float64), np.array(env.action.high, np.float64)
        bounded = np.isfinite(high - low) & (high > low)
        width = np.where(bounded, np.where(bounded, high, 1.0) - np.where(bounded, low, 0.0), 1.0)
        return np.abs(first.astype(np.float64) - second) / width
    return (first != second).reshape(len(first), -1).any(axis=1).astype(np.float64)[:, None]


def _differing(
    theirs: Sequence[EpisodeResult], ours: Sequence[EpisodeResult], shares: Sequence[float], within: Tolerance
) -> list[dict[str, Any]]:  # fmt: skip
    """Episodes that ended otherwise, or whose actions do not agree."""
    found = []
    for place, (one, other) in enumerate(zip(theirs, ours, strict=True)):
        share = shares[place] if place < len(shares) else None
        if _facts(one) != _facts(other) or (share is not None and share < within.share):
            both = {"checkpoint": _facts(one), "export": _facts(other)}
            found.append({"start": asdict(one.episode.start), **both, "equal_actions": share})
    return found


def _facts(result: EpisodeResult) -> dict[str, Any]:
    return {"success": result.success, "return": result.episode_return, "steps": result.num_steps}
