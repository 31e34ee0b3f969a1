"""What a robot gains whose resets go on beside the updates: seconds of an iteration, with and without.

    python benchmarks/robot_resets.py --reset-s 2 --epochs 12

One simulated robot at 20 Hz, an episode an iteration, soft actor-critic. The two trainings are the same to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from _measure import machine, save

HERE = Path(__file__).parent
SIDE = (
    "_target_=_resetting_robot.ResettingRobot", "pictures=false", "action_dim=2", "state_dim=2", "num_tasks=1",
    "success_distance=0", "max_episode_steps=40", "total_num_envs=1",
)  # fmt: skip
TIMES = ("time/iteration_s", "time/rollout_s", "time/train_s")


def trained(folder: Path, beside: bool, reset_s: float, epochs: int, updates: float) -> list[dict[str, Any]]:
    """Trains; returns the metrics of its iterations."""
    (folder / "env").mkdir(parents=True)
    (folder / "env" / "robot.yaml").write_text("_target_: _resetting_robot.ResettingRobot\n", "utf-8")
    sides = [f"env.{side}.{key}" for side in ("train", "eval") for key in SIDE]
    command = [
        sys.executable, "-m", "embodied.train", "--config-dir", str(folder), "env=robot", "experiment=null",
        "algorithm=sac", *(f"{key}" for key in sides), *(f"env.{side}.reset_s={reset_s}" for side in ("train", "eval")),
        "env.eval.video_cfg.save_video=false", "env.eval.episodes_per_task=1", "algorithm.rollout_epoch=1",
        f"algorithm.sac.updates_per_record={updates}", "algorithm.sac.learning_starts=40",
        f"algorithm.sac.reset_beside_update={str(beside).lower()}", "runner.val_check_interval=-1",
        "runner.save_interval=-1", f"runner.max_epochs={epochs}", "runner.experiment_name=run", "runner.device=cpu",
        f"runner.output_dir={folder}", "tracker=jsonl",
    ]  # fmt: skip
    paths = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL)
    lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reset-s", type=float, default=2.0)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--updates-per-record", type=float, default=2.0)
    args = parser.parse_args()
    runs: dict[bool, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for beside in (False, True):
            place = Path(folder) / str(beside)
            runs[beside] = trained(place, beside, args.reset_s, args.epochs, args.updates_per_record)
    for name in ("train/critic_loss", "rollout/return_mean"):
        assert [line.get(name) for line in runs[False]] == [line.get(name) for line in runs[True]], name
    found = {
        "beside the update" if beside else "after the update": {
            name: median(line[name] for line in lines[3:-1]) for name in TIMES
        }
        for beside, lines in runs.items()
    }
    print(json.dumps(found, indent=2))
    settings = {"reset_s": args.reset_s, "epochs": args.epochs, "updates_per_record": args.updates_per_record}
    save("robot_resets", {"machine": machine(["torch"]), **settings, "seconds an iteration, median": found})


if __name__ == "__main__":
    main()
