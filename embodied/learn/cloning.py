"""Behaviour cloning: raises the likelihood of demonstrated chunks' tokens.

    loss of an optimizer step = − Σ log p(token | observation) / number of tokens that count

over all tokens of all its samples (:class:`embodied.learn.terms.nll.NllTerm`); those of actions beyond the end of an
episode do not count, nor those beyond the end of a text. A policy may bring a loss of each action in the place of
−log p (:mod:`embodied.learn.imitation`). The denominator is that of the whole step, so micro-batches only bound memory.
Step s of a run takes the places s·B … (s + 1)·B of an endless sequence of samples
(:func:`embodied.data.samples.order`), so that a resumed run goes on exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied import instructions
from embodied.data.ahead import Ahead, Batch
from embodied.data.samples import SampleSource, order, samples_of, spread
from embodied.learn.augment import Augmentation
from embodied.learn.checkpoint import statistics
from embodied.learn.checksums import checksums_of_cloned
from embodied.learn.imitation import demonstrated, make_imitation
from embodied.learn.step.engine import OptimizerStep, Outcome, StepEngine, Stepping
from embodied.learn.step.passes import offloaded, until_stopped
from embodied.learn.terms.nll import NllTerm
from embodied.learn.terms.term import Forward, OptimizerBatch
from embodied.learn.watch import Passed, Watch, unwatched
from embodied.parallel.modes import without_dropout
from embodied.parallel.sharding import Parallel, Replicas
from embodied.protocols import Policy
from embodied.random import Stream, generator_seed
from embodied.schema import Config
from embodied.types import EnvSpec, Evaluation

LOOKED_AT = 1024  # demonstrated texts, spread over all, that are held against the longest that there may be


@dataclass
class Totals:
    """Sums over the optimizer steps of an iteration so far: ``steps`` that changed the weights, ``bad`` ones that were
    not finite, and ``overflows`` of the loss scale (fp16)."""

    loss: float = 0.0
    grad_norm: float = 0.0
    steps: int = 0
    bad: int = 0
    overflows: int = 0

    def add(self, taken: OptimizerStep) -> None:
        self.bad += taken.outcome == Outcome.NOT_FINITE
        self.overflows += taken.outcome == Outcome.OVERFLOW
        if taken.outcome == Outcome.MADE:
            self.steps += 1
            self.loss += taken.loss
            self.grad_norm += taken.norm

    @property
    def done(self) -> int:
        """Optimizer steps of the iteration that are done, those included that were left out."""
        return self.steps + self.bad + self.overflows

    def metrics(self) -> dict[str, float]:
        taken = max(self.steps, 1)
        return {
            "sft/loss": self.loss / taken,
            "sft/grad_norm": self.grad_norm / taken,
            "sft/optimizer_steps": self.steps,
            "sft/bad_updates": self.bad,
            **({"sft/overflows": self.overflows} if self.overflows else {}),
        }


@dataclass
class Cloner(Stepping):
    """Trains on demonstrations: owns optimizer and weight version, shares the policy with the evaluation.

    Args:
        env: whose observations the demonstrations have; their instructions may be others.
        episodes: to learn from, :class:`embodied.data.demonstrations.Demonstration` or, of an env of texts,
            :class:`embodied.data.texts.text.DemonstratedAnswer`; the same on all ranks.
        held_out: for validation only.
        parallel: how ranks share the policy and the samples of a step; None = one process.

    Raises:
        ConfigError: the policy cannot learn from demonstrations.
    """

    policy: Policy
    env: EnvSpec
    config: Config
    episodes: Sequence[Any]
    held_out: Sequence[Any]
    device: torch.device
    parallel: Parallel | None = None

    def __post_init__(self) -> None:
        policy, config = self.policy, self.config
        self._imitation, self._term = make_imitation(policy, config.runner.seed), NllTerm()
        self.notes = statistics.settle(policy, config.sft, self.episodes)
        chunk = self._imitation.horizon
        pictures = self.env.obs.get(instructions.PICTURES)
        self.samples = samples_of(self.episodes, chunk, self.env.action, pictures)
        self._validation = samples_of(self.held_out, chunk, self.env.action, pictures)
        self._spec = self.samples.env_of_policy(self.env, self._validation)
        self._checksums = checksums_of_cloned(self.episodes, "images" in self.env.obs or pictures is not None)
        runner = config.runner
        self.engine = StepEngine(policy, config.actor, self.parallel, runner.max_epochs, runner.max_bad_updates)
        self._group = self.engine.parallel.group
        self._augment = Augmentation(config.data.random_crop, config.data.brightness, config.runner.seed)
        self._totals = Totals()
        self.bind()
        self.notes += self._cut_answers()

    def _cut_answers(self) -> list[str]:
        """Returns warnings about texts that do not fit, found among some of the demonstrated ones.

        Raises:
            SpecMismatchError: the policy cannot write one of them.
        """
        axis, some = self._imitation.length_axis, spread(self.samples, LOOKED_AT)
        if axis is None:
            return []
        room = self.policy.spec.elements.shape[axis]
        lengths = self._imitation.encode(torch.from_numpy(self.samples.actions(some)))["length"]
        if not (full := int((lengths >= room).sum())):
            return []
        return [
            f"answers that are cut: up to {full} of {len(some)} have more than {room} tokens with their "
            "end, which is then not learned; raise actor.model.max_new_tokens"
        ]

    @property
    def steps_done(self) -> int:
        """Optimizer steps of the iteration in progress that are done."""
        return self._totals.done

    def state_dict(self) -> dict[str, Any]:
        """Returns a step's state beside policy and optimizer, for checkpoints, also in the midst of an iteration."""
        return {**self.engine.state_dict(), "totals": asdict(self._totals), **self._checksums.of_all}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what :meth:`state_dict` returned. Raises :class:`CheckpointError` if the demonstrations are others."""
        self._checksums.check_all(state)
        self.engine.load_state_dict(state)
        self._totals = Totals(**state.get("totals", {}))  # checkpoints of earlier versions have none

    def bind(self) -> None:
        """Give the policy the demonstrations' instructions. An evaluation gives it those of its env."""
        self.policy.bind(self._spec)

    def iterate(
        self, iteration: int, watch: Watch = unwatched, after_step: Callable[[int], None] = lambda steps: None
    ) -> None:
        """Makes the optimizer steps of an iteration that are not done yet. ``watch`` may end it between two passes; a
        step that is not whole is then dropped, and the cloner is what it was after the step before.

        Args:
            after_step: called after each optimizer step with :attr:`steps_done`; may save the cloner.

        Raises:
            NumericalError: too many updates in a row were not finite.
            Stopped: ``watch`` has ended it.
        """
        self.bind()
        count, batch, done = self.config.sft.steps_per_iteration, self.config.actor.global_batch_size, self.steps_done
        steps = range(iteration * count + done, (iteration + 1) * count)
        total = len(steps) * len(self._own(np.arange(batch)))
        read_ahead, split = self._ahead(self.samples, self._passes(steps, batch)), self.engine.parallel.splitting()
        with read_ahead as read, split, watch("training", total) as passed:
            for k, step in enumerate(steps, start=done):
                self.engine.set_rates(iteration + (k + 1) / count)
                self._step(step, batch, passed, read)
                after_step(self.steps_done)
        self.engine.rest()

    def close_iteration(self, iteration: int) -> dict[str, float]:
        """The ``sft/`` metrics of an iteration whose steps are done; the next step is the first of the next one."""
        totals, self._totals = self._totals, Totals()
        seen = (iteration + 1) * self.config.sft.steps_per_iteration * self.config.actor.global_batch_size
        return {
            **totals.metrics(),
            "sft/lr": self.engine.lr,
            "sft/epoch": seen / len(self.samples),
        }

    def _ahead(self, samples: SampleSource, passes: Iterable[np.ndarray]) -> Ahead:
        """Reads the samples of passes, int64 [m] each, before their turn if ``data.prefetch_factor`` says so."""
        return Ahead(samples.batch, passes, self.config.data.prefetch_factor or 0)

    def _passes(self, steps: range, size: int) -> Iterator[np.ndarray]:
        """The samples of this rank's passes in ``steps``, int64 [m] each."""
        for step in steps:
            chosen = self._chosen(step, size)
            yield from (chosen[part] for part in self._parts(size) if len(part))

    def _chosen(self, step: int, size: int) -> np.ndarray:
        """The samples of an optimizer step, int64 [size]."""
        data = self.config.data
        return order(len(self.samples), self.config.data_seed, step * size, size, data.shuffle, data.drop_last)

    def _step(self, step: int, size: int, passed: Passed, read: Ahead) -> None:
        seed = self.config.runner.seed
        torch.manual_seed(generator_seed(seed, Stream.DROPOUT, step) + self.engine.parallel.world.rank)
        places, chosen = np.arange(step * size, (step + 1) * size), self._chosen(step, size)
        whole = self._optimizer_batch(self.samples, chosen)

        def backward(part: np.ndarray) -> float:
            if not len(part):  # because other ranks have a pass to make
                return self._empty_pass(whole, chosen, places)
            batch = read.take(chosen[part])
            share = self._share(whole, part, chosen, places, batch)
            self.engine.loss_scale.backward(share)
            return share.item()

        self._totals.add(self.engine.take(self._parts(size), passed, backward))

    def _parts(self, count: int) -> list[np.ndarray]:
        """This rank's of ``count`` samples of a step, in parts: int64 indices. Where a pass is a collective, empty
        parts bring all ranks to the same number."""
        own = self._own(np.arange(count))
        parts = self._micro_batches(own)
        if self.engine.parallel.collective_passes:
            most = -(-count // self._group.size)  # samples of the first rank, which has no fewer than another
            parts += [own[:0]] * (-(-most // self._micro) - len(parts))
        return parts

    def _own(self, chosen: np.ndarray) -> np.ndarray:
        """This rank's share of ``chosen`` int64 [n]."""
        return np.array_split(chosen, self._group.size)[self._group.rank]

    def _micro_batches(self, own: np.ndarray) -> list[np.ndarray]:
        return np.split(own, range(self._micro, len(own), self._micro)) if len(own) else []

    def _empty_pass(self, whole: OptimizerBatch, chosen: np.ndarray, places: np.ndarray) -> float:
        """A forward and backward pass that counts nothing."""
        (0.0 * self._share(whole, np.zeros(1, np.int64), chosen, places)).backward()
        return 0.0

    @property
    def _micro(self) -> int:
        return self.config.actor.micro_batch_size

    def _optimizer_batch(self, samples: SampleSource, chosen: np.ndarray) -> OptimizerBatch:
        """Makes the optimizer batch of the samples ``chosen`` int64 [n], with masks and weights."""
        steps = torch.from_numpy(samples.mask(chosen).sum(axis=1))
        counts = self._imitation.counts(steps, lambda: torch.from_numpy(samples.actions(chosen)))
        made = demonstrated(counts, self._imitation.mask(counts))
        return replace(made, of_terms=(self._term.weights(made),))

    def _share(
        self, whole: OptimizerBatch, part: np.ndarray, chosen: np.ndarray, places: np.ndarray,
        batch: Batch | None = None,
    ) -> Tensor:  # fmt: skip
        """Returns the share of the samples ``part`` int64 [m] of a step in its loss, [].

        Args:
            chosen: the samples of the step, int64 [n].
            places: theirs in the run's sequence of samples, int64 [n].
            batch: of the m samples; None = it is read here.
        """
        records = self._records(self.samples, chosen[part], batch)
        if "images" in records:
            records["images"] = self._augment(records["images"], places[part])
        encoded = self._imitation.encode(records["actions"])
        seen = self._forward(records, encoded, whole.part(torch.from_numpy(part), self.device), places[part])
        loss = self._term.share(seen, *seen.batch.of_terms).loss
        assert loss is not None
        return loss

    def _records(self, samples: SampleSource, chosen: np.ndarray, batch: Batch | None) -> dict[str, Tensor]:
        """Observations, instructions and actions of the samples ``chosen`` int64 [m] on the device, [m, …]."""
        batch = samples.batch(chosen) if batch is None else batch
        records = {name: torch.from_numpy(values).to(self.device) for name, values in batch.items()}
        texts = self.policy.encode_instructions(samples.instructions(chosen))
        return records | {name: values.to(self.device) for name, values in texts.items()}

    def _forward(
        self, records: Mapping[str, Tensor], encoded: Mapping[str, Tensor], part: OptimizerBatch, numbers: np.ndarray,
        validation: bool = False,
    ) -> Forward:  # fmt: skip
        """The policy's pass over m samples, whose noise is drawn by ``numbers`` int64 [m]."""
        with offloaded(self.config.actor.fsdp_config.activation_offload):
            logprobs = self._imitation.logprobs(records, encoded, numbers, validation)
        return Forward(part, records, Evaluation(logprobs), None, logprobs, logprobs.detach(), untrained=False)

    def _measured(self, samples: SampleSource, chosen: np.ndarray, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses of the elements that count, and whether the demonstrated tokens are the likeliest: [c] each.

        No augmentation. The likeliest tokens take a second forward pass; there are none of continuous actions.
        """
        records, whole = self._records(samples, chosen, batch), self._optimizer_batch(samples, chosen)
        part = whole.part(torch.arange(len(chosen)), self.device)
        encoded = self._imitation.encode(records["actions"])
        losses = self._term.losses(self._forward(records, encoded, part, chosen, validation=True), *part.of_terms)
        right = self._imitation.likeliest(records, encoded)
        return losses, torch.empty(0) if right is None else right[part.mask]

    def validate(self, watch: Watch = unwatched) -> dict[str, float]:
        """Loss and token accuracy on held-out demonstrations and, without augmentation, on as many of the others.

        Raises:
            Stopped: ``watch`` has ended it.
        """
        wanted = self.config.sft.val_samples
        if not wanted:
            return {}
        self.bind()
        clean, held_out = spread(self.samples, wanted), spread(self._validation, wanted)
        with watch("validation", len(self._own(clean)) + len(self._own(held_out))) as passed:
            loss, accuracy = self._measure(self.samples, clean, passed)
            found = {"sft/token_accuracy": accuracy, "sft/clean_loss": loss}
            if len(held_out):
                measured = self._measure(self._validation, held_out, passed)
                found["sft/val_loss"], found["sft/val_token_accuracy"] = measured
        return {name: value for name, value in found.items() if value is not None}

    @torch.no_grad()
    def _measure(self, samples: SampleSource, chosen: np.ndarray, passed: Passed) -> tuple[float, float | None]:
        """Mean −log p and share of likeliest among the elements that count, of the samples ``chosen`` int64 [n]: each
        rank its share, all get the result. None for the share if the policy's decisions are no integers.

        Raises:
            Stopped: on all ranks; ``passed`` has ended the share of one.
        """
        parts, found, parallel = self._micro_batches(self._own(chosen)), [], self.engine.parallel
        gathered = Replicas(self.policy, parallel.world, teams=parallel.teams)
        with self._ahead(samples, parts) as read, parallel.acting(), parallel.splitting(), without_dropout(self.policy):
            for part, _ in until_stopped(parts, passed, gathered):
                found.append(self._measured(samples, part, read.take(part)))
        by_rank = self._group.gather([(loss.cpu(), ok.cpu()) for loss, ok in found])
        everything = [pair for rank in by_rank for pair in rank]
        losses, right = (torch.cat(column).double() for column in zip(*everything, strict=True))
        return losses.mean().item(), right.mean().item() if len(right) else None
