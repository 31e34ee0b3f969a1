"""Counts the memory of a policy and of its passes, tensor by tensor, before anything runs.

    build ─▶ weights ─▶ act (rows of a policy call) ─▶ forward ─▶ what is saved ─▶ backward ─▶ the fullest moment

A small policy is built and run for it, on the CPU. Of a large one only sizes are worked out: each operation runs on
tensors without memory, so that 7 B parameters are counted on any machine, in minutes. Both give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied import instructions, schema
from embodied.errors import DeviceMemoryError, EmbodiedError
from embodied.learn.checkpoint.loading import load
from embodied.learn.step.meters.live_bytes import LiveBytes, TooLargeError, highest, reset_highest, resident
from embodied.parallel.group import EVERY_ROLE, Group, Role
from embodied.protocols import Decodes, Policy, SplitsTexts
from embodied.run.build import policy as building
from embodied.run.build.demonstrations import Demonstrated
from embodied.run.build.given import ConfiguredEnv, Sides
from embodied.run.build.shares import only_evaluates, slots_of
from embodied.run.build.simulators import rows_of_call
from embodied.run.memory.footprint import NOTHING, Footprint, Gathered, Pass, Passes, Weights, footprint, sets_that_act
from embodied.run.memory.prompts import longest
from embodied.run.memory.recompute_switch import SWITCH, switched_off, switched_on
from embodied.run.memory.replay_memory import run, total
from embodied.run.memory.shards import share_of, whole_of
from embodied.runtime.slab import slab_bytes

Mode = Callable[[], Any]
"""Makes a context in which tensors have sizes alone, or one that changes nothing."""
LIMIT = 2**30  # bytes of tensors from which on they get no memory
REPEATS = 2


@dataclass(frozen=True)
class Counted:
    """A policy that was built on the CPU to count its memory; its weights may have no memory of their own, and its
    gradients stand in them."""

    policy: Policy
    weights: Weights  # weights that this process holds
    passes: Passes
    process: int  # bytes of this process without the policy
    allocator: int = 0  # bytes that the C library kept between tensors while the passes were made, if they were
    why_not: str | None = None  # why the passes could not be counted
    with_memory: bool = True  # False: the policy's weights have shapes and no values
    gathered: Gathered = NOTHING
    whole: Weights | None = None  # weights of a process that only acts, where some do

    def footprint(
        self, config: schema.Config, sides: Sides, processes: Group, on_gpu: bool, gpu: int = 0,
        roles: frozenset[Role] = EVERY_ROLE,
    ) -> Footprint:  # fmt: skip
        """Computes the memory of the run's fullest moment, see :func:`embodied.run.memory.footprint.footprint`; ``gpu``
        is the GPU's bytes in all, of which an engine takes its share."""
        rollout, acts, trains = config.rollout, "rollout" in roles, "train" in roles
        engine = int(rollout.gpu_memory_utilization * gpu) if rollout.backend != "native" and acts else None
        derived = building.sizes(config, sides, processes, self.policy.spec)
        steps = config.sft.steps_per_iteration if config.runner.task.supervised else derived.optimizer_steps
        hosts, learners = processes.of("rollout").size, processes.of("train").size
        elsewhere = trains and hosts + learners < 2 * processes.size  # records are collected by other processes, too
        received = slab_bytes(derived.fields, -(-derived.rows * hosts // learners)) if elsewhere else 0
        return footprint(
            config, sides, processes, self.weights if trains else self.whole or self.weights,
            slab_bytes(derived.fields, derived.rows) if acts else 0, self.passes, self.process,
            0 if on_gpu else self.allocator, steps * config.runner.max_epochs, on_gpu,
            self.gathered if trains else NOTHING, engine, roles, received,
        )  # fmt: skip


def count(
    config: schema.Config, sides: Sides, processes: Group, demonstrations: Demonstrated, limit: int = LIMIT
) -> Counted:  # fmt: skip
    """Counts the memory of a policy: builds it on the CPU and makes one call and one forward and backward pass. Then
    loads the checkpoint of ``runner.ckpt_path`` as a run does, so that one that does not fit is found here; without
    memory it cannot.

    Args:
        limit: bytes of tensors from which on they get no memory.

    Raises:
        CheckpointError: the checkpoint does not fit the policy, or is damaged.
    """
    live, count_with = LiveBytes(limit), partial(_count, config, sides, processes, demonstrations)
    try:
        counted = count_with(live, nullcontext)
    except Exception:
        if not live.exceeded:  # mapping a tensor of a file gives a ValueError in place of TooLargeError
            raise
        return replace(_without_memory(count_with, limit), with_memory=False)
    if (given := config.runner.ckpt_path) is not None:
        load(Path(given), counted.policy)
    return counted


def _without_memory(count_with: Callable[[LiveBytes, Mode], Counted], limit: int) -> Counted:
    """Counts with tensors that have no memory, which code of a model may not expect.

    Raises:
        DeviceMemoryError: it does not.
    """
    try:
        return count_with(LiveBytes(), without_memory())
    except EmbodiedError:
        raise
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise DeviceMemoryError(
            f"the policy has more than {limit / 2**20:.0f} MiB, and its code cannot be run with tensors that have no "
            f"memory, so its memory is not known before a run: {type(error).__name__}: {said}",
            "leave out runner.dry_run=true: a run needs no such count",
        ) from error


def without_memory() -> Mode:
    """Returns the maker of a context in which tensors have sizes and no memory."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    # Module.to() swaps parameters, which it refuses for tensors that a table refers to weakly, as this one does.
    mode.fake_tensor_converter.set_tensor_memo = lambda t, v: None  # type: ignore[method-assign]
    return lambda: mode


def _count(
    config: schema.Config, sides: Sides, processes: Group, demonstrations: Demonstrated, live: LiveBytes, mode: Mode
) -> Counted:  # fmt: skip
    with mode(), live:
        policy = _made(config)
    for side in (sides.eval, sides.train):
        policy.bind(side.spec)
    with mode(), live:
        prompt = longest(config, sides, demonstrations, policy)
    counter = _Counter(config, sides.train, processes, prompt, policy, live, mode)
    share = share_of(policy, config, processes.of("train"), several_passes=counter.rows()[1])
    passes, why_not, kept = Passes(0, None), None, 0
    try:
        passes, kept = counter.passes()
    except (RuntimeError, NotImplementedError, KeyError, IndexError) as error:  # some operation needs real memory
        why_not = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    process, whole = resident() - (0 if mode is not nullcontext else live.now), whole_of(policy)
    return Counted(policy, share.weights, passes, process, max(kept - process, 0), why_not, True, share.gathered, whole)


def _made(config: schema.Config, **more: Any) -> Policy:
    """Builds the policy on the CPU, not bound to an env."""
    runner = config.runner.model_copy(update={"device": "cpu", "ckpt_path": None})
    model = config.actor.model.model_copy(update=more)
    config = config.model_copy(update={"runner": runner, "actor": config.actor.model_copy(update={"model": model})})
    return building.make_policy(config, torch.device("cpu"))


@dataclass(frozen=True)
class OneOf:
    """Stands for a team of ``size`` processes while memory is counted: what comes from others is as large as what is
    sent to them."""

    size: int
    rank: int = 0

    def exchange(self, sent: Tensor, to: Sequence[int], of: Sequence[int]) -> Tensor:
        """Returns tensors as large as those that other processes would send (:class:`embodied.protocols.Team`)."""
        return sent.clone()


class _Counter:
    """Makes the passes of a policy and counts them.

    Args:
        side: whose observations they are of.
        prompt: the longest instruction.
    """

    def __init__(
        self, config: schema.Config, side: ConfiguredEnv, processes: Group, prompt: str, policy: Policy,
        live: LiveBytes, mode: Mode,
    ) -> None:  # fmt: skip
        self._config, self._side, self._processes, self._longest = config, side, processes, prompt
        self._policy, self._live, self._mode = policy, live, mode
        algorithm = config.algorithm
        self._sampling = building.sampling(algorithm.sampling_params, algorithm.logprob_dtype)
        live.watch(*policy.spec.categories.values())

    def passes(self) -> tuple[Passes, int]:
        """Returns what was counted, and the bytes of this process at the fullest moment that were no tensors.

        A pass is repeated, because the C library cuts its memory to pieces only by and by, as in a run.
        """
        reset_highest()
        decision, passes = self._main()
        if self._mode is not nullcontext:
            return self._with_other_switch(passes, decision), 0
        most = self._live.now + max(passes.act, passes.update.most if passes.update else 0)
        for _ in range(REPEATS if passes.update else 0):
            self._update(self._policy, decision)
        kept = highest() - most
        return self._with_other_switch(passes, decision), kept

    def _main(self) -> tuple[Mapping[str, Tensor] | None, Passes]:
        config = self._config
        decision, act, graphs = None, 0, 0
        rows = rows_of_call(self._policy, config.rollout, slots_of(config, self._processes))
        if not isinstance(self._policy, Decodes):
            decision, act, graphs = self._act(rows)
        elif config.rollout.backend == "native":
            act, graphs = self._lanes(self._policy, rows)
        graphs = 0 if config.rollout.eager(rows) else graphs
        trained = [p for _, p in self._policy.named_parameters() if p.requires_grad]
        if (only_evaluates(config) and not config.runner.task.supervised) or not trained:
            return decision, Passes(act, None, graphs=graphs)
        return decision, Passes(act, self._update(self._policy, decision), graphs=graphs)

    def _with_other_switch(self, passes: Passes, decision: Mapping[str, Tensor] | None) -> Passes:
        """Adds what a pass takes with recomputation switched the other way."""
        if passes.update is None or SWITCH not in (self._config.actor.model.model_extra or {}):
            return passes
        if on := switched_on(self._policy):
            with switched_off(on):
                return replace(passes, checkpointed=True, otherwise=self._tried(self._policy, decision))
        return replace(passes, checkpointed=False, otherwise=self._otherwise(decision))

    def _tried(self, policy: Policy, decision: Mapping[str, Tensor] | None) -> Pass | None:
        """A pass that the run does not make: it may be too large for counting with memory."""
        try:
            return self._update(policy, decision)
        except TooLargeError:
            return None

    def _otherwise(self, decision: Mapping[str, Tensor] | None) -> Pass | None:
        with self._mode(), self._live:
            other = _made(self._config, **{SWITCH: True})
        other.bind(self._side.spec)
        return self._tried(other, decision)

    def _act(self, rows: int) -> tuple[dict[str, Tensor], int, int]:
        """One call of the policy: its decision of one row, and the bytes that it and a CUDA graph of it add. Such a
        graph keeps observations of its own."""
        with self._mode(), self._live:
            obs = self._observations(self._policy, rows)
            noise = torch.zeros(rows, *self._policy.spec.noise.shape)
            before = self._live.restart()
            decision = self._policy.act(obs, noise, self._sampling)
            most, given = self._live.peak - before, sum(t.numel() * t.element_size() for t in (*obs.values(), noise))
            return {name: field[:1].clone() for name, field in decision.fields.items()}, most, given

    def _lanes(self, policy: Decodes, rows: int) -> tuple[int, int]:
        """Bytes that lanes add: caches of keys and values for the longest texts, one for each version that acts, beside
        the fullest moment of prefill and step; and bytes of a CUDA graph of that step."""
        with self._live:
            known = self._observations(self._policy, rows)
        obs = self._readable(known)
        with self._mode(), self._live:
            noise = torch.zeros(rows, *self._policy.spec.noise.shape)
            before = self._live.restart()
            decoding = policy.decoding(rows)
            decoding.begin(self._sampling)
            decoding.admit(range(rows), obs, noise)
            held, most = self._live.now, self._live.peak
            self._live.restart()
            decoding.widest_step()
            step = self._live.peak
            decoding.end()
        sets = sets_that_act(self._config)
        return max(most, step) - before + (held - before) * sets * (sets > 1), step - held

    def _update(self, policy: Policy, decision: Mapping[str, Tensor] | None) -> Pass:
        """One forward and backward pass of a micro-batch, into gradients that are there."""
        rows, several = self.rows()
        parameters = [p for _, p in policy.named_parameters() if p.requires_grad]
        with nullcontext() if isinstance(policy, Decodes) else self._mode(), self._live:
            records = self._observations(policy, rows) | self._decisions(policy, decision, rows)
        records = self._readable(records) if isinstance(policy, Decodes) else records
        with self._mode(), self._live:
            own = sum(t.numel() * t.element_size() for t in records.values())
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter) if several else None
            before = self._live.restart() - own
            with self._split(policy):
                result = run(policy, records, self._config, self._sampling)
            saved = self._live.now - before
            total(result).backward()
            del result
            gradients = 0 if several else sum(p.numel() * p.element_size() for p in parameters if p.grad is not None)
            found = Pass(saved, max(self._live.peak - before - gradients, saved), self._live.most_wide)
            for parameter in parameters:
                parameter.grad = None
        return found

    def _split(self, policy: Policy) -> AbstractContextManager[None]:
        """Within it, a pass is as large as that of one of several processes that compute each text together."""
        size = schema.context_parallel_size(self._config)
        return policy.splitting(OneOf(size)) if size > 1 and isinstance(policy, SplitsTexts) else nullcontext()

    def _readable(self, fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Fields that a policy of texts can read back also where tensors have no memory: lengths decide over sizes."""
        if self._mode is nullcontext:
            return dict(fields)
        arrays, made = {name: field.numpy() for name, field in fields.items()}, {}
        with self._mode(), self._live:
            for name, values in arrays.items():
                one: Any = torch.empty(values.shape, dtype=fields[name].dtype)
                one.tolist, one.numpy = values.tolist, partial(np.asarray, values)
                one.cpu = partial(SimpleNamespace, numpy=one.numpy)
                made[name] = one
        return made

    def rows(self) -> tuple[int, bool]:
        """Records of a pass of this process, and whether an optimizer batch has several passes."""
        actor = self._config.actor
        records = actor.global_batch_size
        if not self._config.runner.task.supervised:
            episodes = schema.episodes_per_iteration(self._config)
            records = min(records, episodes * -(-self._side.max_steps // self._policy.spec.num_action_chunks))
        records = math.ceil(records * schema.context_parallel_size(self._config) / self._processes.of("train").size)
        parts = math.ceil(records / actor.micro_batch_size)
        return math.ceil(records / parts), parts > 1

    def _observations(self, policy: Policy, rows: int) -> dict[str, Tensor]:
        env = self._side.spec
        fields = {name: env.obs[name] for name in instructions.fields_of(env)}
        obs = {n: torch.zeros(rows, *field.shape, dtype=getattr(torch, field.dtype)) for n, field in fields.items()}
        return obs | dict(policy.encode_instructions([self._longest] * rows))

    def _decisions(self, policy: Policy, decision: Mapping[str, Tensor] | None, rows: int) -> dict[str, Tensor]:
        if decision is not None:
            return {name: field.expand(rows, *field.shape[1:]).clone() for name, field in decision.items()}
        made = {}
        for name, field in policy.spec.decision.items():
            made[name] = torch.zeros(rows, *field.shape, dtype=getattr(torch, field.dtype))
        if "length" in made:
            made["length"] += policy.spec.decision["logprobs"].shape[0]
        return made
