"""From the command line to one mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from embodied.errors import ConfigError
from embodied.run.arguments import parse_argv
from embodied.schema.compose.compose import GROUPS, as_yaml, compose, group_options
from embodied.schema.compose.hydra_files import compose_files

HERE = str(Path(__file__).parents[1] / "config")
FAKE = ["env=fake", "model=fake"]


def config(*overrides: str, folders: tuple[str, ...] = (HERE,)):
    return compose([*FAKE, *overrides], "train", folders).config


def refused(*overrides: str, folders: tuple[str, ...] = (HERE,)) -> ConfigError:
    with pytest.raises(ConfigError) as failed:
        compose(overrides, "train", folders)
    return failed.value


def test_env_fills_both_sides():
    env = config().env
    assert env.train.target == env.eval.target == "embodied.testing.FakeEnv"
    assert env.train.model_extra == env.eval.model_extra == {"success_distance": 0.3}


def test_each_side_can_be_chosen():
    composed = compose(["env@env.eval=fake"], "train", [HERE])
    assert composed.config.env.eval.target == "embodied.testing.FakeEnv"
    assert composed.config.env.train.target == "embodied.envs.libero.LiberoEnv"


def test_the_default_job_composes():
    composed = compose([])
    assert composed.config.runner.experiment_name == "libero_10-openvla_oft_tiny-grpo"
    assert composed.config.runner.logger.log_path == "runs/libero_10-openvla_oft_tiny-grpo"
    assert "hydra" not in composed.resolved


def test_the_entry_for_evaluation_changes_one_key_and_the_name():
    composed = compose(FAKE, "eval", [HERE])
    assert composed.config.runner.only_eval
    assert composed.config.runner.experiment_name == "fake-fake-grpo-eval"


def test_a_key_of_the_command_line_wins_over_the_experiment_and_it_over_the_groups():
    assert config().algorithm.group_size == 4, "experiment=laptop"
    assert config("experiment=null", "algorithm.rollout_epoch=4").algorithm.group_size == 8, "the schema's default"
    assert config("algorithm.group_size=2").algorithm.group_size == 2
    assert config("algorithm.group_size=2", "experiment=laptop").algorithm.group_size == 2
    assert config().env.train.max_episode_steps == 96
    assert config().env.train.use_rel_reward is True


def test_an_experiment_wins_over_the_sizes_of_supervised_training():
    usual = compose([*FAKE, "data.train_data_paths=[demos/fake]"], "sft", [HERE]).config
    chosen = compose(["experiment=quickstart_sft"], "sft").config
    assert (usual.runner.task_type, usual.runner.max_epochs, usual.actor.global_batch_size) == ("sft", 20, 64)
    assert (chosen.runner.task_type, chosen.runner.max_epochs, chosen.actor.global_batch_size) == ("sft", 12, 32)
    assert chosen.actor.lr_sched.lr_decay_style == usual.actor.lr_sched.lr_decay_style == "cosine"


def test_an_experiment_of_ones_own_wins_over_the_groups(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nalgorithm: {clip_ratio_low: 0.11}\nenv: {train: {success_distance: 0.7}}\n",
        encoding="utf-8",
    )
    made = config("experiment=mine", "algorithm.rollout_epoch=4", folders=(HERE, str(tmp_path)))
    assert made.algorithm.clip_ratio_low == 0.11, "algorithm/grpo.yaml says 0.2"
    assert made.env.train.model_extra["success_distance"] == 0.7
    assert made.env.eval.model_extra["success_distance"] == 0.3


@pytest.mark.parametrize("group", ["algorithm", "runtime", "tracker"])
def test_a_group_can_be_left_out(group):
    assert config(f"{group}=null").runner.seed == 1234


def test_the_name_is_that_of_what_was_chosen():
    assert config("algorithm=null").runner.experiment_name == "fake-fake"
    assert config("runner.experiment_name=mine").runner.logger.log_path == "runs/mine"


def test_a_model_cannot_be_left_out():
    assert "actor.model._target_ is missing" in refused("env=fake", "model=null").message


@pytest.mark.parametrize(
    ("overrides", "message", "remedy"),
    [
        (["env=fakee"], "unknown env 'fakee'. Did you mean 'fake'?", "fake_text, gym, gym_aloha"),
        (["model=openvla_ofd"], "unknown model 'openvla_ofd'. Did you mean 'openvla_oft'?", "openvla_oft"),
        (["experiment=none"], "unknown experiment 'none'.", "laptop"),
        (["mdel=fake"], "unknown group or section 'mdel'. Did you mean 'model'?", "set model=fake instead of mdel"),
        (["lr=3"], "unknown group or section 'lr'. There is actor.optim.lr.", "correct the key"),
        (
            ["demos_path=d"],
            "unknown group or section 'demos_path'. Did you mean 'demos.path'?",
            "set demos.path=d instead",
        ),
        (["model_path=d"], "unknown group or section 'model_path'.", "set actor.model.model_path=d instead"),
        (["actor.model_path=d"], "unknown key 'actor.model_path'.", "set actor.model.model_path=d instead"),
        (["demo=d"], "unknown group or section 'demo'. Did you mean 'demos'?", "correct the key"),
        (["demo.path=d"], "unknown group or section 'demo'. Did you mean 'demos'?", "set demos.path=d instead of demo"),
        (["actor.optimizer.lr=3"], "Did you mean 'optim'?", "set actor.optim.lr=3 instead of actor.optimizer"),
        (["demo.pat=d"], "unknown group or section 'demo'. Did you mean 'demos'?", "correct the key"),
        (["runner.loger=3"], "unknown key 'runner.loger'. Did you mean 'logger'?", "correct the key"),
        (
            ["algorithm.sampling_param.top_k=3"],
            "Did you mean 'sampling_params'?",
            "set algorithm.sampling_params.top_k=3",
        ),
        (["demos=d"], "demos = 'd': expected keys with values", "write keys of it: demos.path, demos.episodes, "),
        (["demos=d", "nope=4"], "unknown group or section 'nope'.", "write keys of it: demos.path, demos.episodes, "),
        (["demos=d", "runner.seed=x"], "runner.seed = 'x': expected a whole number", "set runner.seed to a value"),
        (["model.hidden=3"], "'model.hidden'. model=NAME chooses a file", "set actor.model.hidden=3 instead"),
        (["experiment.x=3"], "experiment=NAME chooses a file, and its keys stand in several sections", "correct the"),
        (["env.max_episode_steps=3"], "There is env.train.max_episode_steps or env.eval.max_episode_steps", "correct"),
        (["env.speed=3"], "Keys of an env are written env.train.speed", "correct the key"),
        (["actor.lr=3"], "unknown key 'actor.lr'. There is actor.optim.lr.", "correct the key"),
        (["actor.model=fake"], "actor.model = 'fake': expected keys with values", "write model=fake if that is a file"),
        (["actor=fake"], "actor = 'fake': expected keys with values", "write keys of it: actor.KEY=VALUE"),
        (["env.eval=fake"], "env.eval = 'fake': expected keys", "write env@env.eval=fake"),
        (["env=a,b"], "unknown env 'a,b'", "set env= to one of"),
        (["nope=null"], "unknown group or section 'nope'.", ", ".join(GROUPS)),
        (["runner.seed"], "'runner.seed' is not of the form KEY=VALUE", "runner.max_epochs=2"),
        (["=3"], "unknown group or section ''", ", ".join(GROUPS)),
        (["model=3"], "unknown model '3'", "openvla_oft"),
        (["env=null"], "cannot compose the configuration", "--help"),
        (["runner.experiment_name=a,b"], "runner.experiment_name=a,b has several values", "name=[a,b]"),
        (['runner.experiment_name="a'], "cannot compose the configuration: ++runner.", "quotes ('KEY=\"VALUE\"')"),
        (["runner.experiment_name=/data/x"], "is /data/x, expected a name", "set runner.output_dir=/data runner."),
        (["runner.experiment_name=../x"], "is ../x, expected a name", "runner.experiment_name=x"),
        (["runner.experiment_name=."], "is ., expected a name", "runner.experiment_name=NAME"),
        (["runner.output_dir=${nope}"], "nope", "reference"),
    ],
)
def test_what_cannot_be_composed_says_what_is_known(overrides, message, remedy):
    error = refused(*overrides)
    assert message in error.message
    assert remedy in error.remedy
    assert type(error).__module__ == "embodied.errors", "embodied explain knows it"


@pytest.mark.parametrize("text", ["~/runs", "a>0", "my run (1)", "josé", "don't", "a, then (b)", "3)"])
def test_a_plain_text_needs_no_quotes_of_hydra(text):
    assert config(f"runner.logger.project_name={text}").runner.logger.project_name == text


def test_a_path_may_begin_in_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/josé")
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(
        "# @package _global_\nrunner: {output_dir: ~/runs}\n", encoding="utf-8"
    )
    runner = config("runner.ckpt_path=~/a", "experiment=mine", folders=(HERE, str(tmp_path))).runner
    assert (runner.output_dir, runner.ckpt_path) == ("/home/josé/runs", "/home/josé/a")
    assert runner.logger.log_path == "/home/josé/runs/fake-fake-grpo"
    assert config("hydra.run.dir=~/out").runner.output_dir == "/home/josé/out/runs"


def test_group_options_are_the_files_of_all_folders(tmp_path):
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "mine.yaml").touch()
    assert {"fake", "libero_10", "mine"} < set(group_options("env", [HERE, str(tmp_path)]))
    assert "fake" not in group_options("env")


def test_a_group_file_that_would_not_be_read_is_refused(tmp_path):
    mine = tmp_path / "env/gym.yaml"
    mine.parent.mkdir()
    mine.write_text("_target_: embodied.testing.FakeEnv\n", encoding="utf-8")
    error = refused("env=gym", folders=(HERE, str(tmp_path)))
    assert "env/gym.yaml would not be read: the package's file of that name comes first" in error.message
    assert "and choose env=my_gym" in error.remedy
    mine.rename(mine.with_stem("fake"))
    assert f"would not be read: {HERE}/env/fake.yaml" in refused("env=gym", folders=(HERE, str(tmp_path))).message
    mine.with_stem("fake").write_bytes(Path(HERE, "env/fake.yaml").read_bytes())  # a copy is the same
    assert compose(FAKE, "train", [HERE, str(tmp_path)]).config.env.train.target == "embodied.testing.FakeEnv"


@pytest.mark.parametrize("name", ["plain", "with space", "a,b=[c]", "it's", "{x}", "ünï"])
def test_a_config_folder_may_have_any_name(tmp_path, name):
    folder = tmp_path / name / "env"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("_target_: embodied.testing.FakeEnv\nhorizon: 5\n", encoding="utf-8")
    made = compose(["env=mine", "model=fake"], "train", [HERE, str(folder.parent)]).config
    assert made.env.train.model_extra == {"horizon": 5}


def test_what_is_printed_composes_to_the_same(tmp_path):
    composed = compose([*FAKE, "runner.seed=5"], "train", [HERE])
    again = yaml.safe_load(as_yaml(composed))
    assert again == composed.resolved
    assert (again["runner"]["seed"], again["actor"]["optim"]["adam_eps"]) == (5, 1e-5)


def test_training_of_another_seed_has_other_scenes_and_the_same_evaluation():
    def seeds(*overrides: str) -> tuple[int, int]:
        config = compose([*FAKE, *overrides], "train", [HERE]).config
        return config.start_seed, config.env.eval.seed

    assert seeds() == (0, 0)
    drawn = [seeds(f"runner.seed={seed}") for seed in (0, 1, 2, 1235, 10**9)]
    assert len({start for start, _ in drawn}) == 5
    assert all(0 < start < 2**30 and evaluated == 0 for start, evaluated in drawn)
    assert seeds("runner.seed=5", "env.train.seed=0", "env.eval.seed=3") == (0, 3)


def test_arguments_are_told_apart():
    assert parse_argv([f"--config-dir={HERE}"], "train") == ([], [HERE], False)
    assert parse_argv(["env=fake", "--config-dir", HERE, "--cfg", "runner.seed=1"], "train") == (
        ["env=fake", "runner.seed=1"], [HERE], True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "text"),
    [(["--hlp"], "unknown option '--hlp'. Did you mean '--help'?"), (["--config-dir"], "--config-dir: no folder"),
     (["--config-dir", "/nowhere"], "--config-dir: no folder '/nowhere'"),
     (["--config-dir=/nowhere"], "--config-dir: no folder '/nowhere'"),
     (["--env", "libero_10"], "fix: write env=VALUE, without --"),
     (["--runner.max_epochs=3"], "fix: write runner.max_epochs=3, without --"),
     (["--config-name", "mine"], "fix: choose a file by its group, without --: experiment=NAME")],
)  # fmt: skip
def test_wrong_options(argv, text):
    with pytest.raises(ConfigError) as failed:
        parse_argv(argv, "train")
    assert text in str(failed.value)


def test_help_lists_the_groups(capsys):
    with pytest.raises(SystemExit) as ended:
        parse_argv(["--help"], "eval")
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "python -m embodied.eval" in out
    assert all(group in out for group in GROUPS)


def test_a_key_of_a_section_that_refers_to_another_one_leaves_its_other_keys(tmp_path):
    """Hydra alone puts the override in the place of the reference: a camera that was moved lost its lens."""
    (tmp_path / "experiment").mkdir()
    views = {"front": {"eye": [1.0, 0.0, 0.0], "fov": 0.6}}
    sides = ("train", "eval")
    files = {
        "usual": {"env": {side: {"views": views} for side in sides}},
        "cameras": {"defaults": ["usual", "_self_"], "env": {"eval": {"views": "${env.train.views}"}}},
    }
    for name, said in files.items():
        text = f"# @package _global_\n{yaml.safe_dump(said, sort_keys=False)}"
        (tmp_path / "experiment" / f"{name}.yaml").write_text(text, encoding="utf-8")

    def composed(*overrides: str) -> tuple[Any, Any]:
        wanted = ["experiment=cameras", *(f"++{one}" for one in overrides)]  # as short forms are expanded
        raw = compose_files(wanted, "train", [str(tmp_path)])
        return tuple(OmegaConf.to_container(OmegaConf.create(raw).env[side].views, resolve=True) for side in sides)

    moved = {"front": {"eye": [2.0, 0.0, 0.0], "fov": 0.6}}
    assert composed("env.eval.views.front.eye=[2.0,0.0,0.0]") == (views, moved)
    wide = {"front": {**moved["front"], "fov": 0.9}}
    both = ("env.eval.views.front.eye=[2.0,0.0,0.0]", "env.train.views.front.fov=0.9")
    assert composed(*both) == ({"front": {**views["front"], "fov": 0.9}}, wide)
    assert composed("env.eval.views={front: {fov: 0.5}}")[1] == {"front": {"fov": 0.5}}
    assert composed("env.train.views.front.fov=0.9")[1]["front"]["fov"] == 0.9
