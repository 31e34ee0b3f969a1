"""Episodes until a robot succeeds: a baseline that remembers starts against groups, where starts come again.

    python benchmarks/start_value_robot.py --out /tmp/reach             # three seeds of each, then the report
    python benchmarks/start_value_robot.py --out /tmp/reach --report    # the report of what is there

Fetch's arm reaches a point (pip install 'embodied-rl[robotics]'), by its numbers, from random weights, paid for success
alone. It learns from 256 starts, 64 episodes an iteration: 8 of each of 8 starts with ``grpo`` and ``sv8``, one of each
of 64 with ``sv1``; the latter two are ``start_value``. All other keys are equal. Greedily, on 100 other starts, it is
judged every 5 iterations. The report goes to benchmarks/results/start_value_robot.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from _measure import machine, save
from own_successes import COMMON
from quickstart import Steps
from start_value_texts import KINDS, report, train

REACH = (
    "env=gym_fetchreach", "protocol=held_out", "protocol.held_out_states=100", "env.train.num_init_states=356",
    "env.train.reward_mode=sparse", "env.train.use_rel_reward=false", "runner.max_epochs=60",
    "runner.val_check_interval=5", "runner.val_before_train=true", "runner.logger.report=false",
)  # fmt: skip
GROUPS = {"grpo": 8, "sv8": 8, "sv1": 1}


def keys_of(kind: str) -> tuple[str, ...]:
    """Returns the keys of a training of ``kind``."""
    common = (key for key in COMMON if not key.startswith(("algorithm=", "algorithm.group_size", "algorithm.critic")))
    return (*common, *REACH, f"algorithm.group_size={GROUPS[kind]}", *KINDS[kind])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--report", action="store_true", help="only write the report")
    args = parser.parse_args()
    steps = Steps(args.out.resolve())
    if not args.report:
        train(steps, keys_of)
    facts = {**machine(["torch", "numpy", "gymnasium", "mujoco"]), "command": "python benchmarks/start_value_robot.py"}
    print(save("start_value_robot", {"machine": facts, "runs": report(steps.out)}))


if __name__ == "__main__":
    main()
