"""Demonstrations as decisions of the policy: the chunk of each, and what a frozen base does at its observation.

    observations ─▶ the policy, greedily: what its base does ─┬─▶ kept in the run's folder
    actions ──────────────────────────────────────────────────┴─▶ chunks

The base is asked once. A run that goes on reads its answers, if base and demonstrations are those of before.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from embodied import instructions
from embodied.data.samples import SampleSource
from embodied.errors import PolicyChangedError, RunFolderError, SpecMismatchError
from embodied.learn.checksums import Checksums
from embodied.learn.replay.sampling import ANSWERED
from embodied.lib.whole import write_whole
from embodied.protocols import CHUNK, ActorCritic, HasExtraState, NamesWeights, Policy, ReadsDemonstrations
from embodied.random import Stream, generator
from embodied.types import EnvSpec, Sampling

ASKED = 16  # observations of one call of the policy
HEADER = "#header"
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Decided:
    """The decisions of N demonstrated chunks."""

    fields: Arrays  # by number of the sample, [N, …]
    clamped: int  # chunks that an executed action is beyond


class Decisions:
    """Makes decisions of demonstrations.

    Args:
        samples: demonstrated chunks.
        checksums: of their episodes.
        seed: of the noise with which a base decides.
        rank: of the process that asks.
        file: that keeps what the base does.
    """

    def __init__(
        self, policy: Policy, env: EnvSpec, samples: SampleSource, checksums: Checksums, seed: int, rank: int,
        device: torch.device, file: Path,
    ) -> None:  # fmt: skip
        assert isinstance(policy, ActorCritic)
        if not isinstance(policy, ReadsDemonstrations):
            raise SpecMismatchError(
                f"algorithm.replay.demonstrations is set, and {type(policy).__name__} does not say which chunk a "
                "demonstrated action is",
                "leave algorithm.replay.demonstrations out, or give the policy chunks_of "
                "(embodied.protocols.ReadsDemonstrations)",
            )
        self._policy, self._reads, self._env, self._samples = policy, policy, env, samples
        self._of_base = [name for name in policy.reads() if name in policy.spec.decision]
        self._key = {"demonstrations": checksums.numbers, "chunk": policy.spec.num_action_chunks, "seed": seed}
        self._pictures = checksums.pictures
        self._seed, self._rank, self._device, self._file = seed, rank, device, file

    @property
    def asks(self) -> int:
        """Observations that a base is asked about; 0 if there is no base, or its answers are kept."""
        return len(self._samples) if self._of_base and self._kept() is None else 0

    def make(self, passed: Callable[[int], None] = lambda count: None) -> Decided:
        """Makes the decisions.

        Args:
            passed: called with the number of observations that the base has answered.

        Raises:
            RunFolderError: the base's answers cannot be written.
            EmbodiedError: the base does not answer.
        """
        fields = dict(self._answers(passed)) if self._of_base else {}
        chunks, clamped, count = [], 0, len(self._samples)
        for first in range(0, count, 1024):
            chosen = np.arange(first, min(first + 1024, count))
            actions = torch.from_numpy(np.asarray(self._samples.actions(chosen))).to(self._device)
            records = {name: torch.from_numpy(array[chosen]).to(self._device) for name, array in fields.items()}
            made, beyond = self._reads.chunks_of(actions, records)
            chunks.append(made.detach().float().cpu().numpy())
            clamped += int((beyond.cpu().numpy() & self._samples.mask(chosen)).any(1).sum())
        if chunks:
            fields[CHUNK] = np.concatenate(chunks)
        return Decided(fields, clamped)

    def _answers(self, passed: Callable[[int], None]) -> Arrays:
        if (kept := self._kept()) is not None:
            return kept
        parts: dict[str, list[np.ndarray]] = {name: [] for name in self._of_base}
        for first in range(0, len(self._samples), ASKED):
            chosen = np.arange(first, min(first + ASKED, len(self._samples)))
            for name, values in self._ask(chosen).items():
                parts[name].append(values)
            passed(len(chosen))
        found = {name: np.concatenate(values) for name, values in parts.items() if values}
        header = json.dumps({**self._key, "pictures": self._pictures, "policy": self._identity(), "sums": _sums(found)})
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            arrays: dict[str, Any] = {**found, HEADER: np.array(header)}
            write_whole(self._file, lambda file: np.savez(file, **arrays))
        except OSError as error:
            raise RunFolderError(
                f"what the base does at the demonstrated observations cannot be written to {self._file}: "
                f"{error.strerror}",
                "free space, or fix the folder's permissions",
            ) from error
        return found

    @torch.no_grad()
    def _ask(self, chosen: np.ndarray) -> Arrays:
        """Asks for the greedy decisions at the observations of some samples int64 [n]."""
        read, device = self._samples.batch(chosen), self._device
        obs = {name: torch.from_numpy(np.asarray(read[name])).to(device) for name in instructions.fields_of(self._env)}
        told = self._policy.encode_instructions(self._samples.instructions(chosen))
        obs |= {name: values.to(device) for name, values in told.items()}
        declared = self._policy.spec.noise
        noise = [declared.draw(generator(self._seed, Stream.REPLAYED, int(n), self._rank, ANSWERED)) for n in chosen]
        decision = self._policy.act(obs, torch.from_numpy(np.stack(noise)).to(device), Sampling(do_sample=False))
        return {name: decision.fields[name].float().cpu().numpy() for name in self._of_base}

    def _identity(self) -> dict[str, str]:
        return dict(self._policy.extra_state()) if isinstance(self._policy, HasExtraState) else {}

    def _kept(self) -> Arrays | None:
        """Returns the answers that the file has, if they are of this base and these demonstrations."""
        with suppress(OSError, ValueError, LookupError, TypeError, BadZipFile, EOFError):
            with np.load(self._file, allow_pickle=False) as file:
                header = json.loads(str(file[HEADER]))
                found = {name: file[name] for name in self._of_base}
            same = all(header[name] == value for name, value in self._key.items()) and header["sums"] == _sums(found)
            same = same and header.get("pictures", self._pictures) == self._pictures  # earlier versions have none
            if same and self._is_same(header["policy"]):
                return found
        return None

    def _is_same(self, identity: Mapping[str, str]) -> bool:
        """Returns whether a policy of before is this one. A server's answers may differ by rounding."""
        if identity == self._identity():
            return True
        if not isinstance(self._policy, NamesWeights) or not isinstance(self._policy, HasExtraState):
            return False
        try:
            self._policy.load_extra_state(identity)
        except PolicyChangedError:
            return False
        return True


def _sums(arrays: Arrays) -> dict[str, int]:
    return {name: zlib.crc32(np.ascontiguousarray(array).tobytes()) for name, array in sorted(arrays.items())}
