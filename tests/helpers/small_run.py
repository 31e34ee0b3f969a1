"""A run of a few seconds, and what must not be imported to use its checkpoint."""

from pathlib import Path

HIDDEN = (
    "libero",
    "robosuite",
    "mujoco",
    "mani_skill",
    "sapien",
    "gymnasium",
    "embodied.envs",
    "embodied.runtime.pool.pool",
)
"""Simulators, and what drives them."""
RUN = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=1", "runner.save_interval=1",
    "runner.val_check_interval=-1", "algorithm.rollout_epoch=4", "env.train.max_episode_steps=10",
    "env.train.reward_mode=dense", "env.num_workers=1", "env.eval.video_cfg.save_video=false",
    "runner.experiment_name=run", "--config-dir", str(Path(__file__).parents[1] / "config"),
)  # fmt: skip
"""Overrides of a training that leaves one checkpoint."""
