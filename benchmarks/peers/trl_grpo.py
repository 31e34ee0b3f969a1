"""TRL: GRPOTrainer on a CPU, run by ``math_steps.py`` with an interpreter that has TRL.

    python benchmarks/peers/trl_grpo.py --model FOLDER --problems FILE --out FILE --batch 256 --steps 12 --most 32

All settings but those of the comparison are TRL's own. After each optimizer step a line is added to ``--out``: how many
completion tokens the step made, each completion's end of text included, the mean reward, and the share of groups whose
rewards are all equal.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import trl_rewards
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Rewards:
    """Calls a reward function, and counts what the step made.

    Args:
        group: completions of a prompt; they stand side by side.
    """

    def __init__(self, function: Callable[..., list[float]], group: int) -> None:
        self.__name__ = function.__name__  # TRL names its metrics after it
        self._function, self._group = function, group
        self._tokens, self._rewards = 0, list[float]()

    def __call__(self, completions: list[str], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        found = self._function(completions, **columns)
        self._tokens += sum(map(len, completion_ids))
        self._rewards += found
        return found

    def take(self) -> dict[str, float]:
        """What was counted since the last call: ``equal`` is the share of groups whose rewards are all equal."""
        rewards, size = self._rewards, self._group
        groups = [rewards[first : first + size] for first in range(0, len(rewards), size)]
        equal = sum(len(set(group)) == 1 for group in groups) / len(groups)
        row = {"tokens": self._tokens, "reward": sum(rewards) / len(rewards), "equal": equal}
        self._tokens, self._rewards = 0, []
        return row


class StepLog(TrainerCallback):
    """Adds a line to a file after each optimizer step."""

    def __init__(self, path: Path, rewards: Rewards) -> None:
        self._path, self._rewards = path, rewards

    def on_step_end(self, *_: Any, **__: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self._rewards.take()) + "\n")


def trainer(args: argparse.Namespace, scratch: str) -> GRPOTrainer:
    """The trainer, whose steps are logged to ``args.out``."""
    rows = [json.loads(line) for line in args.problems.read_text(encoding="utf-8").splitlines()]
    config = GRPOConfig(
        output_dir=scratch, use_cpu=True, bf16=False, per_device_train_batch_size=args.batch,
        num_generations=args.group, max_completion_length=args.most, max_steps=args.steps, seed=args.seed,
        generation_kwargs={"min_new_tokens": args.least} if args.least else None,
        report_to="none", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    rewards = Rewards(getattr(trl_rewards, args.reward), args.group)
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
    parser.add_argument("--reward", default="right_result", help="function of trl_rewards.py")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with TemporaryDirectory() as scratch:
        trainer(args, scratch).train()


if __name__ == "__main__":
    main()
