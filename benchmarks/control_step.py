"""CPU time of a control step: LIBERO's against that of its bare physics, ManiSkill's against ManiSkill's own code.

    python benchmarks/control_step.py
    python benchmarks/control_step.py --tasks 3            # three tasks of each LIBERO suite
    python benchmarks/control_step.py --suites libero_90 --tasks 9 --episodes 0      # without ManiSkill

Nothing is rendered. What is compared is explained in ``_control_step_libero.py``, which measures settling and resets
too, and in ``_control_step_maniskill.py``.
"""

from __future__ import annotations

import argparse
import os

from _control_step_libero import SUITES, measure_libero
from _control_step_maniskill import measure_maniskill
from _measure import machine, save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="*", default=SUITES, help="of LIBERO")
    parser.add_argument("--tasks", type=int, default=1, help="of LIBERO in each suite, spread over it")
    parser.add_argument("--steps", type=int, default=200, help="of LIBERO in each task")
    parser.add_argument("--resets", type=int, default=10, help="of LIBERO in each task")
    parser.add_argument("--episodes", type=int, default=10, help="of ManiSkill in each task")
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    facts = machine(["mujoco", "robosuite", "numba", "mani_skill", "sapien", "torch", "numpy"])
    found = {"libero": measure_libero(args.suites, args.tasks, args.steps, args.resets)}
    if args.episodes:
        found["maniskill"] = measure_maniskill(args.episodes)
    print(save("control_step", {"arguments": vars(args), "machine": facts, **found}))


if __name__ == "__main__":
    main()
