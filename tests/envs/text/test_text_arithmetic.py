"""Chains of additions and subtractions."""

from __future__ import annotations

import numpy as np
import pytest
from embodied.envs.text.arithmetic import EVAL_SHARE, Chains, demonstrations, draw_in_split, split_of, worked
from embodied.envs.text.env import MathEnv
from embodied.envs.text.problems import EVAL_SEEDS
from embodied.envs.text.verdict import Problem, Verdict

from embodied import instructions
from embodied.errors import ConfigError, UnknownNameError
from embodied.schema import target_kwargs
from embodied.schema.compose.compose import compose
from embodied.testing import check_env
from embodied.types import Start


def after_separator(problem: Problem, response: str) -> Verdict:
    right = response.rpartition(";")[2] == problem.answer
    return Verdict(float(right), right)


def test_a_problem_is_its_number_and_seed():
    assert [Chains()[n] for n in (5, 3)] == [Chains()[n] for n in (5, 3)]
    prompts = {Chains(seed=seed)[n]["prompt"] for seed in (0, 1, 2**32 - 1) for n in range(300)}
    assert len(prompts) > 700


@pytest.mark.parametrize("terms", [[2, 2], [3, 6], [7, 7]])
def test_prompt_answer_and_solution_agree(terms):
    chains, seen = Chains(terms), set()
    for number in range(300):
        row = chains[number]
        written = row["prompt"].removesuffix("=")
        assert eval(written) == int(row["answer"])
        *steps, last = worked(chains.chain(number)[1]).replace(";", ",").split(",")
        shown = [int(written[0]), *(int(step) for step in steps if step), int(last)]
        signed = [int(written[i : i + 2]) for i in range(1, len(written), 2)]
        assert np.diff(shown).tolist() == signed
        seen.add(row["terms"])
    assert seen == set(range(terms[0], terms[1] + 1))


def test_the_form_of_a_worked_solution():
    assert worked([7, 9, 0, 4]) == "9,0;4"
    assert worked([7, 9]) == ";9"


def test_no_evaluation_problem_is_a_training_one():
    train = {Chains([2, 5], 10**5, split="train")[n]["prompt"] for n in range(0, 10**5, 20)}
    train |= {row["prompt"] for row in demonstrations([2, 5], 1000, seed=9)}
    auto = Chains([2, 5], 10**5)
    held_out = {auto.for_evaluation()[n]["prompt"] for n in range(800)}
    assert not train & held_out
    assert len(train) > 4000
    assert len(held_out) > 500
    assert auto[17] == Chains([2, 5], 10**5, split="train")[17]


def test_the_hash_splits_a_hundred_thousand_prompts():
    prompts = [f"{n}+1=" for n in range(10**5)]
    share = sum(split_of(prompt) == "eval" for prompt in prompts) / len(prompts)
    assert abs(share - EVAL_SHARE) < 0.005


def test_the_hash_is_the_same_in_every_version():
    """Else a checkpoint that is evaluated later has seen the problems."""
    assert [n for n in range(100) if split_of(f"{n}+2=") == "eval"] == [23, 32, 40, 50, 65, 90, 95]


def test_a_fixed_split_is_that_of_evaluations_too():
    chains = Chains(split="eval")
    assert chains.for_evaluation() is chains
    assert split_of(chains[0]["prompt"]) == "eval"


def test_demonstrations_are_rows_of_text():
    rows = demonstrations([3, 3], 50)
    chains = Chains([3, 3], 50, split="train")
    for number, row in enumerate(rows):
        assert row == {"prompt": chains[number]["prompt"], "response": worked(chains.chain(number)[1])}
        assert after_separator(Problem("", chains[number]["answer"], {}, 0), row["response"]).success
    assert rows != demonstrations([3, 3], 50, seed=1)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"terms": [1, 3]}, ConfigError, r"data_args\.terms is \[1, 3\]"),
        ({"terms": [4, 3]}, ConfigError, r"data_args\.terms"),
        ({"terms": [3]}, ConfigError, r"data_args\.terms"),
        ({"terms": [3, 99]}, ConfigError, r"data_args\.terms"),
        ({"count": 0}, ConfigError, r"data_args\.count"),
        ({"seed": -1}, ConfigError, r"data_args\.seed"),
        ({"split": "test"}, UnknownNameError, "split 'test'"),
    ],
)
def test_options_that_cannot_be(options, error, said):
    with pytest.raises(error, match=said):
        Chains(**options)


def test_a_split_without_problems():
    assert split_of("1+1=") == "train"
    with pytest.raises(ConfigError, match=r"belongs to the split eval, e\.g\. 1\+1="):
        draw_in_split("eval", (0, 0, 0), lambda random: ("1+1=", None))


def test_the_shipped_configuration():
    options = target_kwargs(
        compose(["env=arithmetic", "env.train.data_args.terms=[7,7]"]).config.env.train, "env.train"
    )
    env = MathEnv(**{**options, "verifier": after_separator})
    check_env(env)
    assert env.spec.tasks == ("embodied.envs.text.arithmetic:Chains",)
    assert env.spec.num_init_states == (100_000,)
    for seed, split in ((0, "train"), (EVAL_SEEDS + 3, "eval")):
        env.reset(Start(0, 11, seed))
        out = np.zeros(env.spec.obs["instruction"].shape, np.uint8)
        env.observe({"instruction": out})
        prompt = instructions.read(out)
        assert prompt.count("+") + prompt.count("-") == 6
        assert split_of(prompt) == split
        action = env.spec.action.neutral()
        instructions.write(f"1,2;{eval(prompt[:-1])}", action)
        assert env.step(action)[:3] == (1.0, True, True)
