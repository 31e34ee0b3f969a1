"""Keys of Hydra that mean something without its launcher: where a run's folder begins, and Hydra's record in it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from embodied import train
from embodied.errors import ConfigError
from embodied.parallel.group import Group
from embodied.run.build.policy import open_folder
from embodied.run.build.preflight import check
from embodied.schema.compose.compose import compose
from embodied.tools import demos
from embodied.tools.completion import candidates

CONFIG = str(Path(__file__).parents[1] / "config")
FAKE = ("env=fake", "model=fake")
RUN = (
    *FAKE, "tracker=jsonl", "runner.logger.report=false", "runner.device=cpu", "env.num_workers=1",
    "env.train.total_num_envs=4", "algorithm.rollout_epoch=2", "env.train.max_episode_steps=6",
    "env.eval.total_num_envs=4", "env.eval.max_episode_steps=6", "runner.experiment_name=run", "--config-dir", CONFIG,
)  # fmt: skip
TOLD = ("hydra.run.dir=out/${runner.seed}", "hydra.output_subdir=.hydra", "runner.seed=7")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_run_is_where_hydra_is_told_and_leaves_hydras_record():
    run = Path("out/7/runs/run")
    assert train.main([*RUN, *TOLD, "runner.max_epochs=1", "runner.logger.project_name=https://me:pw@host/x"]) == 0
    assert not Path("runs").exists()
    assert not Path("videos").exists()
    assert [*Path("out/7/videos/run/eval").rglob("*.mp4")], "what else the run writes begins there, too"
    assert (run / "checkpoints/000001/meta.json").is_file()
    assert yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["runner"]["logger"]["log_path"] == str(run)
    config = yaml.safe_load((run / ".hydra/config.yaml").read_text(encoding="utf-8"))
    assert config["runner"]["logger"]["log_path"] == "${runner.output_dir}/${runner.experiment_name}"
    assert config["runner"]["logger"]["project_name"] == "https://(hidden)@host/x"
    assert "hydra" not in config
    overrides = yaml.safe_load((run / ".hydra/overrides.yaml").read_text(encoding="utf-8"))
    assert overrides == [
        *RUN[:-2], "runner.seed=7", "runner.max_epochs=1", "runner.logger.project_name=https://(hidden)@host/x",
    ]  # fmt: skip


def test_a_run_goes_on_there_and_its_record_is_that_of_the_newest_start(capsys):
    for epochs in (1, 2):
        assert train.main([*RUN, *TOLD, f"runner.max_epochs={epochs}", "env.eval.video_cfg.save_video=false"]) == 0
    run = Path("out/7/runs/run")
    assert [path.name for path in sorted((run / "checkpoints").iterdir())] == ["000001", "000002"]
    assert "runner.max_epochs=2" in yaml.safe_load((run / ".hydra/overrides.yaml").read_text(encoding="utf-8"))
    assert "going on" in capsys.readouterr().out


def test_a_dry_run_and_other_processes_write_no_record():
    assert train.main([*RUN, *TOLD, "runner.dry_run=true"]) == 0
    assert not Path("out").exists()
    composed = compose([*RUN[:-2], *TOLD], "train", [CONFIG])
    check(composed, Group())
    with open_folder(composed, Group(1, 2)) as folder:
        assert folder.path == Path("out/7/runs/run")
        assert not folder.path.exists()
    with open_folder(composed, Group(0, 2)):
        assert sorted(path.name for path in (folder.path / ".hydra").iterdir()) == ["config.yaml", "overrides.yaml"]


def test_by_default_nothing_is_recorded_and_the_run_is_below_the_folder_of_the_command():
    assert compose([*FAKE], "train", [CONFIG]).record is None
    assert compose([*FAKE, "hydra.output_subdir=null"], "train", [CONFIG]).record is None
    assert compose([*FAKE, "hydra.run.dir=."], "train", [CONFIG]) == compose([*FAKE], "train", [CONFIG])


def test_demonstrations_begin_there_too():
    told = ("env=fake", "episodes=1", "env.num_workers=1", "runner.experiment_name=d", "--config-dir", CONFIG)
    assert demos.main([*told, "hydra.run.dir=out", "hydra.output_subdir=told"]) == 0
    assert Path("out/demos/d/told/overrides.yaml").is_file()
    assert not Path("demos").exists()


def test_a_file_of_an_experiment_may_say_it():
    Path("mine/experiment").mkdir(parents=True)
    text = "# @package _global_\nhydra: {run: {dir: theirs}, output_subdir: kept}\n"
    Path("mine/experiment/own.yaml").write_text(text, encoding="utf-8")
    composed = compose([*FAKE, "experiment=own"], "train", [CONFIG, "mine"])
    assert composed.config.runner.output_dir == "theirs/runs"
    assert composed.record.folder == "kept"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (("runner.output_dir=/abs",), "/abs/run"),
        (("runner.logger.log_path=mine",), "out/mine"),
        (("runner.logger.log_path=/abs/mine",), "/abs/mine"),
        (("runner.output_dir=x", "runner.logger.log_path=${runner.output_dir}/y"), "out/x/y"),
    ],
)
def test_a_folder_that_is_absolute_stays_and_another_one_begins_there(given, path):
    told = compose([*FAKE, "runner.experiment_name=run", "hydra.run.dir=out", *given], "train", [CONFIG])
    assert told.config.runner.logger.log_path == path


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("hydra.run.dir=out/${now:%Y-%m-%d}", "let the shell write the time"),
        ("hydra.run.dir=${runner.nosuch}", "cannot resolve hydra.run.dir"),
        ("hydra.output_subdir=/record", "has to be a folder of its own within the run's"),
        ("hydra.output_subdir=../record", "has to be a folder of its own within the run's"),
        ("hydra.output_subdir=.", "has to be a folder of its own within the run's"),
        ("hydra.output_subdir=checkpoints", "set hydra.output_subdir=.hydra"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(override, said):
    with pytest.raises(ConfigError) as failed:
        compose([*FAKE, override], "train", [CONFIG])
    assert said in str(failed.value)


def test_completion_knows_them():
    assert "hydra.output_subdir=" in candidates("embodied train hydra.o")
