"""What commands give every policy works for a flow policy: stale rollouts, resume, perturbations, comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from embodied import eval as evaluate
from embodied import train
from embodied.learn.checkpoint.metadata import read_meta
from embodied.tools import compare

CONFIG = ("--config-dir", str(Path(__file__).parents[2] / "config"))
RUN = (
    "env=fake", "env.num_workers=1", "env.train.reward_mode=dense", "model=flow_vla_tiny", "tracker=jsonl",
    "runner.device=cpu", "runner.save_interval=1", "runner.val_check_interval=-1", "algorithm.rollout_epoch=2",
    "algorithm.logprob_type=chunk_level", "algorithm.entropy_type=chunk_level", "algorithm.kl_beta=0.1",
    "algorithm.kl_penalty_type=full", "env.train.max_episode_steps=8", "env.eval.video_cfg.save_video=false", *CONFIG,
)  # fmt: skip


def sums(name: str, epochs: int) -> dict[str, str]:
    meta = read_meta(Path(f"runs/{name}/checkpoints/{epochs:06d}"))
    return {file: digest for file, digest in meta.checksums.items() if file != ".metadata"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a training in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, epochs: int, *keys: str) -> None:
        words = [*RUN, *keys, f"runner.experiment_name={name}", f"runner.max_epochs={epochs}"]
        assert train.main(words) == 0

    return run


def test_a_stale_run_with_noise_that_is_learned_is_resumed_exactly(here: Callable[..., None]) -> None:
    keys = (
        "algorithm.max_staleness=1", "algorithm.loss_type=tis", "actor.optim.lr=1e-6",
        "actor.model.noise_method=flow_noise", "actor.model.noise_steps=all", "algorithm.entropy_bonus=0.01",
    )  # fmt: skip
    here("whole", 3, *keys)
    for epochs in (1, 3):
        here("parts", epochs, *keys)
    assert sums("whole", 3) == sums("parts", 3)
    rows = [json.loads(line) for line in Path("runs/whole/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    weights = [row["train/behaviour_weight_mean"] for row in rows]
    assert weights[0] == 1.0
    assert 0 < abs(weights[-1] - 1) < 0.5, "the weights that acted are those of an iteration before"
    assert rows[-1]["train/kl_reference"] > 0


def test_a_checkpoint_is_evaluated_disturbed_and_compared(
    here: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    here("flow", 1)
    for name, keys in (
        ("plain", ("env.eval.seed=5",)),
        ("again", ("env.eval.seed=5",)),
        ("fine", ("env.eval.seed=5", "actor.model.eval_steps=7")),
        (
            "disturbed",
            (
                "+perturb=robot",
                "env.eval.perturb.without=[camera_move,camera_turn,gripper_delay,all_together,brightness,contrast,blur,dropped_frames,action_delay]",
                "env.eval.perturb.gripper_dim=null",
                "env.eval.perturb.strengths=[medium]",
            ),
        ),
    ):
        words = [
            "runs/flow",
            "--trust",
            f"runner.experiment_name={name}",
            "env.eval.episodes_per_task=3",
            *keys,
            *CONFIG,
        ]
        assert evaluate.main(words) == 0
    files = [
        json.loads(Path(f"runs/{name}/eval/000000.json").read_text(encoding="utf-8"))
        for name in ("plain", "again", "fine")
    ]
    plain, again, fine = ([episode["return"] for episode in file["episodes"]] for file in files)
    assert plain == again
    assert plain != fine
    sampled = [file["protocol"]["keys"]["sampling"] for file in files]
    assert [(keys["sampler"], keys["num_steps"]) for keys in sampled] == [("ode", 2), ("ode", 2), ("ode", 7)]
    assert Path("runs/disturbed/eval/robustness.md").is_file()
    capsys.readouterr()
    assert compare.main(["runs/plain", "runs/fine"]) == 0
    assert "num_steps" in capsys.readouterr().out
