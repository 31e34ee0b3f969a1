"""TRL: GRPOTrainer on a CPU, run by ``math_steps.py`` with an interpreter that has TRL.

    python benchmarks/peers/trl_grpo.py --model FOLDER --problems FILE --out FILE --batch 256 --steps 12 --most 32

All settings but those of the comparison are TRL's own. After each optimizer step a line is added to ``--out``: how many
completion tokens the step made, each completion's end of text included, and the mean reward.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

SEPARATOR = ";"


class Rewards:
    """Pays 1 for the right integer after the last separator, and counts what the step made."""

    __name__ = "right_result"  # TRL names its metrics after it

    def __init__(self) -> None:
        self.tokens, self.rewards = 0, list[float]()

    def __call__(
        self, completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any
    ) -> list[float]:  # fmt: skip
        self.tokens += sum(map(len, completion_ids))
        found = [float(_result(text) == right) for text, right in zip(completions, answer, strict=True)]
        self.rewards += found
        return found

    def take(self) -> dict[str, float]:
        """What was counted since the last call."""
        row = {"tokens": self.tokens, "reward": sum(self.rewards) / max(len(self.rewards), 1)}
        self.tokens, self.rewards = 0, []
        return row


class StepLog(TrainerCallback):
    """Adds a line to a file after each optimizer step."""

    def __init__(self, path: Path, rewards: Rewards) -> None:
        self._path, self._rewards = path, rewards

    def on_step_end(self, *_: Any, **__: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(self._rewards.take()) + "\n")


def _result(text: str) -> str:
    _, separator, after = text.rpartition(SEPARATOR)
    return after.strip() if separator else ""


def trainer(args: argparse.Namespace, scratch: str) -> GRPOTrainer:
    """The trainer, whose steps are logged to ``args.out``."""
    rows = [json.loads(line) for line in args.problems.read_text().splitlines()]
    config = GRPOConfig(
        output_dir=scratch, use_cpu=True, bf16=False, per_device_train_batch_size=args.batch,
        num_generations=args.group, max_completion_length=args.most, max_steps=args.steps, seed=args.seed,
        generation_kwargs={"min_new_tokens": args.least} if args.least else None,
        report_to="none", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    rewards = Rewards()
    return GRPOTrainer(
        model=str(args.model), reward_funcs=rewards, args=config, train_dataset=Dataset.from_list(rows),
        callbacks=[StepLog(args.out, rewards)],
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder")
    parser.add_argument("--problems", type=Path, required=True, help="JSONL with prompt and answer")
    parser.add_argument("--out", type=Path, required=True, help="file that gets a line a step")
    parser.add_argument("--batch", type=int, required=True, help="completions of a step")
    parser.add_argument("--group", type=int, default=8, help="completions of a prompt")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--most", type=int, required=True, help="longest completion, tokens")
    parser.add_argument("--least", type=int, default=0, help="shortest completion, tokens")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with TemporaryDirectory() as scratch:
        trainer(args, scratch).train()


if __name__ == "__main__":
    main()
