"""Tasks of reasoning-gym. Without the package only the errors are tested."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest
from embodied.envs.text import reasoning
from embodied.envs.text.problems import EVAL_SEEDS
from embodied.envs.text.reasoning import ReasoningEnv, demonstrations
from embodied.envs.text.verdict import Problem, Verdict

from embodied import instructions
from embodied.errors import AssetsMissingError, ConfigError, UnknownNameError
from embodied.schema import target_kwargs
from embodied.schema.compose.compose import compose
from embodied.testing import check_env
from embodied.types import Start

TASKS = {"chain_sum": {"min_terms": 2, "max_terms": 3, "max_digits": 2}, "countdown": None}


def by_scorer(problem: Problem, response: str) -> Verdict:
    score = problem.fields["scorer"](response, problem.fields["entry"])
    return Verdict(score, score >= 1.0)


def make(tasks: Any = None, **options: Any) -> ReasoningEnv:
    return ReasoningEnv(tasks or TASKS, **{"verifier": by_scorer, **options})


def respond(env: ReasoningEnv, text: str) -> tuple[float, bool, bool]:
    action = env.spec.action.neutral()
    instructions.write(text, action)
    return env.step(action)


def asked(env: ReasoningEnv) -> str:
    out = np.ones(env.spec.obs["instruction"].shape, np.uint8)
    env.observe({"instruction": out})
    return instructions.read(out)


def test_without_the_package(monkeypatch):
    monkeypatch.setattr(reasoning, "find_spec", lambda name: None)
    with pytest.raises(AssetsMissingError, match="reasoning-gym") as raised:
        make()
    assert "pip install reasoning-gym==" in raised.value.remedy


def test_demonstrations_without_the_package(monkeypatch):
    monkeypatch.setattr(reasoning, "find_spec", lambda name: None)
    with pytest.raises(AssetsMissingError, match="reasoning-gym"):
        demonstrations(TASKS)


def test_without_a_task():
    with pytest.raises(ConfigError, match=r"env\.train\.tasks is not set"):
        ReasoningEnv()


@pytest.fixture
def _package() -> None:
    pytest.importorskip("reasoning_gym")


@pytest.mark.usefixtures("_package")
class TestWithThePackage:
    def test_keeps_the_protocol(self):
        check_env(make())

    def test_the_constructor_imports_nothing(self):
        code = "import sys\nfrom embodied.envs.text.reasoning import ReasoningEnv\n"
        code += "ReasoningEnv({'chain_sum': {}}, verifier=print).spec\nprint('reasoning_gym' in sys.modules)"
        import subprocess

        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8"
        )
        assert done.stdout == "False\n"

    def test_a_task_is_a_task(self):
        env = make(count=50)
        assert env.spec.tasks == ("chain_sum", "countdown")
        assert env.spec.num_init_states == (50, 50)

    def test_the_scorer_of_the_task_judges(self):
        import reasoning_gym

        data = reasoning_gym.create_dataset("chain_sum", size=100, seed=5, **TASKS["chain_sum"])
        env = make(count=100, dataset_seed=5)
        env.prepare()
        for number in (0, 42, 99):
            env.reset(Start(0, number, 0))
            assert asked(env) == data[number]["question"]
            assert respond(env, data[number]["answer"])[:3] == (1.0, True, True)
            assert respond(env, "nothing")[0] == data.score_answer("nothing", data[number]) < 1.0

    def test_evaluations_have_other_problems(self):
        env, seen = make({"chain_sum": {"min_digits": 4, "max_digits": 5}}, count=100), []
        for seed in (0, EVAL_SEEDS):
            asks = set()
            for number in range(100):
                env.reset(Start(0, number, seed))
                asks.add(asked(env))
            seen.append(asks)
        assert len(seen[0]) > 90
        assert not seen[0] & seen[1]

    def test_a_scorer_is_small_when_it_is_pickled(self):
        env = make()
        env.reset(Start(0, 3, 0))
        problem = env._problem
        assert len(pickle.dumps(problem.fields["scorer"])) < 500
        again = pickle.loads(pickle.dumps(problem))
        assert again == problem
        assert again.fields["scorer"](str(problem.answer), again.fields["entry"]) == 1.0

    def test_a_task_that_is_unknown_or_refuses_its_options(self):
        with pytest.raises(UnknownNameError, match=r"'chain_sums'.*Did you mean 'chain_sum'"):
            make({"chain_sums": {}}).preflight()
        with pytest.raises(ConfigError, match=r"env\.train\.tasks\.chain_sum: reasoning-gym refuses.*min_words"):
            make({"chain_sum": {"min_words": 3}}).preflight()
        make().preflight()

    def test_demonstrations_are_answered_training_problems_of_all_tasks(self):
        import reasoning_gym

        rows, env = demonstrations(TASKS, count=3, dataset_seed=7), make(count=3, dataset_seed=7)
        assert len(rows) == 6
        for number, (summed, counted) in enumerate(zip(rows[::2], rows[1::2], strict=True)):
            for task, row in enumerate((summed, counted)):
                env.reset(Start(task, number, 0))
                assert asked(env) == row["prompt"]
                assert respond(env, row["response"])[:3] == (1.0, True, True)
        assert (
            summed["response"]
            == reasoning_gym.create_dataset("chain_sum", seed=9, size=1, **TASKS["chain_sum"])[0]["answer"]
        )

    def test_demonstrations_of_an_unknown_task(self):
        with pytest.raises(UnknownNameError, match=r"'chain_sums'.*Did you mean 'chain_sum'"):
            demonstrations({"chain_sums": {}})
        with pytest.raises(ConfigError, match=r"data\.options\.tasks\.chain_sum: reasoning-gym refuses.*min_words"):
            demonstrations({"chain_sum": {"min_words": 3}})

    def test_the_shipped_configuration(self):
        options = target_kwargs(compose(["env=reasoning_gym"]).config.env.train, "env.train")
        check_env(ReasoningEnv(**{**options, "verifier": by_scorer}))
