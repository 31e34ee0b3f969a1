"""Under which conditions evaluations run, and that no result is written or printed without them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from embodied import train
from embodied.parallel.group import Group
from embodied.run.build.shares import slots_of
from embodied.run.build.sides import make_side
from embodied.run.evaluation.conditions import Conditions
from embodied.schema.compose.compose import compose

CONFIG = str(Path(__file__).parents[1] / "config")
SHIPPED = Path(__file__).parents[2] / "config"
FAKE = ("env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "env.eval.video_cfg.save_video=false")
SHORT = (
    *FAKE, "runner.max_epochs=1", "runner.save_interval=1", "runner.val_check_interval=1", "algorithm.rollout_epoch=2",
    "env.train.max_episode_steps=8", "env.eval.max_episode_steps=6",
)  # fmt: skip
SUITES = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*overrides: str, entry: str, name: str = "run") -> int:
    return train.main([*overrides, f"runner.experiment_name={name}", "--config-dir", CONFIG], entry)


def report(iteration: int, name: str = "run") -> dict[str, Any]:
    return json.loads(Path("runs", name, "eval", f"{iteration:06d}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("suite", "limit"), SUITES.items())
def test_an_evaluation_of_libero_is_the_benchmark_s_unless_told_otherwise(suite, limit):
    side = compose([f"env={suite}"], "eval").config.env.eval
    assert (side.max_episode_steps, side.reward_mode, side.reward_coef, side.use_rel_reward) == \
        (limit, "sparse", 1, False)  # fmt: skip
    assert side.use_fixed_reset_state_ids
    assert not side.ignore_terminations
    assert (side.total_num_envs, side.episodes_per_task) == (2, 10)


@pytest.mark.parametrize(
    ("overrides", "limit"),
    [
        (["env.eval.max_episode_steps=50"], 50),
        (["experiment=laptop"], 96),
        (["experiment=laptop", "env.eval.max_episode_steps=50"], 50),
        (["experiment=null"], 280),
    ],
)
def test_what_the_user_says_of_an_evaluation_wins(overrides, limit):
    assert compose(["env=libero_object", *overrides], "eval").config.env.eval.max_episode_steps == limit


# Their code, and their problems, come from elsewhere.
NOT_HERE = {"maniskill_putonplate25", "math", "gym", "gym_aloha", "gym_fetchreach", "gym_metaworld",
            "gym_metaworld_ml10", "gym_pusht", "quickstart_metaworld",
            "libero_plus_spatial", "libero_plus_object", "libero_plus_goal", "libero_plus_10"}  # fmt: skip


@pytest.mark.parametrize("name", sorted({p.stem for p in (SHIPPED / "env").glob("*.yaml")} - NOT_HERE))
def test_the_limits_of_shipped_env_files_are_the_env_s_own(name):
    side = make_side("eval", compose([f"env={name}"], "eval").config.env.eval)
    assert side.max_steps == side.spec.max_episode_steps


def test_the_plan_of_an_evaluation_has_the_numbers_of_its_side(capsys):
    others = ("env.train.num_tasks=3", "env.train.horizon=7777")
    options = (*others, "env.eval.num_tasks=2", "env.eval.horizon=24", "env.eval.episodes_per_task=3")
    assert run(*FAKE, *options, "env.eval.total_num_envs=1", "runner.dry_run=true", entry="eval") == 0
    said = capsys.readouterr().out
    for part in (
        r"evaluated +random weights\n",
        r"episodes +6 = 2 tasks × 3, from the first 3 of 4 initial states\n",
        r"steps of an episode +at most 24 control steps, the env's own limit; 6 chunks of 4\n",
        r"steps in all +at most 144 control steps\n",
        r"reward +sparse × 1\n",
        r"env slots, workers +1, 1\n",
    ):
        assert re.search(part, said), (part, said)
    assert "per iteration" not in said, "that is of training"
    assert "7777" not in said, "that is of training"


def test_an_evaluation_hosts_the_slots_of_its_side_alone():
    composed = compose([*FAKE, "env.eval.total_num_envs=3", "env.train.total_num_envs=8"], "eval", [CONFIG])
    more_evaluated = compose([*FAKE, "env.eval.total_num_envs=3"], "train", [CONFIG])
    more_trained = compose([*FAKE, "env.train.total_num_envs=9"], "train", [CONFIG])
    assert slots_of(composed.config, Group()) == 3
    assert slots_of(more_evaluated.config, Group()) == 3
    assert slots_of(more_trained.config, Group()) == 9


def test_an_evaluation_alone_runs_whole_episodes_and_says_so(capsys):
    assert run(*FAKE, "env.eval.episodes_per_task=3", "env.eval.seed=5", entry="eval") == 0
    found = report(0)
    assert {episode["steps"] for episode in found["episodes"] if not episode["success"]} == {24}
    assert found["conditions"] == {
        "weights": "random weights", "max_steps": 24, "env_max_steps": 24, "episodes_per_task": 3,
        "init_states_per_task": [4, 4], "use_fixed_reset_state_ids": True, "ignore_terminations": False,
        "reward_mode": "sparse", "reward_coef": 1.0, "use_rel_reward": False, "env_seed": 5, "seed": 1234,
        "group_size": 1, "held_out_states": 0,
        "sampling": {"do_sample": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
    }  # fmt: skip
    head = capsys.readouterr().out.partition("evaluation of random weights\n")[2].splitlines()
    assert head[:2] == [
        "3 episodes of each task, from the first 3 of 4 initial states, greedy",
        "each episode at most 24 control steps, the env's own limit",
    ]


def test_an_evaluation_within_training_says_where_it_cut_episodes_off(capsys):
    assert run(*SHORT, "env.eval.episodes_per_task=2", entry="train") == 0
    said = capsys.readouterr().out
    cut = "cut at 6 of 24 control steps, so success is not the benchmark's"
    assert re.search(f"evaluation +every iteration and at the end: 4 episodes = 2 tasks × 2, each {cut}\n", said)
    assert (
        "evaluation of runs/run after 1 iterations\n2 episodes of each task, from the first 2 of 4 initial states, "
        "greedy\neach episode cut at 6 of 24 control steps\n" in said
    )
    assert said.count("the benchmark's") == 1, "a warning stands once"
    under = report(1)["conditions"]
    assert (under["max_steps"], under["env_max_steps"], under["reward_mode"]) == (6, 24, "dense")
    row = json.loads(Path("runs/run/metrics.jsonl").read_text(encoding="utf-8"))
    assert (row["eval/max_steps"], row["eval/env_max_steps"]) == (6, 24)


def test_which_weights_were_evaluated():
    assert run(*SHORT, "actor.optim.ema_decay=0.5", entry="train") == 0
    assert report(1)["conditions"]["weights"] == "runs/run after 1 iterations, their moving average"
    path = "runs/run/checkpoints/000001"
    assert run(*SHORT, f"runner.ckpt_path={path}", entry="eval", name="judged") == 0
    assert report(0, "judged")["conditions"]["weights"] == path


def conditions(**changes: Any) -> Conditions:
    usual: dict[str, Any] = {
        "weights": "", "max_steps": 10, "env_max_steps": 10, "episodes_per_task": 3, "init_states_per_task": (4, 4),
        "use_fixed_reset_state_ids": True, "ignore_terminations": False, "reward_mode": "sparse", "reward_coef": 1.0,
        "use_rel_reward": False, "sampling": {}, "env_seed": 0, "seed": 0,
    }  # fmt: skip
    return Conditions(**(usual | changes))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "from the first 3 of 4 initial states"),
        ({"init_states_per_task": (4, 50)}, "from the first 3 of 4 to 50 initial states"),
        ({"episodes_per_task": 1}, "from the first of 4 initial states"),
        ({"episodes_per_task": 4}, "from all 4 initial states"),
        ({"use_fixed_reset_state_ids": False}, "drawn from 4 initial states"),
        ({"init_states_per_task": (1, 1)}, "each with a seed of its own"),
        ({"episodes_per_task": 9}, "from all 4 initial states"),
        ({"episodes_per_task": 9, "sampling": {"do_sample": True, "max_new_tokens": 8}}, "from all 4 problems"),
        (
            {"episodes_per_task": 2, "sampling": {"do_sample": False, "max_new_tokens": 8}},
            "from the first 2 of 4 problems",
        ),
        (
            {"episodes_per_task": 4, "sampling": {"do_sample": False, "max_new_tokens": 8}},
            "from all 4 problems, each once (a greedy answer does not change)",
        ),
        (
            {
                "episodes_per_task": 9,
                "sampling": {"do_sample": False, "max_new_tokens": 8, "greedy_noise": True},
            },
            "from all 4 problems",
        ),
    ],
)
def test_how_starts_are_said(changes, text):
    assert conditions(**changes).starts == text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "at most 10 control steps, the env's own limit"),
        ({"max_steps": 9}, "cut at 9 of 10 control steps, so success is not the benchmark's"),
        (
            {"max_steps": 11},
            "at most 11 control steps where the env's own limit is 10, so success is not the benchmark's unless the "
            "env itself ends its episodes there",
        ),
        ({"ignore_terminations": True}, "at most 10 control steps, the env's own limit, also after success"),
    ],
)
def test_how_limits_are_said(changes, text):
    assert conditions(**changes).limit == text


OF_TEXTS = {"do_sample": False, "max_new_tokens": 8}


@pytest.mark.parametrize(
    ("changes", "head"),
    [
        ({"max_steps": 1, "env_max_steps": 1}, ["3 answers of each task, from the first 3 of 4 problems, greedy"]),
        (
            {"max_steps": 4, "env_max_steps": 4, "episodes_per_task": 1},
            ["1 answer of each task, from the first of 4 problems, greedy", "each answer at most 4 turns"],
        ),
    ],
)
def test_texts_are_answers_to_problems_and_have_no_control_steps(changes, head):
    assert conditions(sampling=OF_TEXTS, **changes).head == head


EXPECT = "The policy begins with random weights"


def test_who_starts_from_nothing_is_told_once_what_to_expect(capsys):
    assert run(*SHORT, entry="train") == 0
    said = capsys.readouterr().out
    assert said.count(EXPECT) == 1
    assert "Expect success to stay at 0 or near it" in said
    assert "docs/results/quickstart.md" in said
    assert run(*SHORT, "runner.max_epochs=2", entry="train") == 0
    resumed = capsys.readouterr().out
    assert "going on after iteration 1" in resumed
    assert EXPECT not in resumed
    assert run(*SHORT, "runner.ckpt_path=runs/run/checkpoints/000001", entry="train", name="other") == 0
    assert EXPECT not in capsys.readouterr().out


def test_a_task_of_numbers_alone_is_not_said_to_need_demonstrations(capsys):
    numbers = ("model=mlp", "env.train.pictures=false")
    assert run(*SHORT, *numbers, entry="train") == 0
    said = capsys.readouterr().out
    assert "From numbers alone a task may be learnt so" in said
    assert "A hard task takes a policy that was cloned first" in said
    assert "stay at 0" not in said


def test_a_sparse_reward_from_nothing_is_said_to_teach_nothing(capsys):
    assert run(*SHORT, "env.train.reward_mode=sparse", "env.eval.reward_mode=sparse", entry="train") == 0
    said = capsys.readouterr().out
    assert EXPECT in said
    assert "with env.train.reward_mode=sparse nothing is learnt" in said
