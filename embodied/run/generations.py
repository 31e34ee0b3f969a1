"""Texts of an evaluation with what they were worth, in a file for reading (``runner.logger.log_val_generations``).

<run>/generations/000004.jsonl     {"prompt": …, "response": …, "reward": 1.0, "success": true, "start": {…},
                                    "protocol": {"name": null, "hash": "…"}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from embodied import instructions
from embodied.protocols import Cell
from embodied.types import EnvSpec, EpisodeResult


class Generations:
    """Keeps the last answer of the first ``most`` episodes of an evaluation's plan.

    Args:
        arrays: the slab's.
    """

    def __init__(self, env: EnvSpec, arrays: Mapping[str, np.ndarray], most: int) -> None:
        self._env, self._arrays, self._most = env, arrays, most
        self.kept: list[dict[str, Any]] = []

    def __call__(self, result: EpisodeResult) -> None:
        """Takes the answer of an episode that has ended just now; its last row is not given to others yet."""
        if result.episode.episode_id >= self._most:
            return
        prompt, response = last_answer(self._env, self._arrays, result)
        self.kept.append({
            "episode": result.episode.episode_id,
            "prompt": instructions.messages(prompt) or prompt,
            "response": response,
            "reward": result.episode_return,
            "success": result.success,
            "start": asdict(result.episode.start),
        })  # fmt: skip


def last_answer(env: EnvSpec, arrays: Mapping[str, np.ndarray], result: EpisodeResult) -> tuple[str, str]:
    """Returns the last observation's text (a prompt, or a conversation as ``embodied.instructions`` writes it) and the
    answer to it, of an episode whose last row still stands in the slab."""
    prompt = instructions.of_rows(env, arrays, [result.last_row])[0]
    return prompt, instructions.read(arrays["actions"][result.last_row][-1])


def write(file: Path, kept: list[dict[str, Any]], protocol: Mapping[str, str | None]) -> None:
    """Writes answers of all processes, in the plan's order, each with name and hash of the evaluation's protocol."""
    file.parent.mkdir(exist_ok=True)
    ordered = sorted(kept, key=lambda one: one["episode"])
    lines = [json.dumps({**one, "protocol": protocol}, ensure_ascii=False) for one in ordered]
    file.write_text("".join(f"{line}\n" for line in lines))


def generations_table(kept: list[dict[str, Any]]) -> tuple[str, list[str], list[list[Cell]]]:
    """Returns answers as a table of trackers: its name, its columns, its rows. A conversation is written as JSON."""
    columns = ["episode", "prompt", "response", "reward", "success"]
    rows = []
    for one in sorted(kept, key=lambda one: one["episode"]):
        prompt = one["prompt"] if isinstance(one["prompt"], str) else json.dumps(one["prompt"], ensure_ascii=False)
        rows.append([one["episode"], prompt, one["response"], one["reward"], one["success"]])
    return "eval/generations", columns, rows
