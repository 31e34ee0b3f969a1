"""Keys of prompts that verifiers hand on, and of what is shown of texts: what they set, and when they are refused."""

from __future__ import annotations

import pytest
from test_text_keys import CONFIG, FILES, WITH_MODEL, made, refused

from embodied import schema
from embodied.schema.compose.compose import compose

SERVICE = ("reward.remote.enable=true", "reward.remote.url=http://a")
UNWRITTEN = "runner.logger.log_val_generations=0"


def test_verifiers_are_told_which_prompts_they_hand_on():
    own = "env.train.verifier=[{name:boxed},{name:custom,path:f.py},{name:remote,url:'http://a',prompt:true}]"
    options = ("data.return_raw_chat=false", "data.return_full_prompt=true", "data.truncation=left", own)
    composed, usual = made(*FILES, *options)["env"], made(*FILES)["env"]
    boxed, custom, remote = composed["train"]["verifier"]
    assert boxed == {"name": "boxed"}
    assert (custom["prompt"], remote["prompt"]) == (False, True)
    assert custom["full_prompt"] == remote["full_prompt"]
    assert custom["full_prompt"]["reader"] == "embodied.models.causal_lm.prompt_reader"
    expected = {"model_path": "folder", "truncation": "left", "max_prompt_tokens": 1024, "chat": "auto"}
    assert expected.items() <= custom["full_prompt"]["options"].items()
    assert composed["train"]["reward_mode"] == usual["train"]["reward_mode"]
    assert composed["eval"]["verifier"] == composed["train"]["verifier"], "evaluations follow"
    assert usual["eval"]["verifier"] == [{"name": "boxed"}]


@pytest.mark.parametrize(("more", "said"), [((), 1), (SERVICE, 0)])
def test_a_run_says_that_nobody_is_handed_a_prompt_anyway(more, said):
    config = compose([*WITH_MODEL, *FILES, "data.return_raw_chat=false", *more], "train", [CONFIG]).config
    assert len([line for line in schema.notes(config) if "data.return_raw_chat false" in line]) == said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["data.return_full_prompt=true", UNWRITTEN], "nothing reads full prompts: no verifier is a function of yours"),
        (["data.return_full_prompt=true", *SERVICE, "model=fake_text"], "FakeTextPolicy has no function prompt_reader"),
        (["rollout.detokenize=true", UNWRITTEN], "rollout.detokenize is true, and no answers are printed or written"),
    ],
)
def test_what_would_show_nothing_is_refused_with_a_fix(options, said):
    message = refused(*FILES, *options)
    assert said in message
    assert f"or leave {options[0].partition('=')[0]} out" in message
