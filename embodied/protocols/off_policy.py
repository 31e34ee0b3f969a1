"""What a policy must offer besides to learn from a replay buffer (``algorithm.learner=sac``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter

CHUNK = "chunk"
"""Field of a decision: the action that the critics judge, float32 [D] in [−1, 1]."""
BASE = "base"
"""Field of a decision: what a frozen policy would do here, float32 [D₀]; only where there is such a policy."""
DEMONSTRATED = "demonstrated"
"""Field of a record: whether a human overrode one of its actions, bool []; only where ``EnvSpec.interventions``."""

Critics = Literal["learning", "frozen", "target"]
"""Which critics judge: those that learn; the same, whose weights get no gradient; or those that follow them slowly."""


@runtime_checkable
class ActorCritic(Protocol):
    """Interface of a policy with an actor and critics, which soft actor-critic trains (arXiv 1812.05905).

    A decision has a field :data:`CHUNK`: D numbers that the actor has chosen. The critics judge them as one action,
    however many control steps it lasts. How the field ``actions`` is made of them is the policy's own affair: they are
    the actions of all K control steps, scaled to the env's units; or a small change of what a frozen policy does; or
    the noise with which that policy begins.

    Names of trained parameters begin with ``actor.`` or ``critic.``, or are ``log_temperature``. Parameters of the
    target critics are not trained. Shapes: B records, D numbers of a chunk, E critics.
    """

    log_temperature: Parameter  # float32 [], logarithm of the weight of the entropy

    @property
    def critics(self) -> int:
        """E, the number of critics."""
        ...

    def reads(self) -> Sequence[str]:
        """Names of the fields that actor and critics read beside the chunk: of the observation, of
        :meth:`embodied.protocols.Policy.encode_instructions`, of the decision (:data:`BASE`). A replay buffer keeps
        these alone. Called after ``bind``."""
        ...

    def prepare(self, records: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Computes what every reader of records computes first and no weight changes, such as averaged pictures.

        An update calls it once, and gives the result to :meth:`propose` and :meth:`judge`, which read records that
        were not prepared, too, and compute the same of them.
        """
        ...

    def propose(self, records: Mapping[str, Tensor], noise: Tensor) -> tuple[Tensor, Tensor]:
        """Draws chunks of the present actor, differentiable in its parameters and in no other.

        Args:
            records: the fields :meth:`reads`, each [B, …], prepared or not.
            noise: of mean 0 and variance 1, float32 [B, D].

        Returns:
            chunks float32 [B, D] in [−1, 1], and their log-densities float32 [B], nats.
        """
        ...

    def judge(self, records: Mapping[str, Tensor], chunks: Tensor, critics: Critics = "learning") -> Tensor:
        """Computes what each critic expects of chunks float32 [B, D]: discounted returns, float32 [E, B].

        Differentiable in the chunks; with ``critics="learning"`` in the parameters, too.
        """
        ...

    def follow(self, rate: float) -> None:
        """Moves the target critics by ``rate`` of the way to the present ones; 1 copies them."""
        ...

    def targets(self) -> Mapping[str, Tensor]:
        """Returns the tensors of the target critics by name, not copies. Checkpoints keep them."""
        ...

    def explore(self, uniform: bool) -> None:
        """With True, decisions that are drawn have chunks that are uniform in [−1, 1]^D, whatever the actor says."""
        ...


@runtime_checkable
class ReadsDemonstrations(Protocol):
    """Interface of an :class:`ActorCritic` that learns from actions that others have chosen, too: demonstrations, and
    those of a human who overrode it (``EnvSpec.interventions``)."""

    @property
    def reads_actions(self) -> bool:
        """Whether it can, as it was built."""
        ...

    def chunks_of(self, actions: Tensor, records: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Makes the chunks by which the policy would have acted so.

        Args:
            actions: demonstrated ones [B, K, A], in the env's units.
            records: those of the fields :meth:`ActorCritic.reads` that are of the decision, such as :data:`BASE`, as
                the policy decides greedily at the demonstrated observation: [B, …].

        Returns:
            chunks float32 [B, D] in [−1, 1], and bool [B, K]: which actions are beyond what a chunk can do, so that the
            nearest one stands in their place.

        Raises:
            ConfigError: actions do not tell chunks.
        """
        ...
