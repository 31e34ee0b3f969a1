"""Writes texts of an evaluation with their rewards into a file for reading (``runner.logger.log_val_generations``).

<run>/generations/000004.jsonl     {"prompt": …, "response": …, "reward": 1.0, "success": true, "start": {…},
                                    "protocol": {"name": null, "hash": "…"}}

With ``data.return_full_prompt`` and ``rollout.detokenize`` also "full_prompt", "tokens" and "logprobs"
(:class:`Details`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied import instructions
from embodied.errors import ConfigError
from embodied.protocols import Cell, ShowsTokens
from embodied.schema import Config
from embodied.types import EnvSpec, EpisodeResult


class Generations:
    """Keeps, for ``generations/``, the last answer of the first ``most`` episodes of an evaluation's plan.

    Args:
        arrays: the slab's.
        details: what is kept besides.
    """

    def __init__(
        self, env: EnvSpec, arrays: Mapping[str, np.ndarray], most: int, details: Details | None = None
    ) -> None:  # fmt: skip
        self._env, self._arrays, self._most, self._details = env, arrays, most, details or Details()
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
            **self._details(prompt, self._arrays, result.last_row),
            "reward": result.episode_return,
            "success": result.success,
            "start": asdict(result.episode.start),
        })  # fmt: skip


def last_answer(env: EnvSpec, arrays: Mapping[str, np.ndarray], result: EpisodeResult) -> tuple[str, str]:
    """Returns the last observation's text (a prompt, or a conversation as ``embodied.instructions`` writes it) and the
    answer to it, of an episode whose last row still stands in the slab."""
    prompt = instructions.of_rows(env, arrays, [result.last_row])[0]
    return prompt, instructions.read(arrays["actions"][result.last_row][-1])


@dataclass(frozen=True)
class Details:
    """Chooses what is recorded of an answer beside its text: the full prompt, tokens with their log-probs.

    Args:
        policy: what has answered; None = nothing is shown.
        full_prompt: show the prompt as the policy reads it.
        tokens: show each sampled token as text, with its log-prob.
    """

    policy: ShowsTokens | None = None
    full_prompt: bool = False
    tokens: bool = False

    @classmethod
    def of(cls, config: Config, policy: object) -> Details:
        """Makes the details that ``data.return_full_prompt`` and ``rollout.detokenize`` ask for.

        Raises:
            ConfigError: the policy cannot show it.
        """
        asked = {
            "data.return_full_prompt": config.data.return_full_prompt, "rollout.detokenize": config.rollout.detokenize,
        }  # fmt: skip
        if not any(asked.values()):
            return cls()
        if not isinstance(policy, ShowsTokens):
            named = " and ".join(key for key, value in asked.items() if value)
            raise ConfigError(
                f"{named}: {type(policy).__name__}, which answers here, has no tokens that could be shown "
                "(embodied.protocols.ShowsTokens)",
                f"choose a language model, e.g. model=causal_lm, or leave out {named}",
            )
        return cls(policy, *asked.values())

    def __call__(self, prompt: str, arrays: Mapping[str, np.ndarray], row: int) -> dict[str, Any]:
        """Returns the details of the answer in ``row`` of the slab's ``arrays``.

        Args:
            prompt: as the observation has it.
        """
        found: dict[str, Any] = {}
        if self.policy is not None and self.full_prompt:
            found["full_prompt"] = self.policy.prompt_texts([prompt])[0]
        if self.policy is not None and self.tokens:
            (texts,) = self.policy.token_texts({name: values[row : row + 1] for name, values in arrays.items()})
            logprobs = arrays["logprobs"][row].ravel()[: len(texts)].tolist()
            found |= {"tokens": texts, "logprobs": [round(value, 4) for value in logprobs]}
        return found


def write(file: Path, answers: list[dict[str, Any]], protocol: Mapping[str, str | None]) -> None:
    """Writes the kept answers of all processes to ``file``, in the plan's order, each with name and hash of the
    evaluation's protocol."""
    file.parent.mkdir(exist_ok=True)
    ordered = sorted(answers, key=lambda one: one["episode"])
    lines = [_line({**one, "protocol": protocol}) for one in ordered]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _line(answer: Mapping[str, Any]) -> str:
    """An answer as JSON. One with half of a surrogate pair, which UTF-8 does not have, is in ASCII."""
    line = json.dumps(answer, ensure_ascii=False)
    try:
        line.encode()
    except UnicodeEncodeError:
        return json.dumps(answer)
    return line


def generations_table(answers: list[dict[str, Any]]) -> tuple[str, list[str], list[list[Cell]]]:
    """Makes the trackers' table of kept answers: its name, its columns, its rows. A conversation is written as JSON."""
    columns = ["episode", "prompt", "response", "reward", "success"]
    rows = []
    for one in sorted(answers, key=lambda one: one["episode"]):
        prompt = one["prompt"] if isinstance(one["prompt"], str) else json.dumps(one["prompt"], ensure_ascii=False)
        rows.append([one["episode"], prompt, one["response"], one["reward"], one["success"]])
    return "eval/generations", columns, rows
