"""Behaviour cloning: the tokens of demonstrated chunks are made likely.

    loss of an optimizer step = − Σ log p(token | observation) / number of tokens that count

over all tokens of all its samples (:class:`embodied.learn.terms.nll.NllTerm`); those of actions beyond the end of an
episode do not count, nor those beyond the end of a text. The denominator is that of the whole step, so micro-batches
only bound memory. Step s of a run takes the places s·B … (s + 1)·B of an endless
sequence of samples (:func:`embodied.data.samples.order`), so that a resumed run goes on exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied import instructions
from embodied.data.ahead import Ahead, Batch
from embodied.data.demonstrations import Demonstration
from embodied.data.samples import SampleSource, order, samples_of, spread
from embodied.data.statistics import ranges
from embodied.errors import ConfigError
from embodied.learn import statistics
from embodied.learn.augment import Augmentation
from embodied.learn.engine import Engine, Outcome, Stepping, Taken
from embodied.learn.passes import offloaded, until_stopped
from embodied.learn.terms.nll import NllTerm
from embodied.learn.watch import Passed, Watch, unwatched
from embodied.parallel.modes import without_dropout
from embodied.parallel.sharding import Parallel, Replicas
from embodied.protocols import Clonable, Policy, UsesStatistics
from embodied.random import Stream, generator_seed
from embodied.schema import Config, SftConfig
from embodied.types import EnvSpec, Sampling

LIKELIEST = Sampling(do_sample=False)
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

    def add(self, taken: Taken) -> None:
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
    """Owns optimizer and weight version; the policy is shared with the evaluation.

    Args:
        env: whose observations the demonstrations have; their instructions may be others.
        episodes: to learn from, :class:`embodied.data.demonstrations.Demonstration` or, of an env of texts,
            :class:`embodied.data.text.Written`; the same on all ranks.
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
        if not isinstance(policy, Clonable):
            raise ConfigError(
                f"{type(policy).__name__} cannot learn from demonstrations",
                "choose another model, or add encode_actions (embodied.protocols.Clonable)",
            )
        self._encode = policy.encode_actions
        self._term = NllTerm(policy.spec, type(policy).__name__)
        self.notes = _use_statistics(policy, config.sft, self.episodes)
        chunk = policy.spec.num_action_chunks
        pictures = self.env.obs.get(instructions.PICTURES)
        self.samples = samples_of(self.episodes, chunk, self.env.action, pictures)
        self._validation = samples_of(self.held_out, chunk, self.env.action, pictures)
        self._spec = self.samples.env_of_policy(self.env, self._validation)
        runner = config.runner
        self.engine = Engine(policy, config.actor, self.parallel, runner.max_epochs, runner.max_bad_updates)
        self._group = self.engine.parallel.group
        self._augment = Augmentation(config.data.random_crop, config.data.brightness, config.runner.seed)
        self._totals = Totals()
        self.bind()
        self.notes += self._cut_answers()

    def _cut_answers(self) -> list[str]:
        """What to tell of texts that do not fit, of some of the demonstrated ones.

        Raises:
            SpecMismatchError: the policy cannot write one of them.
        """
        axis, some = self.policy.spec.elements.length_axis, spread(self.samples, LOOKED_AT)
        if axis is None:
            return []
        room = self.policy.spec.elements.shape[axis]
        lengths = self._encode(torch.from_numpy(self.samples.batch(some)["actions"]))["length"]
        if not (full := int((lengths >= room).sum())):
            return []
        return [
            f"answers that are cut: up to {full} of {len(some)} have more than {room} tokens with their "
            "end, which is then not learned; raise actor.model.max_new_tokens"
        ]

    @property
    def steps_done(self) -> int:
        """Optimizer steps of the iteration in progress."""
        return self._totals.done

    def state_dict(self) -> dict[str, Any]:
        """What a step depends on beside policy and optimizer, for checkpoints: also of one in the midst of an
        iteration."""
        return {**self.engine.state_dict(), "totals": asdict(self._totals)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`."""
        self.engine.load_state_dict(state)
        self._totals = Totals(**state.get("totals", {}))  # which checkpoints of earlier versions do not have

    def bind(self) -> None:
        """Give the policy the demonstrations' instructions. An evaluation gives it those of its env."""
        self.policy.bind(self._spec)

    def iterate(self, iteration: int, watch: Watch = unwatched) -> None:
        """Takes the optimizer steps of an iteration that are not done yet. ``watch`` may end it between two passes;
        a step that is not whole is then dropped, and the cloner is what it was after the step before.

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
        torch.manual_seed(generator_seed(seed, Stream.DROPOUT, step) + self.engine.parallel.world.rank)  # of dropout
        places, chosen = np.arange(step * size, (step + 1) * size), self._chosen(step, size)
        counted = int(self._mask(self.samples, chosen).sum())

        def backward(part: np.ndarray) -> float:
            if not len(part):  # because other ranks have a pass to make
                return self._empty_pass(chosen, places)
            batch = read.take(chosen[part])
            share = self._term.share(self._logprobs(self.samples, chosen[part], places[part], batch)[0], counted)
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

    def _empty_pass(self, chosen: np.ndarray, places: np.ndarray) -> float:
        """A forward and backward pass that counts nothing."""
        (0.0 * self._logprobs(self.samples, chosen[:1], places[:1])[0].sum()).backward()
        return 0.0

    @property
    def _micro(self) -> int:
        return self.config.actor.micro_batch_size

    def _logprobs(
        self, samples: SampleSource, chosen: np.ndarray, places: np.ndarray | None, batch: Batch | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probs of the demonstrated tokens that count, and whether these are the likeliest: [n] each.

        Args:
            places: in the run's sequence of samples, for the augmentation; None = no augmentation, and the likeliest
                tokens are asked for, which takes a second forward pass; none of a policy without ``categories``.
            batch: of the samples ``chosen``; None = it is read here.
        """
        batch = samples.batch(chosen) if batch is None else batch
        records = {name: torch.from_numpy(values).to(self.device) for name, values in batch.items()}
        if places is not None and "images" in records:
            records["images"] = self._augment(records["images"], places)
        told = self.policy.encode_instructions(samples.instructions(chosen))
        records |= {name: values.to(self.device) for name, values in told.items()}
        encoded = self._encode(records["actions"])
        mask = self._mask(samples, chosen).to(self.device)
        with offloaded(self.config.actor.fsdp_config.activation_offload):
            result = self.policy.evaluate({**records, **encoded}, Sampling())
        logprobs = self._term.chosen(result.logprobs, mask)
        numbers = [name for name in encoded if name in self.policy.spec.categories]
        if places is not None or not numbers:
            return logprobs, torch.empty(0)
        noise = torch.zeros(len(mask), *self.policy.spec.noise.shape, device=self.device)
        likeliest = self.policy.act(records, noise, LIKELIEST).fields
        right = [likeliest[name] == encoded[name] for name in numbers]
        return logprobs, torch.stack(right).all(dim=0).flatten(1)[mask]

    def _mask(self, samples: SampleSource, chosen: np.ndarray) -> Tensor:
        """Which elements of the samples ``chosen`` int64 [n] count: bool [n, M₀]."""
        steps, lengths = torch.from_numpy(samples.mask(chosen).sum(axis=1)), None
        if self._term.needs_length:
            lengths = self._encode(torch.from_numpy(samples.batch(chosen)["actions"]))["length"].long().cpu()
        return self._term.mask(steps, lengths)

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
                found.append(self._logprobs(samples, part, None, read.take(part)))
        everything = [one for part in self._group.gather([(lp.cpu(), ok.cpu()) for lp, ok in found]) for one in part]
        logprobs, right = (torch.cat(column).double() for column in zip(*everything, strict=True))
        return self._term.mean(logprobs), right.mean().item() if len(right) else None


def _use_statistics(policy: Policy, sft: SftConfig, episodes: Sequence[Demonstration]) -> list[str]:
    """Give the policy its ranges as ``sft.statistics`` says; what to tell the user."""
    if not isinstance(policy, UsesStatistics):
        if sft.statistics == "quantiles":
            raise ConfigError(
                f"sft.statistics is quantiles, and {type(policy).__name__} spreads no tokens over ranges",
                "leave out sft.statistics",
            )
        return []
    known = statistics.known(policy)
    if sft.statistics == "env" and known is not None:
        raise ConfigError(
            f"sft.statistics is env, and the policy comes with the ranges '{known['name']}' of its checkpoint",
            "set sft.statistics=auto, or sft.statistics=quantiles to replace them",
        )
    if sft.statistics == "env":
        return ["ranges of action tokens: the env's"]
    if sft.statistics == "auto" and known is not None:
        return [f"ranges of action tokens: '{known['name']}', as the policy's checkpoint has them"]
    policy.use_statistics("demonstrations", ranges(episodes))
    return [f"ranges of action tokens: {statistics.kind(policy)} of the demonstrations"]
