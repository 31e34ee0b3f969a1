"""Prompts as tokens: which lanes hold which, and which are computed together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from .lanes import blocks

ROWS = 4  # prompts of a prefill; a group of fewer is filled up

Prompt = tuple[int, ...]


def prompts_of(obs: Mapping[str, Tensor]) -> list[Prompt]:
    """Reads what ``encode_instructions`` gave, without what fills it up."""
    rows, lengths = obs["prompt_ids"].tolist(), obs["prompt_length"].tolist()
    return [tuple(row[:size]) for row, size in zip(rows, lengths, strict=True)]


def alike(prompts: Iterable[Prompt]) -> Iterator[tuple[list[Prompt], int]]:
    """Groups different prompts, at most :data:`ROWS` each, that are filled up to one length; gives this length, too."""
    by_length: dict[int, list[Prompt]] = {}
    for prompt in dict.fromkeys(prompts):
        by_length.setdefault(blocks(len(prompt)), []).append(prompt)
    for length, found in by_length.items():
        for first in range(0, len(found), ROWS):
            yield found[first : first + ROWS], length


class Holders:
    """Remembers the prompt that each of some lanes holds."""

    def __init__(self, lanes: int) -> None:
        self._prompts: list[Prompt] = [()] * lanes
        self._lanes: dict[Prompt, dict[int, None]] = {}  # those that hold a prompt, in the order of arrival

    def length(self, lane: int) -> int:
        """Tokens of the prompt that a lane holds."""
        return len(self._prompts[lane])

    def sources(self, prompts: Mapping[int, Prompt]) -> dict[int, int]:
        """A lane that holds the prompt of each of these lanes, if there is one: {lane: source}."""
        found = {lane: self._lanes.get(prompt) for lane, prompt in prompts.items()}
        return {lane: next(iter(holders)) for lane, holders in found.items() if holders}

    def hold(self, lane: int, prompt: Prompt) -> None:
        self._prompts[lane] = prompt
        self._lanes.setdefault(prompt, {})[lane] = None

    def forget(self, lane: int) -> None:
        """Says that a lane's prompt will be overwritten."""
        prompt, self._prompts[lane] = self._prompts[lane], ()
        holders = self._lanes.get(prompt, {})
        holders.pop(lane, None)
        if not holders:
            self._lanes.pop(prompt, None)
