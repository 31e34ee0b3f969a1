"""Protocols that a part must meet to be plugged in. None is inherited from: matching names and types is enough.

To add a simulator, write one file like ``envs/_template.py``; to add a network, one like ``models/_template.py``.
``embodied.testing.check_env`` and ``check_policy`` drive every method below and say what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from embodied.types import Decision, EnvSpec, Evaluation, Obs, PolicySpec, Sampling, Start, StepResult, WorkerFacts

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module, Parameter


class Env(Protocol):
    """One simulator instance, living in one env slot of a worker process.

    Constructing one is cheap (well under a second), imports no simulator, and raises
    :class:`embodied.errors.EmbodiedError` for whatever can be known to be wrong by then: unknown task, missing assets,
    impossible sizes. The launching process constructs one only to read :attr:`spec`. Simulator and GL context are made
    by the first :meth:`reset`, which only ever happens in a worker.

    ``reset(start)`` must leave no trace of earlier episodes: equal starts and equal actions give equal results,
    whatever ran before. An env that cannot keep this (a robot) says so with ``repeatable=False`` in its spec. The spec
    also declares what else may be asked of an env (``restorable``, ``retry_safe``). What an env offers besides is a
    protocol: :class:`Expert`, :class:`Batched`, :class:`Preloads`.
    """

    @property
    def spec(self) -> EnvSpec: ...

    def preflight(self) -> None:
        """Called once in the launching process, before any worker starts: check in seconds, and in a process of its
        own, what the workers will need (a renderer). Changes nothing here.
        Raises :class:`embodied.errors.RendererUnavailableError` or another error with the fix."""
        ...

    def prepare(self) -> WorkerFacts:
        """Called in the worker before anything else: choose the renderer, set variables, import the simulator. A worker
        that hosts several slots calls it for each.
        Raises :class:`embodied.errors.RendererUnavailableError` or ``AssetsMissingError``."""
        ...

    def reset(self, start: Start) -> None:
        """Go to the initial condition. Renders nothing."""
        ...

    def step(self, action: np.ndarray) -> StepResult:
        """Make one control step; renders nothing.

        Args:
            action: as ``spec.action`` says: float32 [A] in the units of its ``low`` and ``high``, an int32 scalar
                from 0 to ``num_actions`` − 1, or the bytes of a text uint8 [L] (``embodied.instructions.read``).
        """
        ...

    def observe(self, out: Obs) -> None:
        """Render and write the present observation into ``out`` (every field of ``spec.obs``, in place)."""
        ...

    def frame(self) -> np.ndarray:
        """A picture for the video: uint8 [H, W, 3], upright. Called for recorded episodes only."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SaysHowLong(Protocol):
    """The longest time of a control step, if an env knows it, e.g. of what it asks elsewhere. A deadline that is
    shorter (``env.step_timeout_s``) is then refused, since it would take such a step for a hang."""

    @property
    def longest_step_s(self) -> float: ...


@runtime_checkable
class Restorable(Protocol):
    """Going back to a moment: an env with ``EnvSpec.restorable`` offers it beside :class:`Env`."""

    def get_state(self) -> Any:
        """A picklable state with all that is needed to go on from here exactly."""
        ...

    def set_state(self, state: Any) -> None:
        """Restore what :meth:`get_state` gave, for the same task: equal actions then give equal results, bit by bit (if
        the env is ``repeatable``)."""
        ...


@runtime_checkable
class Expert(Protocol):
    """A scripted solution that an env may offer beside :class:`Env`, for demonstrations (``embodied.tools.demos``). An
    env that solves only some of its tasks has the method for those, and names them in a text ``experts``."""

    def expert(self) -> Iterator[np.ndarray]:
        """Yield actions as in :meth:`Env.step`, on a freshly reset env. Each is worked out from privileged state when
        it is asked for. The actions stop when the expert gives up or the episode ends.

        The expert reads the state anew for every action, because the executed action may not be the one that it gave
        (noise). An action is a function of the state and of what the expert did before in this episode only.
        """
        ...


class Preloads(Protocol):
    """Imports that workers inherit with ``env.start_method: forkserver``; an env may offer them beside :class:`Env`."""

    def preload(self) -> None:
        """Called once, on an instance in the process that forks the workers: import the simulator, as
        :meth:`Env.prepare` does. ``prepare`` is still called in each worker, whose environment variables may be others.

        It must start no thread, open no device and make no GL context: a fork of those is broken. Threads and open
        devices are found, and the workers then import for themselves.
        """
        ...


class BatchEnv(Protocol):
    """One simulator for all slots of a worker, e.g. a GPU simulator that steps all copies of a task together. It is
    made by :meth:`Batched.batch`. Its slots have the numbers 0 … N − 1, and are without an episode until they are
    reset.

    Simulator and GL context are made by the first :meth:`reset`. As with :class:`Env`, a reset leaves no trace of
    earlier episodes: in which slot an episode runs, and what runs beside it, changes nothing of it (as far as the
    simulator's arithmetic allows). ``embodied.testing.check_batch_env`` drives every method.
    """

    def reset(self, slots: Sequence[int], starts: Sequence[Start]) -> None:
        """Bring these slots to their starts; all others stay exactly as they are. Renders nothing."""
        ...

    def step(self, actions: np.ndarray, active: np.ndarray) -> Sequence[StepResult]:
        """Make one control step of all slots; renders nothing.

        Args:
            actions: float32 [N, A] or int32 [N], as in :meth:`Env.step`; slots that are not active get
                ``spec.action.neutral()``.
            active: bool [N]. The others have no episode, or have ended theirs: they may move or stay as the simulator
                likes, and are reset before they become active again.

        Returns:
            N results; those of slots that are not active are not read.
        """
        ...

    def observe(self, slots: Sequence[int], outs: Sequence[Obs]) -> None:
        """Render once, and write the present observation of each of these slots into its ``out``, as
        :meth:`Env.observe` does."""
        ...

    def frame(self, slot: int) -> np.ndarray:
        """A picture of one slot for its video: uint8 [H, W, 3], upright."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Batched(Protocol):
    """One object that hosts all slots of a worker; an env may offer it beside :class:`Env`. Rollouts then call only
    :attr:`Env.spec`, :meth:`Env.preflight`, :meth:`Env.prepare` (once in a worker) and :meth:`batch`."""

    def batch(self, num_slots: int) -> BatchEnv:
        """Make the object. Called once in a worker, after ``prepare``; as cheap as constructing an env."""
        ...


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
        """Answer B observations.

        Args:
            obs: every field of ``EnvSpec.obs`` as [B, …] (pixels uint8), and those of :meth:`encode_instructions`.
            noise: float32 [B, *spec.noise.shape] of the declared kind, the only source of randomness (a row's noise is
                a function of seed, episode and record, so no batching changes a result).
            sampling: temperature and truncation of the distribution. ``do_sample=False`` asks for the likeliest
                decision, whatever the noise.
        """
        ...

    def evaluate(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        """Log-probs (entropies, values) of B records under the present weights, with gradients.

        ``records`` holds the fields that :meth:`act` was given, and those of the decision, each [B, …].

        Args:
            distribution: also give the log-probs of what was not chosen (``Evaluation.distribution``). Passed, and
                true, with ``algorithm.kl_penalty_type: full`` alone, and only if ``spec.distribution``.
        """
        ...

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]: ...

    def describe(self) -> Mapping[str, str]:
        """A few facts for the console and the checkpoint: parameters, trained share, precision …"""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """A count of tokens that a policy of texts may offer besides. With it micro-batches can be filled by tokens
    (``runner.enable_dynamic_batch_size``)."""

    def tokens(self, records: Mapping[str, np.ndarray]) -> np.ndarray:
        """Tokens of each of n records that a pass computes, prompt and answer: int64 [n].

        Args:
            records: as in :meth:`CountsFlops.flops`.
        """
        ...


@runtime_checkable
class Decodes(Protocol):
    """Generation token by token, with lanes that are refilled as they end: a :class:`Policy` may offer it. Then
    ``embodied.runtime.decoder`` answers observations in lanes, in place of one call of :meth:`Policy.act`."""

    def decoding(self, lanes: int) -> Decoding:
        """Make the state of ``lanes`` texts that are generated at the same time (a cache of keys and values)."""
        ...


class Decoding(Protocol):
    """Lanes, numbered from 0, in each of which one decision is made, token by token.

    Promises: a decision is a function of weights, observation, noise and sampling. In which lane it is made, which
    others are made beside it, and in which order they were admitted, change no token. Its log-probs are those of the
    distribution that was sampled, and agree with ``Policy.evaluate``.
    """

    def begin(self, sampling: Sampling) -> None:
        """Begin with the present weights. All lanes are free."""
        ...

    def admit(self, lanes: Sequence[int], obs: Mapping[str, Tensor], noise: Tensor) -> None:
        """Begin n decisions in n free lanes.

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
        """Forget what is made in a lane."""
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
        """What has been decided; empty when nothing has."""
        ...

    def load_extra_state(self, found: Mapping[str, str]) -> None:
        """Load what :meth:`extra_state` gave; nothing of it is left to decide."""
        ...


@runtime_checkable
class CountsFlops(Protocol):
    """A count of operations that a policy may offer besides. With it training logs its floating-point operations, and
    records that cost about as much share a micro-batch."""

    def flops(self, records: Mapping[str, np.ndarray], training: bool) -> np.ndarray:
        """Floating-point operations of each of n records, float64 [n]: of the forward pass, with ``training`` of the
        backward pass too. Two for each multiply-add; what is computed a second time to save memory is not counted.

        Args:
            records: the fields of decisions and of :meth:`Policy.encode_instructions`, each [n, …]; no observations.
        """
        ...


@runtime_checkable
class Clonable(Protocol):
    """Learning from demonstrations (``embodied.sft``): a policy may offer it beside :class:`Policy`."""

    def encode_actions(self, actions: Tensor) -> Mapping[str, Tensor]:
        """Encode ``actions`` [B, K, …], as the env takes them (``EnvSpec.action``), as fields of a decision, each
        [B, …] as in ``Decision.fields``. :meth:`Policy.evaluate` gives log-probs from these fields. The token accuracy
        is counted on an integer field with as many numbers as there are elements. What lies outside the range of the
        policy is clipped, and text that is too long is cut. Called after ``bind``."""
        ...


@runtime_checkable
class UsesStatistics(HasExtraState, Protocol):
    """A :class:`Clonable` policy whose tokens are spread over the ranges of the demonstrated actions."""

    def use_statistics(self, name: str, values: Mapping[str, Any]) -> None:
        """Spread the tokens over the ranges of the demonstrations from now on, and read the state relative to its own.

        ``extra_state()["statistics"]`` (:class:`HasExtraState`) then holds ``{"name": name, **values}`` as JSON text,
        values as used, so that each checkpoint carries them, and ``load_extra_state`` takes them back.

        Args:
            values: ``{"action": {"q01": [A], "q99": [A], "min": [A], "max": [A]}, "proprio": {…: [S]}}`` in the env's
                units: 1 % and 99 % quantiles, and extremes. A policy spreads its tokens over one of the two pairs, and
                may be given that pair alone; ``proprio`` may be missing.
        """
        ...


@runtime_checkable
class Shardable(Protocol):
    """Sharding of weights over several training processes (fsdp2): a policy may offer it besides."""

    def shard_modules(self) -> Sequence[Module]:
        """The modules whose weights are gathered and freed together: the transformer's layers. None lies inside
        another, and each is used by calling it. Weights outside of them stay gathered during a pass. Without this
        method the elements of the outermost ``ModuleList``s are taken."""
        ...


class Reward(Protocol):
    """Turns the raw reward of each control step of an episode into the one that is recorded."""

    def begin(self) -> None:
        """Begin a new episode."""
        ...

    def __call__(self, result: StepResult) -> float: ...


class Tracker(Protocol):
    """Receives a run's metrics. A tracker that knows the run by an id (of a web service) gives it in an attribute
    ``run_id``. Checkpoints keep the id, and a resumed run hands it back."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...
