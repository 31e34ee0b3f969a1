"""Trainings whose texts an engine writes, through the command that users type, with the engine of the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from logged import rows_of
from test_text_run import FOLDERS, TRAIN

from embodied import train
from embodied.errors import AssetsMissingError, ConfigError
from embodied.parallel.group import Group
from embodied.run.build import engine_process
from embodied.schema import RolloutConfig
from embodied.schema.compose.compose import compose

FAKE = Path(__file__).parents[1] / "runtime" / "fake_engine.py"


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def engine(tmp_path: Path, *faults: str) -> tuple[str, ...]:
    """The options of a run: an interpreter that has the engine, whatever it is told to start."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exit 0\nexec {sys.executable} {FAKE} {" ".join(faults)} "$3"\n', encoding="utf-8"
    )
    python.chmod(0o755)
    return "rollout.backend=vllm", f"rollout.python={python}"


def without_gaps(folder: str) -> list[dict[str, float]]:
    """Without what depends on which texts came first."""
    return [{name: v for name, v in row.items() if "engine_logprob" not in name} for row in rows_of(folder)]


def test_rewards_are_learnt_from_an_engines_texts(tmp_path, capsys):
    options = engine(tmp_path, f"dies={tmp_path / 'once'}")
    assert train.main([*TRAIN, *options, "runner.experiment_name=run", "runner.val_before_train=true", *FOLDERS]) == 0
    rows = rows_of("runs/run")
    assert rows[8]["eval/return_mean"] > rows[0]["eval/return_mean"] + 0.1
    assert max(row["train/logprob_gap"] for row in rows[1:]) < 1e-5
    assert max(row["rollout/engine_logprob_gap"] for row in rows[1:]) < 1e-5
    assert sum(row["rollout/engine_restarts"] for row in rows[1:]) == 1
    said = capsys.readouterr().out
    assert "engine: fake 1.0, ready after" in said
    assert "a new one takes its place (1 of rollout.max_engine_restarts 3 in a row)" in said
    assert Path("runs/run/logs/engine.1.log").is_file()
    assert "letters" in Path("runs/run/engine/config.json").read_text(encoding="utf-8")


def test_the_same_seed_is_the_same_run(tmp_path):
    options = [*TRAIN, *engine(tmp_path), "runner.max_epochs=2", "runner.val_check_interval=2"]
    for name, more in (("one", ("rollout.policy_batch=3",)), ("two", ("env.num_workers=1",))):
        assert train.main([*options, *more, f"runner.experiment_name={name}", *FOLDERS]) == 0
    one, two = map(without_gaps, ("runs/one", "runs/two"))
    assert one == two


def test_an_engines_log_probs_can_be_recomputed_before_the_update(tmp_path):
    options = [*TRAIN, *engine(tmp_path), "runner.max_epochs=2", "runner.val_check_interval=-1"]
    for name, recompute in (("recorded", "false"), ("recomputed", "true")):
        given = [*options, f"rollout.recompute_logprobs={recompute}", f"runner.experiment_name={name}"]
        assert train.main([*given, *FOLDERS]) == 0
    recorded, recomputed = rows_of("runs/recorded"), rows_of("runs/recomputed")
    for one, other in zip(recorded, recomputed, strict=True):
        assert one["train/loss"] == pytest.approx(other["train/loss"], abs=1e-6)
        assert 0 < other["train/logprob_gap"] < 1e-5  # the engine of the tests rounds log-probs otherwise
    assert recomputed[0]["train/approx_kl"] == pytest.approx(0, abs=1e-9)


def test_weights_that_rest_change_no_number_and_rounded_ones_travel(tmp_path, capsys):
    options = [*TRAIN, *engine(tmp_path), "runner.max_epochs=2", "runner.val_check_interval=2"]
    keys = {"stay": (), "rest": ("actor.offload_weight=true",), "bf16": ("runner.weight_sync_dtype=bf16",)}
    notes = {}
    for name, given in keys.items():
        assert train.main([*options, *given, f"runner.experiment_name={name}", *FOLDERS]) == 0
        notes[name] = "actor.offload_weight=true moves nothing on cpu" in capsys.readouterr().out
    assert notes == {"stay": False, "rest": True, "bf16": False}
    assert without_gaps("runs/stay") == without_gaps("runs/rest") != without_gaps("runs/bf16")
    for name, least, most in (("stay", 0, 1e-5), ("rest", 0, 1e-5), ("bf16", 1e-5, 0.1)):
        gap = max(row["rollout/engine_logprob_gap_mean"] for row in rows_of(f"runs/{name}"))
        assert least <= gap < most, name
    assert "came in bfloat16" in Path("runs/bf16/logs/engine.log").read_text(encoding="utf-8")
    assert "came in float32" in Path("runs/rest/logs/engine.log").read_text(encoding="utf-8")


def test_an_engine_that_computes_something_else_ends_the_run(tmp_path, capsys):
    options = [*TRAIN, *engine(tmp_path, "deaf"), "runner.val_check_interval=-1", "runner.experiment_name=run"]
    kept = ("rollout.validate_save_dir=kept", "rollout.validate_weight=true")
    assert train.main([*options, *kept, *FOLDERS]) == 2
    told = capsys.readouterr()
    assert "the engine computes other log-probs than the training network" in told.err
    assert "rollout.backend=native" in told.err
    assert "what was compared is in kept/logprobs_2.json" in told.err
    assert "engine: 1 tensors were read as they were sent; what was compared is in kept/weights_1.json" in told.out
    assert sorted(file.name for file in Path("kept").iterdir()) == [
        "logprobs_1.json", "logprobs_2.json", "weights_1.json"
    ]  # fmt: skip


def test_a_folder_for_what_was_compared_that_cannot_be_made_is_refused_at_the_start(tmp_path, capsys):
    Path("kept").write_text("a file", encoding="utf-8")
    options = [*TRAIN, *engine(tmp_path), "rollout.validate_save_dir=kept", *FOLDERS]
    assert train.main(options) == 2
    assert "rollout.validate_save_dir is kept, which cannot be made" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("visible", "gpu", "given"),
    [(None, None, None), (None, 1, "1"), ("2,3", 1, "3"), ("2,3", None, "2,3"), ("", 0, "0")],
)
def test_an_engine_computes_on_the_gpu_of_its_process(monkeypatch, visible, gpu, given):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = engine_process.environment(RolloutConfig(backend="vllm"), gpu)
    assert found.get("CUDA_VISIBLE_DEVICES") == given


def test_an_engine_that_splits_its_layers_sees_all_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    found = engine_process.environment(RolloutConfig(backend="vllm", tensor_parallel_size=2), 1)
    assert found["CUDA_VISIBLE_DEVICES"] == "2,3"


def test_the_engine_is_looked_for_as_it_will_be_started(tmp_path, monkeypatch):
    (tmp_path / "vllm.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    options = ["rollout.backend=vllm", "env=libero_10", "model=openvla_oft_tiny"]
    engine_process.check(compose(options).config, Group())  # with the launcher's interpreter, which reads PYTHONPATH
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    engine_process.check(compose(options).config, Group())
    with pytest.raises(AssetsMissingError, match="has no package vllm"):
        engine_process.check(compose([*options, f"rollout.python={sys.executable}"]).config, Group())


def test_an_interpreter_that_is_none_is_said(tmp_path):
    (tmp_path / "python").write_text("no program", encoding="utf-8")
    (tmp_path / "python").chmod(0o755)
    options = ["rollout.backend=vllm", f"rollout.python={tmp_path / 'python'}", "env=libero_10"]
    with pytest.raises(ConfigError, match=r"cannot be run: .*Exec format error"):
        engine_process.check(compose([*options, "model=openvla_oft_tiny"]).config, Group())


def test_another_interpreter_gets_no_paths_of_ours(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/of/ours")
    assert "PYTHONPATH" not in engine_process.environment(RolloutConfig(backend="vllm", python="python3"), None)
    assert engine_process.environment(RolloutConfig(backend="vllm"), None)["PYTHONPATH"] == "/of/ours"


def test_several_processes_have_an_engine_of_one_gpu_each():
    with pytest.raises(ConfigError, match="tensor_parallel_size 2 with 2 processes"):
        engine_process.check(compose(["rollout.backend=vllm", "rollout.tensor_parallel_size=2",
                                      "env=libero_10", "model=openvla_oft_tiny"]).config, Group(size=2))  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["rollout.backend=sglang"], "rollout.backend sglang is not offered"),
        (["rollout.python=python3"], "rollout.python is for an engine"),
        (["rollout.backend=vllm", "rollout.python=no-such"], "no program that can be run"),
        (["rollout.backend=vllm", "algorithm.adv_type=gae"], "algorithm.adv_type gae needs them"),
        (["rollout.backend=vllm"], "has no package vllm"),
        (["rollout.backend=vllm", "env=fake", "model=fake", "runner.task_type=embodied",
          "runner.logger.log_val_generations=0"], "rollout.backend: for texts alone"),
    ],
)  # fmt: skip
def test_what_no_engine_can_do_is_refused_before_anything_starts(capsys, options, said):
    assert train.main([*TRAIN, "runner.experiment_name=run", *options, *FOLDERS]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "fix: " in error
    assert not Path("runs/run/logs").exists()
