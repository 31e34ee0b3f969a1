"""Whole supervised runs, as a user starts them: demonstrations → sft → train."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import warm

from embodied import sft, train
from embodied.learn.checkpoint.metadata import read_meta
from embodied.learn.cloning import Cloner
from embodied.run.folder import saves
from embodied.runtime.pool import pool
from embodied.tools import demos

HERE = Path(__file__).parents[1]
LR = "actor.lr_sched.lr_"
FOLDERS = ("--config-dir", str(HERE / "config"))
FAST = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2",
    "runner.val_check_interval=-1", "runner.save_interval=-1", "sft.steps_per_iteration=5", "sft.val_samples=20",
    "actor.global_batch_size=16", "actor.micro_batch_size=16", "env.eval.video_cfg.save_video=false",
)  # fmt: skip
VARYING = re.compile(r"time/|.*_per_s$")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Demonstrations of the fake env."""
    folder = tmp_path_factory.mktemp("demos") / "fake"
    options = [
        "env=fake",
        "episodes=40",
        "noise_std=0.5",
        f"demos.path={folder}",
        "env.num_workers=1",
        "env.train.horizon=60",
        *FOLDERS,
    ]
    assert demos.main(options) == 0
    return folder


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Path) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demos").symlink_to(made)


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if a worker is started."""

    def start(*args: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(pool.Pool, "_start", start)


def arguments(*overrides: str, name: str = "run") -> list[str]:
    return [*FAST, "data=demos", f"runner.experiment_name={name}", *FOLDERS, *overrides]


def run(*overrides: str, name: str = "run") -> int:
    return sft.main(arguments(*overrides, name=name))


def rows(name: str = "run") -> list[dict[str, float]]:
    return [json.loads(line) for line in Path("runs", name, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def lasting(name: str) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if not VARYING.match(key)} for row in rows(name)]


def weights(iteration: int, name: str) -> bytes:
    return Path("runs", name, "checkpoints", f"{iteration:06d}", "__0_0.distcp").read_bytes()


def test_a_run_leaves_metrics_and_a_checkpoint_and_learns(no_worker, capsys):
    assert run("runner.max_epochs=4", "actor.optim.lr=0.02", "sft.steps_per_iteration=40") == 0
    out = capsys.readouterr().out
    assert "36 of 2 tasks, 4 more for validation" in out
    assert "1 % and 99 % quantiles of the demonstrations" in out
    first, *_, last = rows()
    assert last["sft/loss"] < 0.8 * first["sft/loss"]
    assert last["sft/token_accuracy"] > max(0.8, first["sft/token_accuracy"])
    assert {"sft/val_loss", "sft/val_token_accuracy", "sft/clean_loss", "sft/lr", "time/train_s"} <= set(first)
    assert first["sft/optimizer_steps"] == 40
    assert last["sft/epoch"] == pytest.approx(4 * first["sft/epoch"])
    assert [path.name for path in Path("runs/run/checkpoints").iterdir()] == ["000004"]


def test_a_cloned_policy_succeeds_in_the_simulator_and_training_goes_on_from_it():
    learn = ("runner.max_epochs=3", "actor.optim.lr=0.02", "sft.steps_per_iteration=100", "data.test_size=0")
    side = ("env.train.horizon=60", "env.eval.horizon=60", "env.eval.episodes_per_task=10", "env.num_workers=1")
    one = "actor.model.num_action_chunks=1"  # the next action is seen before it is chosen: no room for drift
    assert run(*learn, *side, one, "actor.global_batch_size=32", "runner.val_check_interval=3") == 0
    cloned = rows()[-1]["eval/success_rate"]
    rl = [option for option in FAST if not option.startswith("sft.")]
    options = [*rl, *side, one, *FOLDERS, "runner.experiment_name=rl", "runner.max_epochs=1", "experiment=null"]
    assert train.main([*options, "runner.only_eval=true", "runner.experiment_name=blank"]) == 0
    blank = json.loads(Path("runs/blank/eval/000000.json").read_text(encoding="utf-8"))["tasks"][-1]["success_rate"]
    assert cloned >= blank + 0.2
    start = "runner.ckpt_path=runs/run/checkpoints/000003"
    assert train.main([*options, "runner.only_eval=true", "runner.experiment_name=again", start]) == 0
    again = json.loads(Path("runs/again/eval/000000.json").read_text(encoding="utf-8"))["tasks"][-1]["success_rate"]
    assert again == cloned
    assert train.main([*options, start]) == 0
    assert rows("rl")[0]["rollout/success_rate"] > blank
    before, after = (
        read_meta(Path("runs", name, "checkpoints", number)).settled["statistics"]
        for name, number in (("run", "000003"), ("rl", "000001"))
    )
    assert before == after, "the ranges of the demonstrations stay with the policy"
    assert train.main([*options, "runner.max_epochs=2", start]) == 0
    assert [row["step"] for row in rows("rl")] == [1, 2]


def test_the_same_seed_is_the_same_run_and_a_resumed_one_goes_on_exactly():
    options = (
        f"{LR}warmup_iters=1",
        "data.random_crop=0.8",
        "data.brightness=0.2",
        f"{LR}decay_style=constant",
    )
    assert run(*options, "runner.max_epochs=4", name="whole") == 0
    assert run(*options, "runner.max_epochs=2", name="parts") == 0
    assert run(*options, "runner.max_epochs=4", name="parts") == 0
    assert lasting("parts") == lasting("whole")
    assert weights(4, "parts") == weights(4, "whole")
    assert run(*options, "runner.max_epochs=4", "runner.seed=5", name="other") == 0
    assert weights(4, "other") != weights(4, "whole")
    assert run(*options, "runner.max_epochs=4", "data.brightness=0", name="plain") == 0
    assert weights(4, "plain") != weights(4, "whole")


def test_the_clock_saves_within_an_iteration_and_a_run_that_dies_goes_on_there_to_the_same_bits(monkeypatch):
    """The clock of this test goes on by a second whenever it is read: once an optimizer step, and once a save."""
    by_clock = ("data.brightness=0.2", "runner.save_interval=1", "runner.save_interval_s=3")
    assert run("data.brightness=0.2", name="whole") == 0
    made = Cloner._step

    def dies(self, step, *rest):
        if step == 4:
            raise RuntimeError("the power is off")
        made(self, step, *rest)

    with monkeypatch.context() as patch:
        seconds = itertools.count()
        patch.setattr(saves, "monotonic", lambda: float(next(seconds)))
        patch.setattr(Cloner, "_step", dies)
        with pytest.raises(RuntimeError, match="the power is off"):
            run(*by_clock, name="dying")
        assert [path.name for path in Path("runs/dying/checkpoints").iterdir()] == ["000000+003"]
    assert run(*by_clock[:2], name="dying") == 0
    assert [one.name for one in sorted(Path("runs/dying/checkpoints").iterdir())] == ["000000+003", "000001", "000002"]
    assert lasting("dying") == lasting("whole")
    assert weights(2, "dying") == weights(2, "whole")


def test_micro_batches_change_nothing_but_rounding():
    assert run(name="one") == run("actor.micro_batch_size=5", name="many") == 0
    for one, many in zip(rows("one"), rows("many"), strict=True):
        assert one["sft/loss"] == pytest.approx(many["sft/loss"], rel=1e-5)
        assert one["sft/val_loss"] == pytest.approx(many["sft/val_loss"], rel=1e-4)


def test_the_learning_rate_rises_and_falls():
    options = (
        "runner.max_epochs=4",
        "actor.lr_sched.lr_warmup_iters=2",
        "actor.lr_sched.min_lr_ratio=0.1",
        "actor.optim.lr=0.01",
    )
    assert run(*options) == 0
    assert [row["sft/lr"] for row in rows()] == pytest.approx([0.005, 0.01, 0.0055, 0.001])


def test_another_file_may_be_held_out_and_a_value_head_left_alone():
    shutil.copytree("demos", "held")
    assert run("data.val_data_paths=[held]", "actor.model.value_head=true", "sft.statistics=env") == 0
    first = rows()[0]
    assert first["sft/val_loss"] == pytest.approx(first["sft/clean_loss"]), "they are the same demonstrations"
    meta = read_meta(Path("runs/run/checkpoints/000002"))
    assert "statistics" not in meta.settled
    assert "value_head.weight" in meta.parameters
    rl = [option for option in FAST if not option.startswith("sft.")]
    ckpt = "runner.ckpt_path=runs/run/checkpoints/000002"
    ppo = ("algorithm=ppo", "runner.experiment_name=ppo", "runner.max_epochs=1", "env.train.max_episode_steps=8")
    assert train.main([*rl, *FOLDERS, *ppo, ckpt]) == 0


def test_the_ranges_of_a_checkpoint_are_kept_or_replaced():
    assert run(name="first") == 0
    ckpt = "runner.ckpt_path=runs/first/checkpoints/000002"
    assert run(ckpt, name="second") == 0
    kept = [read_meta(Path(f"runs/{name}/checkpoints/000002")).settled["statistics"] for name in ("first", "second")]
    assert kept[0] == kept[1]
    assert run(ckpt, "sft.statistics=env", name="third") == 2


def test_a_dry_run_prints_the_numbers_and_writes_nothing(no_worker, capsys):
    assert run("runner.dry_run=true") == 0
    out = capsys.readouterr().out
    assert "2 iterations of 5, 16 samples each" in out
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["data=nowhere"], "no demonstrations at nowhere"),
        (["data=[]"], "data.train_data_paths is empty"),
        (["env.train.size=8", "env.eval.size=8"], "and the env gives [2, 8, 8, 3]"),
        (["env.train.cameras=3", "env.eval.cameras=3"], "no pictures of the env's camera 'camera2'"),
        (["env.train.state_dim=3", "env.eval.state_dim=3", "actor.model.state_dim=3"], "have [8] as 'state'"),
        (["env.train.action_dim=4", "env.eval.action_dim=4", "actor.model.action_dim=4"], "have 7 numbers an action"),
        (["data.test_size=1.5"], "data.test_size 1.5 is neither a share"),
        ([f"{LR}warmup_iters=2"], "would have fallen by iteration 2"),
        (["sft.statistic=env"], "Did you mean 'statistics'?"),
        (["actor.micro_batch_size=99"], "actor.micro_batch_size 99 is larger"),
        (["actor.model._target_=broken_policies.NoTokens"], "NoTokens cannot learn from demonstrations"),
    ],
)
def test_what_cannot_work_is_refused_before_any_worker(no_worker, capsys, overrides, text):
    assert run(*overrides) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "fix: " in error
    assert "Traceback" not in error


def test_updates_that_are_never_finite_end_the_run(capsys):
    assert run("actor.model._target_=broken_policies.NotFinite") == 2
    assert "not finite for 3 updates in a row; last finite: none yet" in capsys.readouterr().err


def test_sigterm_leaves_a_checkpoint_from_which_the_same_command_goes_on():
    options = ("runner.max_epochs=100000", f"{LR}decay_style=constant")
    metrics = Path("runs/run/metrics.jsonl")
    with warm.Program(["-m", "embodied.sft", *arguments(*options)]) as process:
        deadline = time.monotonic() + 60
        while not (metrics.exists() and len(metrics.read_text(encoding="utf-8").splitlines()) >= 2):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert re.fullmatch(r"SIGTERM: stopping within 20 s, .*\n", error)
    done = int(re.search(r"(\d+) iterations? done", out).group(1))
    assert run(*options, f"runner.max_epochs={done + 1}") == 0
    assert [row["step"] for row in rows()] == list(range(1, done + 2))
