"""Prompts as tokens: which lanes hold which, and which are computed together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..network.vision import Vision, digest
from .lanes import blocks

ROWS = 4  # prompts of a prefill; a group of fewer is filled up


@dataclass(frozen=True)
class Prompt:
    """Tokens of a prompt, and a digest that tells its pictures apart from those of other prompts."""

    ids: tuple[int, ...] = ()
    pictures: bytes = b""

    def __len__(self) -> int:
        return len(self.ids)


def prompts_of(obs: Mapping[str, Tensor]) -> list[Prompt]:
    """Reads prompts from the fields of ``encode_instructions``, without padding."""
    rows, lengths = obs["prompt_ids"].tolist(), obs["prompt_length"].tolist()
    return [Prompt(tuple(row[:size])) for row, size in zip(rows, lengths, strict=True)]


def shown_to(vision: Vision | None, obs: Mapping[str, Tensor]) -> tuple[list[Prompt], dict[Prompt, np.ndarray]]:
    """Reads prompts and, with ``vision``, the pictures uint8 [n, S, S, 3] of those that have some."""
    prompts = prompts_of(obs)
    if vision is None:
        return prompts, {}
    shown = vision.shown(obs)
    prompts = [replace(prompt, pictures=digest(pixels)) for prompt, pixels in zip(prompts, shown, strict=True)]
    return prompts, {prompt: pixels for prompt, pixels in zip(prompts, shown, strict=True) if len(pixels)}


def alike(prompts: Iterable[Prompt]) -> Iterator[tuple[list[Prompt], int]]:
    """Groups different prompts, at most :data:`ROWS` each, that are padded to one length; yields each group with this
    length."""
    by_length: dict[int, list[Prompt]] = {}
    for prompt in dict.fromkeys(prompts):
        by_length.setdefault(blocks(len(prompt)), []).append(prompt)
    for length, found in by_length.items():
        for first in range(0, len(found), ROWS):
            yield found[first : first + ROWS], length


class Holders:
    """Remembers which prompt each lane's cache holds, so that equal prompts can be copied."""

    def __init__(self, lanes: int) -> None:
        self._prompts = [Prompt()] * lanes
        self._lanes: dict[Prompt, dict[int, None]] = {}  # prompt → lanes that hold it, in the order of arrival

    def length(self, lane: int) -> int:
        """Returns the number of tokens of the prompt that a lane holds."""
        return len(self._prompts[lane])

    def sources(self, prompts: Mapping[int, Prompt]) -> dict[int, int]:
        """Finds lanes that hold the prompts of these lanes already: {lane: lane to copy from}."""
        found = {lane: self._lanes.get(prompt) for lane, prompt in prompts.items()}
        return {lane: next(iter(holders)) for lane, holders in found.items() if holders}

    def hold(self, lane: int, prompt: Prompt) -> None:
        """Notes that a lane holds a prompt now."""
        self._prompts[lane] = prompt
        self._lanes.setdefault(prompt, {})[lane] = None

    def forget(self, lane: int) -> None:
        """Notes that a lane's prompt will be overwritten."""
        prompt, self._prompts[lane] = self._prompts[lane], Prompt()
        holders = self._lanes.get(prompt, {})
        holders.pop(lane, None)
        if not holders:
            self._lanes.pop(prompt, None)
