"""The values that travel between the parts, each with shape and unit. Imports numpy only: env workers stay light.

Shape letters: R records of a slab, B rows of a batch, K actions of a chunk (control steps), A action dimensions,
M₀ elements of a decision (its log-probs), C cameras, H×W pixels, S state dimensions, V values of a record (1, K or, of
a text, M₀).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from embodied.errors import ConfigError, SpecMismatchError
from embodied.perturbations import Perturbed
from embodied.sampling import OUTSIDE as OUTSIDE
from embodied.sampling import Gaussian as Gaussian
from embodied.sampling import Noise as Noise
from embodied.sampling import Sampling as Sampling

if TYPE_CHECKING:
    from torch import Tensor

Obs = Mapping[str, np.ndarray]
"""One observation: field name → array of the shape and dtype in :attr:`EnvSpec.obs`. The arrays that an env is handed
are views of a slab's row: it writes into them (``obs["images"][0] = picture``) and keeps no reference."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one field of one record, e.g. ``ArraySpec((2, 224, 224, 3), "uint8")``."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Start:
    """Identifies an initial condition. Equal starts give equal episodes under equal actions."""

    task_id: int  # index into EnvSpec.tasks
    init_state_id: int  # range: [0, EnvSpec.num_init_states[task_id])
    seed: int  # ≥ 0, for envs that randomise beyond the initial state


@dataclass(frozen=True)
class ContinuousAction:
    """An action of A numbers, e.g. ``ContinuousAction(low=(-1.0,) * 7, high=(1.0,) * 7)``."""

    low: tuple[float, ...]  # [A], unit of the controller
    high: tuple[float, ...]  # [A]

    @property
    def dim(self) -> int:
        """A, the number of action dimensions."""
        return len(self.low)

    def field(self, num_action_chunks: int) -> ArraySpec:
        """A record's ``actions``: float32 [K, A]. A step gets float32 [A]."""
        return ArraySpec((num_action_chunks, self.dim), "float32")

    def neutral(self) -> np.ndarray:
        """Zero, or the number of the range that is nearest to it: float32 [A]."""
        return np.clip(np.zeros(self.dim), self.low, self.high).astype(np.float32)

    def sample(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Actions drawn evenly from the range: float32 [count, A]."""
        return random.uniform(self.low, self.high, (count, self.dim)).astype(np.float32)


@dataclass(frozen=True)
class DiscreteAction:
    """One of N actions, e.g. the keys of a game: a number from 0 to N − 1."""

    num_actions: int  # N

    def field(self, num_action_chunks: int) -> ArraySpec:
        """A record's ``actions``: int32 [K]. A step gets an int32 scalar."""
        return ArraySpec((num_action_chunks,), "int32")

    def neutral(self) -> np.ndarray:
        """Action 0, whatever it does: int32 []."""
        return np.zeros((), np.int32)

    def sample(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Actions drawn evenly: int32 [count]."""
        return random.integers(self.num_actions, size=count, dtype=np.int32)


@dataclass(frozen=True)
class TextAction:
    """A text, e.g. the answer to a question: UTF-8 bytes, filled up with zeros (``embodied.instructions``)."""

    max_bytes: int  # L; a policy cuts what is longer

    def field(self, num_action_chunks: int) -> ArraySpec:
        """A record's ``actions``: uint8 [K, L]. A step gets uint8 [L]."""
        return ArraySpec((num_action_chunks, self.max_bytes), "uint8")

    def neutral(self) -> np.ndarray:
        """The empty text: uint8 [L]."""
        return np.zeros(self.max_bytes, np.uint8)

    def sample(self, random: np.random.Generator, count: int) -> np.ndarray:
        """Texts of random digits, letters and signs, of at most 16 bytes: uint8 [count, L]."""
        length = min(16, self.max_bytes)
        drawn = np.zeros((count, self.max_bytes), np.uint8)
        drawn[:, :length] = random.integers(0x20, 0x7F, (count, length))
        return drawn


ActionSpec = ContinuousAction | DiscreteAction | TextAction
"""What a control step takes. ``action.field(K)`` is the one place that says what the field ``actions`` of a record with
K actions must be; policies, workers and checks ask it."""


@dataclass(frozen=True)
class EnvSpec:
    """What an env offers: observation, action, tasks, and what may be asked of it. Known without building a simulator.

    Example: one 224×224 camera and 8 numbers of robot state →
    ``obs={"images": ArraySpec((1, 224, 224, 3), "uint8"), "state": ArraySpec((8,), "float32")}``. An env without
    pictures has no "images" and ``cameras=()``.
    """

    obs: Mapping[str, ArraySpec]  # fields of one observation; "images" uint8 [C, H, W, 3], "state" float32 [S]
    cameras: tuple[str, ...]  # names of images[0], images[1], …; third-person first, then wrist
    action: ActionSpec
    tasks: tuple[str, ...]  # instruction of each task, e.g. "pick up the black bowl and place it on the plate"
    num_init_states: tuple[int, ...]  # per task: how many fixed initial states
    max_episode_steps: int  # default limit of an episode, control steps
    control_hz: float  # control steps a second, used for the frame rate of videos
    restorable: bool = True  # it has get_state and set_state (embodied.protocols.Restorable)
    repeatable: bool = True  # equal starts and equal actions give equal episodes, bit by bit
    retry_safe: bool = True  # an episode that was lost with its worker may be redone; a robot's may not (SafeStop)
    info: tuple[str, ...] = ()  # names of the whole numbers in StepResult.info, int64 each in a record
    interventions: bool = False  # a human may override actions (StepResult.intervention)

    @property
    def continuous(self) -> ContinuousAction:
        """The action of an env that takes numbers.

        Raises:
            SpecMismatchError: it takes one of N actions.
        """
        if isinstance(self.action, ContinuousAction):
            return self.action
        if isinstance(self.action, DiscreteAction):
            raise SpecMismatchError(
                f"the env takes one of {self.action.num_actions} actions, expected actions of several numbers",
                "choose a policy for discrete actions, or an env with continuous ones",
            )
        raise SpecMismatchError(
            "the env takes text, expected actions of several numbers",
            "choose a policy that writes text (model=causal_lm), or an env with continuous actions",
        )

    @property
    def action_dim(self) -> int:
        """A of a :attr:`continuous` action."""
        return self.continuous.dim

    @property
    def action_low(self) -> tuple[float, ...]:
        """[A] of a :attr:`continuous` action, unit of the controller."""
        return self.continuous.low

    @property
    def action_high(self) -> tuple[float, ...]:
        """[A] of a :attr:`continuous` action."""
        return self.continuous.high


NO_INFO: Mapping[str, int] = MappingProxyType({})


class StepResult(NamedTuple):
    """Result of one control step. The runtime makes the recorded reward from it (``reward_mode``, ``reward_coef``,
    ``use_rel_reward``)."""

    reward: float  # the env's own measure of progress, best in [0, 1] with 1 = solved; read with reward_mode=dense
    terminated: bool  # the task ended (success, or a failure that cannot be undone)
    success: bool
    info: Mapping[str, int] = NO_INFO  # numbers under the names in EnvSpec.info; one that is not there counts as 0
    truncated: bool = False  # the env cuts the episode off, e.g. at a step limit of its own; `terminated` goes first
    intervention: np.ndarray | None = None  # float32 [A], what a human had executed instead of the action; None: nobody


class ChunkResult(NamedTuple):
    """Result of executing one chunk of K actions. Steps after the one that ended the episode were not executed."""

    rewards: np.ndarray  # float32 [K], zero from num_steps on
    num_steps: int  # control steps executed, 1..K
    terminated: bool
    truncated: bool  # cut off without termination, by the step limit or by the env
    success: bool
    info: Mapping[str, int] = NO_INFO  # EnvSpec.info of the last control step
    progress: float = 0.0  # largest reward of the env's own in the episode so far
    solved_at: int = 0  # control step of the episode with its first success; 0 = none yet
    features: tuple[np.ndarray, np.ndarray] | None = None  # HasProgressFeatures: before and after it, float32 [F] each
    interventions: Mapping[int, np.ndarray] = MappingProxyType({})  # control step of the chunk → what a human executed


@dataclass(frozen=True)
class Episode:
    """One entry of the plan: what to run, before it runs."""

    episode_id: int  # unique in a run; keys the sampling noise
    group_id: int  # episodes whose returns are compared share it
    start: Start
    video: str | None = None  # file to record to, or None
    perturbed: Perturbed | None = None  # changes between env and policy; None: none
    weight: float = 1.0  # multiplies its advantage: 1 / (number of starts · chance of its start)


class Lease(NamedTuple):
    """A row of a slab that belongs to an episode (``embodied.runtime.records``)."""

    row: int
    owner: int  # id of the episode
    version: int  # weight version that acts in it
    number: int  # unique among the leases of a store


@dataclass(frozen=True)
class EpisodeResult:
    """One finished episode."""

    episode: Episode
    rows: tuple[int, ...]  # slab rows of its records, in order of t; empty when records were not kept
    episode_return: float  # sum of shaped rewards
    success: bool
    num_steps: int  # control steps
    terminated: bool
    truncated: bool
    final_row: int = -1  # slab row of the last observation with its "value", if that was asked for; it is no record
    rank: int = 0  # rank of the process whose slab has those rows (torchrun)
    learner: int = -1  # rank, among those that train, that gets its records; -1: the process that has them trains
    leases: tuple[Lease, ...] = ()  # leases of those rows and of the final one; they hold until they are given back
    written: int | None = None  # tokens of its texts; None if the policy's decisions have no length of their own
    last_row: int = -1  # slab row of its last record; others may be given it once on_episode has returned
    info: Mapping[str, int] = field(default_factory=dict)  # EnvSpec.info of the last control step
    model_score: float | None = None  # a reward model's score of the last answer; None: no such model
    progress: float = 0.0  # how far it got: the largest reward of the env's own, whatever reward_mode is
    solved_at: int = 0  # control step of its first success; 0 = none
    not_run: str = ""  # why it could not be run (evaluations alone); then it has no other result


@dataclass(frozen=True)
class Elements:
    """The elements of a decision that have a log-prob. ``embodied.algorithms.layout`` reads it, and has examples.
    Example: 8 actions of 7 tokens → ``Elements((8, 7), action_axis=0)``."""

    shape: tuple[int, ...]  # shape of one decision's log-probs; they are stored in row-major order
    action_axis: int | None = None  # the axis over the K actions; None: an element belongs to the whole decision
    length_axis: int | None = None  # axis on which only the first ``length`` (a field of the decision) entries count
    levels: tuple[str, ...] = ()  # levels that algorithm.logprob_type may ask for; () = all that the axes allow


@dataclass(frozen=True)
class PolicySpec:
    """What a record of a policy's decision holds, and what the runtime must know to ask for it.

    ``decision`` always has ``actions`` (what the env executes, first axis K) and ``logprobs`` float32, as many as
    ``elements`` has; ``value`` float32 [V] with a value head; ``length`` int32 [] with a length axis. Whatever else
    stands there is the policy's own, and comes back to ``Policy.evaluate``. A value is that before its reward: of M₀
    values the first is that of the observation, the second that after the first token, and so on.
    """

    num_action_chunks: int  # K
    decision: Mapping[str, ArraySpec]  # fields of one record
    elements: Elements
    noise: Noise
    categories: Mapping[str, int] = field(default_factory=dict)  # integer fields → how many values each can take
    entropy: bool = True  # evaluate() gives entropies
    distribution: bool = True  # evaluate(…, distribution=True) gives the distribution of each element
    random_weights: bool = False  # it was built without trained weights, so it solves nothing yet
    scored: bool = True  # its log-probs are known; False: they are zeros, as who decides does not tell them
    logprob_dtypes: tuple[str, ...] = ("float32",)  # formats in which it can compute log-probs (embodied.logprobs)
    sampling: tuple[str, ...] = ("temperature", "top_k", "top_p")  # which of these fields of Sampling it draws by
    # of learning from demonstrations by the policy's own loss (embodied.protocols.HasDemonstrationLoss)
    horizon: int | None = None  # H ≥ K, the actions that it is given of each chunk; None = K
    demonstration_noise: Noise | None = None  # random numbers that it consumes; None = as ``noise``

    def check_sampling(self, asked: object, front: str) -> None:
        """Raises :class:`ConfigError` for fields of ``asked`` that change nothing of how this policy draws.

        Args:
            asked: has the fields of :class:`Sampling`.
            front: stands before their names where the user set them.
        """
        for name in ("temperature", "top_k", "top_p"):
            value, usual = getattr(asked, name), getattr(Sampling, name)
            if name not in self.sampling and value != usual:
                raise ConfigError(
                    f"{front}{name} is {value:g}, and this policy does not draw by it: it has no table of choices",
                    f"leave {front}{name} out; it is then {usual:g}",
                )


@dataclass(frozen=True)
class Decision:
    """Answer of ``Policy.act`` to B observations: field name → tensor [B, …] as in ``PolicySpec.decision``.
    Example: ``fields["actions"]`` float32 [B, K, A] in the env's units, ``fields["logprobs"]`` float32 [B, M₀]."""

    fields: Mapping[str, Tensor]


@dataclass(frozen=True)
class Evaluation:
    """Answer of ``Policy.evaluate`` to B records, differentiable. The M₀ elements have the order of
    ``PolicySpec.elements``; [B, *shape] will do as well as [B, M₀]."""

    logprobs: Tensor  # float32 [B, M₀], of the recorded decisions under the present weights
    entropy: Tensor | None = None  # float32 [B, M₀], nats; None if PolicySpec.entropy is False
    value: Tensor | None = None  # float32 [B, V], None without a value head
    # only when asked for: float32 [B, M₀, N], log-probs of all N choices; or each element's Gaussian
    distribution: Tensor | Gaussian | None = None


@dataclass(frozen=True)
class SimulatorNeeds:
    """What a simulator needs of a machine, and its parts' licences (``embodied.tools.doctor``)."""

    name: str  # e.g. "ManiSkill"
    modules: tuple[str, ...]  # Python packages, the simulator's own first; without that one it is not installed
    install: str  # the command that installs them
    renderers: Mapping[str, Callable[[], str]]  # backend → draws a frame, says by what; else RendererUnavailableError
    licences: Mapping[str, str] = field(default_factory=dict)  # part → its licence, e.g. of meshes
    try_imports: Callable[[Any], WorkerFacts] | None = None  # prepare() of an env without what is kept: compiling


@dataclass(frozen=True)
class WorkerFacts:
    """Facts that a worker found when it started; each ``reason`` is printed once."""

    pid: int
    renderer: str  # e.g. "egl"
    reason: str  # why that renderer, e.g. "first of egl, osmesa that made a context"
    extra: Mapping[str, str] = field(default_factory=dict)
    driver: str = ""  # renderer, e.g. "llvmpipe (LLVM 19.1.7, 256 bits)"
    versions: Mapping[str, str] = field(default_factory=dict)  # package of the simulator → its version
    shares_simulators: bool = False  # what one env slot of the worker has built serves the others
