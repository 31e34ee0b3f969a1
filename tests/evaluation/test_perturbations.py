"""``perturb`` on the command line: which conditions there are, which are refused and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied.errors import ConfigError, EmbodiedError, UnknownKeyError, UnknownNameError
from embodied.perturbations import Perturbation
from embodied.run.build import perturbations
from embodied.run.build.sides import make_side
from embodied.schema import conditions_of
from embodied.schema.compose.compose import compose

HERE = str(Path(__file__).parents[1] / "config")
KINDS = (
    "camera_move", "camera_turn", "brightness", "contrast", "blur", "noise", "latency", "dropped_frames",
    "action_delay", "action_noise", "gripper_delay", "all_together",
)  # fmt: skip
STRENGTHS = ("mild", "medium", "strong")


def composed(*overrides: str, entry: str = "eval"):
    data = ["data.train_data_paths=[x]"] if entry == "sft" else []
    return compose(["env=fake", "model=fake", *data, *overrides], entry, [HERE]).config


def conditions(*overrides: str, entry: str = "eval"):
    side = "train" if entry == "train" else "eval"
    config = composed("+perturb=robot", *overrides, entry=entry)
    return conditions_of(getattr(config.env, side).perturb, f"env.{side}.perturb")


def refused(*overrides: str, entry: str = "eval") -> EmbodiedError:
    with pytest.raises(ConfigError) as failed:
        check(*overrides, entry=entry)
    return failed.value


def check(*overrides: str, entry: str = "eval") -> None:
    """What a command checks of both sides before anything starts."""
    config = composed(*overrides, entry=entry)
    for side in ("train", "eval"):
        perturbations.check(config, make_side(side, getattr(config.env, side)))


def test_nothing_is_perturbed_unless_asked_for():
    for entry in ("train", "eval", "sft", "demos"):
        env = composed(entry=entry).env
        assert env.train.perturb is env.eval.perturb is None
    assert conditions_of(None, "env.eval.perturb") == []


def test_robot_has_every_perturbation_at_three_strengths():
    found = conditions()
    assert [(one.kind, one.strength) for one in found] == [(kind, each) for kind in KINDS for each in STRENGTHS]
    env = composed("+perturb=robot").env
    assert [make_side(name, getattr(env, name)).conditions for name in ("train", "eval")] == [(), tuple(found)]
    usual = Perturbation()
    names = [name for name in vars(usual) if name != "gripper_dim"]
    by = {one.name: one.by for one in found}
    for kind in KINDS[:-1]:
        own = [getattr(by[f"{kind}/{each}"], kind) for each in STRENGTHS]
        assert 0 < own[0] < own[1] < own[2]
        changed = {n for each in STRENGTHS for n in names if getattr(by[f"{kind}/{each}"], n) != getattr(usual, n)}
        assert changed == {kind}, "each is alone"
        for each in STRENGTHS:
            assert getattr(by[f"all_together/{each}"], kind) == getattr(by[f"{kind}/{each}"], kind)


def test_the_group_is_for_what_the_command_does():
    assert composed("+perturb=robot").env.train.perturb is None
    trained = composed("+perturb=robot", entry="train").env
    assert trained.eval.perturb is None
    assert trained.train.perturb is not None
    both = composed("+perturb=robot_random", "+perturb@env.eval.perturb=robot", entry="train").env
    assert both.train.perturb.strengths == ["mild", "medium"]
    assert both.train.perturb.unperturbed == 0.2
    assert both.eval.perturb.strengths is None
    assert composed("perturb=robot").env.eval.perturb is not None


def test_some_of_them_can_be_chosen_and_numbers_changed():
    found = conditions(
        "env.eval.perturb.kinds=[blur,latency]", "env.eval.perturb.strengths=[mild]", "env.eval.perturb.gripper_dim=2",
        "env.eval.perturb.conditions.blur.mild.blur=0.1",
    )  # fmt: skip
    assert [one.name for one in found] == ["blur/mild", "latency/mild"]
    assert [one.by for one in found] == [Perturbation(blur=0.1, gripper_dim=2), Perturbation(latency=1, gripper_dim=2)]
    assert len(conditions("env.eval.perturb.without=[blur,all_together]")) == 30


def test_a_condition_of_one_s_own():
    own = "+env.eval.perturb.conditions.dusk.late={brightness:0.6,noise:0.1}"
    config = composed(own)
    (found,) = conditions_of(config.env.eval.perturb, "env.eval.perturb")
    assert (found.name, found.by) == ("dusk/late", Perturbation(brightness=0.6, noise=0.1))


@pytest.mark.parametrize(
    ("overrides", "error", "says", "remedy"),
    [
        (["+perturb=robt"], ConfigError, "unknown perturb 'robt'. Did you mean 'robot'?", "robot, robot_random"),
        (
            ["+perturb=robot", "env.eval.perturb.kinds=[blurr]"], UnknownNameError,
            "unknown perturbation 'blurr'. Did you mean 'blur'?", "env.eval.perturb.kinds",
        ),
        (["+perturb=robot", "env.eval.perturb.without=[x]"], UnknownNameError, "perturbation 'x'", "camera_move"),
        (["+perturb=robot", "env.eval.perturb.strengths=[weak]"], UnknownNameError, "strength 'weak'", "mild, medium"),
        (
            ["+perturb=robot", "env.eval.perturb.kinds=[blur]", "env.eval.perturb.without=[blur]"], ConfigError,
            "leaves no perturbation", "leave out",
        ),
        (
            ["+perturb=robot", "env.eval.perturb.conditions.blur.mild.blurr=1"], UnknownKeyError,
            "unknown key 'env.eval.perturb.conditions.blur.mild.blurr'. Did you mean 'blur'?",
            "set env.eval.perturb.conditions.blur.mild.blur=1 instead",
        ),
        (["+perturb=robot", "env.eval.perturb.strength=[mild]"], UnknownKeyError, "Did you mean 'strengths'?", ""),
        (
            ["+perturb=robot", "env.eval.perturb.conditions.noise.mild.noise=-1"], ConfigError,
            "env.eval.perturb.conditions.noise.mild.noise = -1", "",
        ),
        (
            ["+perturb=robot", "env.eval.perturb.unperturbed=0.5"], ConfigError, "unperturbed is 0.5", "for trainings",
        ),
        (
            ["+perturb=robot", "algorithm.val_group_size=2", "algorithm.val_sampling_params.do_sample=true"],
            ConfigError, "algorithm.val_group_size is 2", "val_group_size=1",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_with_the_fix(overrides, error, says, remedy):
    failed = refused(*overrides)
    assert isinstance(failed, error)
    assert says in failed.message
    assert remedy in failed.remedy


@pytest.mark.parametrize(
    ("overrides", "kinds", "why"),
    [
        (["env.eval._target_=embodied.testing.FakeBatchEnv"], "camera_move,camera_turn,all_together", "one simulator"),
        (["env.eval._target_=still_env.StillEnv"], "camera_move,camera_turn,all_together", "no move_camera"),
        (
            ["env.eval.pictures=false"],
            "camera_move,camera_turn,brightness,contrast,blur,noise,dropped_frames,all_together", "no pictures",
        ),
        (["env.eval._target_=still_env.EndlessEnv"], "action_noise,all_together", "has no end"),
        (["env.eval._target_=still_env.EndlessEnv", "env.eval.most=3e38"], "action_noise,all_together", "has no end"),
        (["env.eval.num_actions=4"], "action_noise,gripper_delay,all_together", "not numbers"),
        (["env.eval.perturb.gripper_dim=null"], "gripper_delay,all_together", "gripper_dim is null"),
        (["env.eval.perturb.gripper_dim=7"], "action_noise,gripper_delay,all_together", "no number 7"),
    ],
)  # fmt: skip
def test_what_an_env_cannot_have_is_refused_by_name_and_the_others_work(overrides, kinds, why):
    failed = refused("+perturb=robot", *overrides)
    assert why in failed.message
    assert failed.remedy.startswith(f"add env.eval.perturb.without=[{kinds}] ")
    config = composed("+perturb=robot", *overrides)
    left = config.env.eval.perturb.model_copy(update={"without": kinds.split(",")})
    side = config.env.eval.model_copy(update={"perturb": left})
    config = config.model_copy(update={"env": config.env.model_copy(update={"eval": side})})
    perturbations.check(config, make_side("eval", side))


def test_texts_are_not_perturbed():
    config = compose(["env=fake_text", "model=fake_text", "+perturb=robot"], "eval", [HERE]).config
    with pytest.raises(ConfigError, match="takes text"):
        perturbations.check(config, make_side("eval", config.env.eval))


@pytest.mark.parametrize(
    ("overrides", "entry", "says"),
    [
        (["+perturb=robot"], "demos", "task_type demos makes demonstrations without perturbations"),
        (["+perturb@env.train.perturb=robot"], "sft", "task_type sft learns from demonstrations without"),
        (["+perturb=robot", "algorithm.adv_type=remax"], "train", "algorithm.adv_type remax"),
        (["+perturb=robot", "runner.only_eval=true"], "train", "runner.only_eval runs no training"),
        (["+perturb@env.train.perturb=robot"], "eval", "runner.only_eval runs no training"),
    ],
)
def test_what_has_no_use_for_them_is_refused(overrides, entry, says):
    assert says in refused(*overrides, entry=entry).message
