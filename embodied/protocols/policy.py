"""What a policy must offer, and may offer besides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from embodied.types import Decision, EnvSpec, Evaluation, PolicySpec, Sampling

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter


class Policy(Protocol):
    """A network that answers observations with decisions: chunks of actions. Implementations are ``torch.nn.Module``s.

    ``act`` and ``evaluate`` agree: at equal weights they give a decision the same log-probs.
    Parameters with ``requires_grad`` are what is trained and saved; those whose name starts with ``value_head`` use
    ``actor.optim.value_lr``. A policy may also be :class:`Shardable`.
    """

    @property
    def spec(self) -> PolicySpec: ...

    def bind(self, env: EnvSpec) -> None:
        """Fit to an env: check cameras, state and action dimensions, prepare for its instructions. May be called again
        with another env. Raises :class:`embodied.errors.SpecMismatchError`."""
        ...

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        """Encode the instructions of B observations for :meth:`act` and :meth:`evaluate`: fields [B, …] of the policy's
        own choice, e.g. token ids or rows of its table of prompts. Any text will do, also one that ``EnvSpec.tasks``
        does not have. Called after :meth:`bind`."""
        ...

    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        """Look at the first observations of a run (as in :meth:`act`), once and before the first ``act``: settle what a
        checkpoint leaves open, and say what is likely wrong with it. Each line is printed; usually there is none."""
        ...

    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        """Decides: answers B observations with chunks of K actions, with log-probs.

        Args:
            obs: every field of ``EnvSpec.obs`` as [B, …] (pixels uint8), and those of :meth:`encode_instructions`.
            noise: float32 [B, *spec.noise.shape] as declared, the only source of randomness (a row's noise is a
                function of seed, episode and record, so no batching changes a result).
            sampling: temperature and truncation of the distribution. ``do_sample=False`` asks for the greedy decision,
                which reads the first ``spec.noise.greedy`` entries of the noise, and no others. Usually these are none,
                and the decision is the likeliest one.
        """
        ...

    def evaluate(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        """Log-probs (entropies, values) of B records under the present weights, with gradients.

        ``records`` holds the fields that :meth:`act` was given, and those of the decision, each [B, …].

        Args:
            distribution: also give the distribution of each element (``Evaluation.distribution``). Passed, and true,
                with ``algorithm.kl_penalty_type: full`` alone, and only if ``spec.distribution``.
        """
        ...

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]: ...

    def describe(self) -> Mapping[str, str]:
        """A few facts for the console and the checkpoint: parameters, trained share, precision …"""
        ...


@runtime_checkable
class PreparesPictures(Protocol):
    """Interface of a policy that says how it prepares pictures: success depends on it, so it is part of an evaluation's
    protocol."""

    def pictures(self) -> Mapping[str, Any]:
        """Returns how the policy prepares pictures, as values of JSON; under the names of the keys of ``actor.model``
        where there are such keys."""
        ...


@runtime_checkable
class NamesSampler(Protocol):
    """Interface of a policy whose sampler has settings beside :class:`embodied.types.Sampling`, such as the steps of a
    denoising chain: success depends on them, so they are part of an evaluation's protocol."""

    def sampler(self, sampling: Sampling) -> Mapping[str, Any]:
        """Returns how decisions are drawn, as values of JSON, e.g. ``{"sampler": "ode", "num_steps": 10}``. The names
        are none of :class:`embodied.types.Sampling`'s."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """Interface of a policy of texts that counts tokens. With it micro-batches can be filled by tokens
    (``runner.enable_dynamic_batch_size``)."""

    def tokens(self, records: Mapping[str, np.ndarray]) -> np.ndarray:
        """Tokens of each of n records that a pass computes, prompt and answer: int64 [n].

        Args:
            records: as in :meth:`CountsFlops.flops`.
        """
        ...


@runtime_checkable
class ShowsTokens(Protocol):
    """A policy of texts may show what it reads and writes, for people who look into a run: ``data.return_full_prompt``
    and ``rollout.detokenize``."""

    def prompt_texts(self, prompts: Sequence[str]) -> list[str]:
        """The texts of prompts as the policy reads them: by its chat template, with special tokens, cut if it cuts.

        Args:
            prompts: as :meth:`Policy.encode_instructions` gets them.
        """
        ...

    def token_texts(self, records: Mapping[str, np.ndarray]) -> list[list[str]]:
        """The text of each token that was sampled, for each of n records; the first stands under the first log-prob.

        Args:
            records: as in :meth:`CountsFlops.flops`.
        """
        ...


@runtime_checkable
class Decodes(Protocol):
    """Interface of a policy that generates token by token, in lanes that are refilled as they end. Then
    ``embodied.runtime.policy.decoder`` answers observations in lanes, in place of one call of :meth:`Policy.act`."""

    def decoding(self, lanes: int, enforce_eager: bool = True) -> Decoding:
        """Make the state of ``lanes`` texts that are generated at the same time (a cache of keys and values).

        Args:
            enforce_eager: False: replay the step as a CUDA graph, if the policy can and there is a GPU.
        """
        ...


class Decoding(Protocol):
    """Lanes, numbered from 0, in each of which one decision is made, token by token.

    Promises: a decision is a function of weights, observation, noise and sampling. In which lane it is made, which
    others are made beside it, and in which order they were admitted, change no token. Its log-probs are those of the
    distribution that was sampled, and agree with ``Policy.evaluate``.
    """

    def begin(self, sampling: Sampling) -> None:
        """Begins a rollout with the present weights. All lanes are free."""
        ...

    def admit(self, lanes: Sequence[int], obs: Mapping[str, Tensor], noise: Tensor) -> None:
        """Begins to decode n observations in n free lanes.

        Args:
            obs: as :meth:`Policy.act` gets it, [n, …].
            noise: float32 [n, *spec.noise.shape].
        """
        ...

    def step(self) -> Sequence[int]:
        """Advance every busy lane by one token or more. Returns the lanes whose decision is whole now: they do nothing
        until they are taken or freed."""
        ...

    def take(self, lanes: Sequence[int]) -> Decision:
        """The decisions of n lanes that are whole, [n, …]; the lanes are free then."""
        ...

    def free(self, lane: int) -> None:
        """Drops what is being decoded in a lane."""
        ...

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        """The values of n observations, of a policy with a value head: float32 [n]. Nothing is decided, and no lane
        changes. The value of an observation does not depend on the others.

        Args:
            obs: as in :meth:`admit`.
        """
        ...

    def widest_step(self) -> None:
        """Compute one step over the longest texts for which lanes that were admitted have room, and forget it:
        ``runner.dry_run`` counts what it takes. It reads nothing back. Only :meth:`end` may follow."""
        ...

    def end(self) -> None:
        """Free the memory of the lanes; :meth:`begin` comes before they are used again."""
        ...


@runtime_checkable
class HasExtraState(Protocol):
    """A :class:`Policy` for which a run decides something that acting depends on. What decides is :meth:`Policy.probe`,
    or the demonstrations that the policy learns from (:class:`UsesStatistics`). Checkpoints keep the decision. After a
    resume the weights and the first observations are others, and a second look could decide otherwise."""

    def extra_state(self) -> Mapping[str, str]:
        """Returns what the run has decided for the policy; empty when nothing has been."""
        ...

    def load_extra_state(self, found: Mapping[str, str]) -> None:
        """Loads what :meth:`extra_state` returned; nothing of it is left to decide."""
        ...


@runtime_checkable
class HasValueParts(Protocol):
    """Interface of a policy of which values need more than the value head: layers that actions are not read from. A
    checkpoint that was made without values lacks them."""

    def value_parts(self) -> Sequence[str]:
        """Returns beginnings of the names of parameters that values alone are read from, also while there is no value
        head."""
        ...


@runtime_checkable
class CountsFlops(Protocol):
    """Interface of a policy that counts its floating-point operations. With it training logs them, and records that
    cost about as much share a micro-batch."""

    def flops(self, records: Mapping[str, np.ndarray], training: bool) -> np.ndarray:
        """Floating-point operations of each of n records, float64 [n]: of the forward pass, with ``training`` of the
        backward pass too. Two for each multiply-add; what is computed a second time to save memory is not counted.

        Args:
            records: the fields of decisions and of :meth:`Policy.encode_instructions`, each [n, …]; no observations.
        """
        ...


@runtime_checkable
class Clonable(Protocol):
    """Interface of a policy that can learn from demonstrations (``embodied.sft``) by log-probs; offered beside
    :class:`Policy`."""

    def encode_actions(self, actions: Tensor) -> Mapping[str, Tensor]:
        """Encode ``actions`` [B, K, …], as the env takes them (``EnvSpec.action``), as fields of a decision, each
        [B, …] as in ``Decision.fields``. :meth:`Policy.evaluate` gives log-probs from these fields. The token accuracy
        is counted on an integer field with as many numbers as there are elements. What lies outside the range of the
        policy is clipped, and text that is too long is cut. Called after ``bind``."""
        ...


@runtime_checkable
class HasDemonstrationLoss(Protocol):
    """Learning from demonstrations by a loss of the policy's own, such as flow matching: a policy whose log-probs are
    not those of tokens may offer it beside :class:`Policy`. Where it is offered, it is what ``embodied.sft`` minimises.
    """

    def demonstration_loss(self, records: Mapping[str, Tensor], actions: Tensor, noise: Tensor) -> Tensor:
        """The loss of each action of B demonstrated chunks, float32 [B, H] with gradients, where H is ``spec.horizon``
        or else K. The runtime takes the mean over the actions that were taken; beyond the end of an episode ``actions``
        repeats the last one. Called after :meth:`Policy.bind`.

        Args:
            records: the fields that :meth:`Policy.act` is given, each [B, …].
            actions: [B, H, …] as the env takes them (``EnvSpec.action``).
            noise: float32 [B, …] as ``spec.demonstration_noise`` declares it, or else ``spec.noise``: a function of the
                run's seed and the sample, and the only source of randomness beside dropout.
        """
        ...


@runtime_checkable
class UsesStatistics(HasExtraState, Protocol):
    """A policy that scales actions and state by statistics of the demonstrations, such as one whose tokens are spread
    over their range."""

    def use_statistics(self, name: str, values: Mapping[str, Any]) -> None:
        """Scale actions and state by these statistics from now on.

        ``extra_state()["statistics"]`` (:class:`HasExtraState`) then holds ``{"name": name, **values}`` as JSON text,
        values as used, so that each checkpoint carries them, and ``load_extra_state`` takes them back.

        Args:
            values: ``{"action": {"q01": [A], "q99": [A], "min": [A], "max": [A], "mean": [A], "std": [A]}, "proprio":
                {…: [S]}}`` in the env's units: 1 % and 99 % quantiles, extremes, mean and standard deviation. A policy
                uses one of the three pairs, and may be given that pair alone; ``proprio`` may be missing.
        """
        ...


@runtime_checkable
class Shardable(Protocol):
    """Interface of a policy that names the units in which its weights are sharded over training processes (fsdp2)."""

    def shard_modules(self) -> Sequence[Module]:
        """The modules whose weights are gathered and freed together: the transformer's layers. None lies inside
        another, and each is used by calling it. Weights outside of them stay gathered during a pass. Without this
        method the elements of the outermost ``ModuleList``s are taken."""
        ...


@runtime_checkable
class LaysOutRecords(Protocol):
    """Interface of a policy whose layers see the records of a pass otherwise than one after another."""

    def record_rows(self) -> tuple[Tensor, int]:
        """Returns where each of the R rows that layers saw in the latest :meth:`Policy.evaluate` belongs: places int64
        [R] in a table of its records, and the rows of a record there. Behind the table: to no record."""


class Team(Protocol):
    """Interface of a team of processes that compute each text together, as one of them sees it."""

    @property
    def rank(self) -> int:
        """Number of this process among the team's, from 0."""
        ...

    @property
    def size(self) -> int:
        """Number of processes in the team."""
        ...

    def exchange(self, sent: Tensor, to: Sequence[int], of: Sequence[int]) -> Tensor:
        """Sends each process its part of a flat tensor, ``to`` elements each. Returns what all have sent to this one,
        by rank, ``of`` elements each. A collective."""
        ...


@runtime_checkable
class SplitsTexts(Protocol):
    """Interface of a policy that lets several processes compute each text, for texts that are too long for
    one device."""

    @property
    def context_parallel_size(self) -> int:
        """Number of processes that compute each text together; 1 = each computes its texts alone."""
        ...

    def splitting(self, team: Team) -> AbstractContextManager[None]:
        """Within it :meth:`Policy.evaluate` is a collective of the team, whose processes ask for the same records. Each
        gets the whole result. In the backward pass each adds to its gradients the part of its own tokens, so that their
        sum over the team is the gradient. :meth:`Policy.act` is as ever."""
        ...
