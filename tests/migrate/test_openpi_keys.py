"""RLinf's keys of π0 and π0.5: what is the same number here, what is converted, and what stays open."""

from __future__ import annotations

import math
from typing import Any

import pytest

from embodied.migrate import Migration, Note, migrate, translate
from embodied.migrate.report import to_do

DEFAULTS = ["env/libero_spatial@env.train", "env/libero_spatial@env.eval", "model/pi0@actor.model"]
MODEL = "actor.model."


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the trial, which `test_recipes.py` makes of such files."""
    monkeypatch.setattr(translate, "attempt", lambda *given: None)


def migrated(
    openpi: dict[str, Any] | None = None, algorithm: dict[str, Any] | None = None, **model: Any
) -> Migration:  # fmt: skip
    whole = {"model_path": "w", "openpi": openpi or {}, **model}
    optimizer = {"global_batch_size": 128, "optim": {"lr": 1.0e-5}}
    return migrate(
        {"defaults": DEFAULTS, "algorithm": algorithm or {}, "actor": {**optimizer, "model": whole}}, "rlinf", devices=0
    )


def note(found: Migration, name: str) -> Note:
    (only,) = [one for one in found.notes if one.key == f"{MODEL}{name}"]
    return only


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("joint", [False, True])
def test_a_ratio_is_clipped_where_theirs_is(joint, steps):
    """Of N + 1 log-probs, of which that of the first noise is the same for old and new weights, theirs is the mean."""
    widths = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0, "logprob_type": "chunk_level"}
    found = migrated({"joint_logprob": joint}, widths, num_steps=steps).settings
    terms = steps + 1 if joint else 1
    ends = (1 - found["algorithm.clip_ratio_low"], 1 + found["algorithm.clip_ratio_high"])
    ours = [math.log(bound) / terms for bound in (*ends, found["algorithm.clip_ratio_c"])]
    assert ours == pytest.approx([math.log(0.8), math.log(1.28), math.log(3)], abs=1e-5)
    assert found[f"{MODEL}noise_steps"] == ("all" if joint else "one")


@pytest.mark.parametrize(
    ("openpi", "bonus"),
    [
        ({"noise_method": "flow_noise", "joint_logprob": True, "num_steps": 4}, 0.35 / (5 * 7)),
        ({"noise_method": "flow_noise", "action_env_dim": 10}, 0.035),
        ({"noise_method": "flow_sde"}, 0.0),
    ],
)
def test_the_bonus_of_a_mean_entropy_becomes_that_of_a_sum(openpi, bonus):
    found = migrated(openpi, {"entropy_bonus": 0.35, "entropy_type": "chunk_level"})
    assert found.settings["algorithm.entropy_bonus"] == pytest.approx(bonus)
    assert found.settings["algorithm.entropy_type"] == ("action_level" if bonus else "chunk_level")


@pytest.mark.parametrize(
    ("openpi", "opens", "said"),
    [
        ({"noise_method": "flow_cps"}, "actor.model.noise_method", "there is no flow_cps here"),
        ({"noise_anneal": True, "noise_level": 0.7}, "actor.model.noise_level", "noise_anneal is on"),
        ({"noise_level": "${oc.env:LEVEL}"}, "actor.model.noise_level", "cannot be resolved"),
        ({"config_name": "my_libero"}, "model", "says neither pi0 nor pi05"),
        ({"use_dsrl": True}, "algorithm.loss_type", "noise_policy"),
        ({"is_nft": True}, "algorithm.loss_type", "there is no NFT here"),
    ],
)
def test_what_is_trained_and_is_not_here_stays_open(openpi, opens, said):
    found = migrated(openpi)
    assert list(found.open) == [opens]
    assert said in to_do(found, "rlinf")[0]


def test_a_level_that_nothing_reads_is_no_question():
    found = migrated({"noise_method": "flow_noise", "noise_anneal": True, "noise_params": [0.2, 0.1, 200]})
    assert found.open == {}
    assert note(found, "openpi.noise_params").how == "nothing"


@pytest.mark.parametrize(
    ("model", "ours", "value", "refused"),
    [
        ({"num_steps": 4, "openpi": {"num_steps": 6}}, "num_steps", 6, ()),
        ({"num_action_chunks": 8, "openpi": {"action_chunk": 5}}, "num_action_chunks", 8, ("openpi.action_chunk",)),
        ({"add_value_head": True, "openpi": {"add_value_head": False}}, "value_head", False, ()),
        ({"openpi": {"config_name": "pi05_maniskill"}}, "state_in_prompt", False, ()),
        ({"openpi": {"config_name": "pi05_franka_state"}}, "state_in_prompt", None, ()),
        ({"openpi": {"config_name": "pi05_libero", "discrete_state_input": True}}, "state_in_prompt", True, ()),
        (
            {"add_value_head": True, "openpi": {"train_expert_only": False, "detach_critic_input": True}},
            "train_expert_only", False, ("openpi.detach_critic_input",),
        ),
        ({"openpi": {"noise_logvar_range": [0.1]}}, "noise_range", None, ("openpi.noise_logvar_range",)),
        ({"openpi": {"double_layer": True, "safe_get_logprob": True}}, "noise_steps", "one",
         ("openpi.double_layer", "openpi.safe_get_logprob")),
    ],
)  # fmt: skip
def test_which_of_two_keys_counts_and_what_is_left_out(model, ours, value, refused):
    found = migrated(**model)
    assert found.settings.get(f"{MODEL}{ours}") == value
    assert [key for key in refused if note(found, key).how != "refused"] == []
    assert "\n".join(to_do(found, "rlinf")).count(f"  {MODEL}") == len(refused)


def test_a_file_without_a_model_file_has_the_classs_defaults():
    model = {"model_type": "openpi", "model_path": "w", "openpi": {"config_name": "pi0_libero"}}
    found = migrate({"defaults": DEFAULTS[:2], "actor": {"model": model}}, "rlinf", devices=0)
    wanted = {"num_steps": 10, "eval_steps": 10, "num_action_chunks": 5, "train_expert_only": False}
    assert {name: found.settings.get(f"{MODEL}{name}") for name in wanted} == wanted
    assert found.groups["model"] == "pi0"
