"""A process's part of the demonstrations, as entries that updates draw from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from embodied.data.demonstrations import Demonstration
from embodied.data.samples import Samples
from embodied.learn.actor_critic.decided import Decisions
from embodied.learn.actor_critic.memory import WHOLE_BYTES
from embodied.learn.checksums import Checksums, checksums_of
from embodied.learn.replay.demonstrations import Demonstrated
from embodied.observe.terminal.progress import Phase
from embodied.parallel.group import Group
from embodied.protocols import CHUNK, Policy
from embodied.types import ArraySpec, EnvSpec


@dataclass(frozen=True)
class Shown:
    """This rank's demonstrations of files."""

    entries: Demonstrated
    clamped: int  # those whose chunk is beyond what the policy can do
    checksums: Checksums

    @classmethod
    def of(
        cls, policy: Policy, env: EnvSpec, episodes: Sequence[Demonstration], fields: Mapping[str, ArraySpec],
        reward: float, seed: int, group: Group, device: torch.device, folder: Path,
        phase: Callable[[int], AbstractContextManager[Phase]],
    ) -> Shown:  # fmt: skip
        """Makes entries of every ``group.size``-th episode.

        Args:
            episodes: of all ranks.
            fields: of an entry.
            reward: of the success that ends each episode.
            folder: that keeps what a base does.
            phase: shows that a base is asked about so many observations.

        Raises:
            SpecMismatchError: they are not what the run records, or the policy learns from none.
            EmbodiedError: the base does not answer, or its answers cannot be kept.
        """
        own, chunk = list(episodes)[group.rank :: group.size], policy.spec.num_action_chunks
        samples = Samples(own, chunk)
        of_base = any(name in policy.spec.decision for name in fields if name != CHUNK)
        checksums = checksums_of(own, pictures=of_base or "images" in fields)
        file = folder / f"rank-{group.rank}.npz"
        decisions = Decisions(policy, env, samples, checksums, seed, group.rank, device, file)
        with phase(asked) if (asked := decisions.asks) else nullcontext() as bar:
            decided = decisions.make(bar.advance if bar else lambda count: None)

        def told(texts: list[str]) -> dict[str, np.ndarray]:
            return {name: field.numpy() for name, field in policy.encode_instructions(texts).items()}

        entries = Demonstrated(samples, own, fields, chunk, decided.fields, told, reward, WHOLE_BYTES)
        return cls(entries, decided.clamped, checksums)


def metrics_of(shown: Shown | None, marked: int, group: Group) -> dict[str, float]:
    """Returns the metrics of demonstrations, over all ranks. A collective.

    Args:
        shown: of this rank; None = there are none of files.
        marked: this rank's own records that count as demonstrations.
    """
    own = (len(shown.entries), shown.clamped) if shown else (0, 0)
    of_files, clamped, others = map(sum, zip(*group.gather((*own, marked)), strict=True))
    share = {"train/demonstrations_clamped": clamped / of_files} if of_files else {}
    return {"train/demonstrations": float(of_files + others), **share}
