"""Keys of remembered starts: which combinations are refused, with a fix that is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied.errors import ConfigError
from embodied.schema.compose.compose import compose

ROOT = Path(__file__).resolve().parents[2]


def accepted(*overrides: str, entry: str = "train") -> None:
    compose(["env=fake", "model=fake", *overrides], entry, [str(ROOT / "tests" / "config")])


STARTS = "algorithm=start_value"
DRAWN = "data.start_sampling=informative"


@pytest.mark.parametrize("more", [(), ("algorithm.group_size=4",), ("env.train.use_fixed_reset_state_ids=false",),
                                  (DRAWN,), ("algorithm.max_staleness=1",),
                                  ("algorithm.group_size=2", "algorithm.filter_rewards=true")])  # fmt: skip
def test_one_episode_a_start_is_enough(more):
    accepted(STARTS, "algorithm.group_size=1", *more)


def test_informative_starts_go_with_every_estimator():
    for name in ("grpo", "remax", "gae"):
        accepted(DRAWN, f"algorithm.adv_type={name}", "actor.model.value_head=true")


@pytest.mark.parametrize(
    ("broken", "says", "mended"),
    [
        ((STARTS, "algorithm.sampling_params.do_sample=false"), "nothing is compared",
         "algorithm.sampling_params.do_sample=true"),
        ((STARTS, "algorithm.group_size=1", "algorithm.dynamic_sampling=true"), "chosen by its own return",
         "algorithm.group_size=2"),
        ((STARTS, "algorithm.group_size=1", "algorithm.filter_rewards=true"), "chosen by its own return",
         "algorithm.filter_rewards=false"),
        *(
            ((STARTS, "algorithm.group_size=2", f"algorithm.{key}=true", "env.train.use_fixed_reset_state_ids=false"),
             "gives each episode its own", "env.train.use_fixed_reset_state_ids=true")
            for key in ("dynamic_sampling", "filter_rewards")
        ),
        *(
            ((*remembers, "algorithm.group_size=2", "algorithm.dynamic_sampling=true", "algorithm.kl_beta=0.1",
              "algorithm.use_kl_in_reward=true"), "before their KL is known", "algorithm.use_kl_in_reward=false")
            for remembers in ((STARTS,), (DRAWN,))
        ),
        (("algorithm.start_value.half_life=3",), "remembers no starts", "algorithm.adv_type=start_value"),
        ((DRAWN, "data.drop_last=true"), "data.drop_last is true", "data.drop_last=false"),
        ((DRAWN, "data.shuffle=false"), "data.shuffle is false", "data.shuffle=true"),
    ],
)  # fmt: skip
def test_wrong_combinations_are_refused_and_the_fix_helps(broken, says, mended):
    with pytest.raises(ConfigError) as refused:
        accepted(*broken)
    assert says in str(refused.value)
    assert mended.split("=")[0].split(".")[-1] in refused.value.remedy
    key = mended.split("=")[0]
    accepted(*(one for one in broken if not one.startswith(f"{key}=")), mended)


def test_supervised_training_has_no_episodes_to_start():
    with pytest.raises(ConfigError, match="it runs none"):
        accepted(DRAWN, "data=demos", entry="sft")


def test_a_half_life_and_a_prior_are_no_negative_numbers():
    for key in ("half_life=0", "prior_episodes=-1"):
        with pytest.raises(ConfigError):
            accepted(STARTS, f"algorithm.start_value.{key}")
    accepted(STARTS, "algorithm.start_value.half_life=null", "algorithm.start_value.prior_episodes=0")
