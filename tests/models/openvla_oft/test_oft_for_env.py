"""The statistics that follow from the task suite, and a ``policy.json`` whose sizes cannot be read."""

from __future__ import annotations

import json

import pytest
from embodied.models.openvla_oft import Settings, for_env
from embodied.models.openvla_oft.released import RELEASED

from embodied.errors import DamagedCheckpointError
from embodied.schema.compose.compose import compose_unchecked
from embodied.testing import FakeEnv

PATH = "actor.model.model_path=FOLDER"
OFT = ("model=openvla_oft", PATH)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("env=libero_spatial", *OFT), "libero_spatial_no_noops"),
        (("env=libero_object_64", *OFT), "libero_object_no_noops"),
        (("env=libero_10", *OFT), "libero_10_no_noops"),
        (("env=libero_90", *OFT), "libero_90_no_noops_trajall"),
        (("env=libero_pro_goal_swap", *OFT), "libero_goal_no_noops"),
        (("env=libero_spatial", "model=openvla", PATH), "libero_spatial"),
        (("env=maniskill_pickcube", *OFT), "libero_10_no_noops"),
        (("env=libero_spatial", *OFT, "actor.model.unnorm_key=mine"), "mine"),
        (("env=libero_spatial", *OFT, "actor.model.unnorm_key=null"), None),
        (("env=libero_spatial", "model=openvla_oft_tiny"), None),
    ],
)
def test_the_statistics_follow_the_suite_unless_they_are_given(words, key):
    assert compose_unchecked(words).resolved["actor"]["model"]["unnorm_key"] == key


def test_an_evaluation_takes_the_statistics_of_the_env_that_it_evaluates():
    words = ("env@env.eval=libero_goal", *OFT)
    assert compose_unchecked(words, "eval").resolved["actor"]["model"]["unnorm_key"] == "libero_goal_no_noops"


def test_each_suite_of_a_model_has_one_name_of_statistics():
    for model in ("openvla", "openvla_oft"):
        named = {(one.env, one.unnorm_key) for one in RELEASED if one.model == model}
        assert len(named) == len(dict(named))


def test_null_without_an_env_is_the_usual_size():
    sizes = Settings.from_kwargs(dict.fromkeys(("action_dim", "proprio_dim", "use_proprio", "num_images_in_input")))
    assert (sizes.action_dim, sizes.proprio_dim, sizes.use_proprio, sizes.num_images_in_input) == (7, 8, False, 1)


@pytest.mark.parametrize("net", [[1], {"action_dim": "many"}, {"num_images": None}])
def test_sizes_that_cannot_be_read_name_their_file(net, tmp_path):
    (tmp_path / "policy.json").write_text(json.dumps({"net": net}), encoding="utf-8")
    with pytest.raises(DamagedCheckpointError, match=r"policy\.json is damaged"):
        for_env(FakeEnv().spec, (), str(tmp_path))
