"""Whether training has seen the starts of an evaluation: of runs, demonstrations, exported folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from brought_folders import export
from varied_env import VariedEnv

from embodied import sft, train
from embodied.data.lerobot.meta import episode_rows
from embodied.run.build.sides import make_side
from embodied.run.evaluation.seen import Seen, Trained, behind, seen
from embodied.run.training import collector
from embodied.runtime.plan import eval_plan
from embodied.schema.compose.compose import compose
from embodied.tools import demos

CONFIG = str(Path(__file__).parents[1] / "config")
FAKE = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "env.num_workers=1", "runner.save_interval=1",
    "env.train.max_episode_steps=6", "env.eval.max_episode_steps=6", "env.eval.video_cfg.save_video=false",
    "--config-dir", CONFIG,
)  # fmt: skip
ENV = {"_target_": "embodied.testing.FakeEnv", "success_distance": 0.3}
GOAL = "move the point to goal 0"


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def evaluated(run: str, *overrides: str) -> dict[str, Any]:
    """What the evaluation of a run's newest checkpoint says."""
    words = [f"runs/{run}", "env.eval.episodes_per_task=4", "runner.device=cpu", "tracker=jsonl", *overrides]
    assert train.main([*words, "env.num_workers=1", "env.eval.video_cfg.save_video=false"], "eval") == 0
    (file,) = Path("runs").glob(f"{run}-*-eval*/eval/000000.json")
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found["seen_in_training"]


def test_starts_of_a_training_are_those_that_its_collector_drew(monkeypatch, capsys):
    drawn = set()

    def noting(*args: Any, **kwargs: Any) -> Any:
        plan = plans(*args, **kwargs)
        drawn.update((one.start.task_id, one.start.init_state_id) for one in plan)
        return plan

    plans = collector.train_plan
    monkeypatch.setattr(collector, "train_plan", noting)
    more = ("env.train.num_init_states=9", "env.eval.num_init_states=9", "runner.max_epochs=2", "runner.seed=77",
            "algorithm.rollout_epoch=4", "protocol.held_out_states=1")  # fmt: skip
    assert train.main([*FAKE, *more, "runner.experiment_name=a", "runner.val_check_interval=2"]) == 0
    assert 1 < len(drawn) < 16
    among = {(task, state) for task in range(2) for state in range(4)}
    assert evaluated("a", "protocol.held_out_states=0")["seen"] == len(drawn & among)
    said = capsys.readouterr().out
    assert f"seen in training: {len(drawn & among)} of 8 starts" in said
    own = json.loads(Path("runs/a/eval/000002.json").read_text(encoding="utf-8"))["seen_in_training"]
    assert own["text"] == "none of 2 starts", "they were held out"


def test_starts_of_demonstrations_are_those_in_their_rows():
    env = [word for word in FAKE if not word.startswith(("model=", "tracker=", "env.eval.video"))]
    assert demos.main([*env, "episodes=5", "env.train.max_episode_steps=40"]) == 0
    rows = {(row["tasks"][0], row["init_state_id"]) for row in episode_rows(Path("demos/fake"))}
    assert len(rows) == 5
    size = ("runner.max_epochs=1", "sft.steps_per_iteration=1", "actor.global_batch_size=4", "sft.val_samples=0")
    assert sft.main([*FAKE, *size, "data=demos/fake", "runner.experiment_name=cloned", "actor.micro_batch_size=4"]) == 0
    found = evaluated("cloned")
    assert (found["seen"], found["starts"], found["unknown"]) == (5, 8, 0)


def verdict(trained: Trained, task: str = GOAL, state: int = 2, count: int = 4, **env: Any) -> bool | str:
    return trained.began_from(task, state, count, {**ENV, **env})


@pytest.mark.parametrize(
    ("changes", "asked", "expected"),
    [
        ({}, {}, True),
        ({"held_out": 2}, {}, False),
        ({"held_out": 1}, {}, True),
        ({"drawn": {GOAL: [0, 1]}}, {}, False),
        ({"drawn": {GOAL: [2]}, "held_out": 9}, {}, True),
        ({}, {"task": "another task"}, False),
        ({}, {"_target_": "embodied.testing.FakeTextEnv"}, False),
        ({}, {"success_distance": 0.5, "size": 32}, True),
        ({}, {"num_tasks": 3}, "a had another num_tasks"),
        ({"states": {GOAL: 5}}, {}, "the task had 5 initial states in a"),
        ({"states": {GOAL: None}}, {}, True),
        ({"env": None}, {}, "which starts a had is not noted"),
        ({"env": None, "held_out": 2}, {}, False),
        ({"env": None, "held_out": 1}, {}, "which starts a had is not noted"),
    ],
)
def test_one_start_against_one_training(changes: Mapping[str, Any], asked: Mapping[str, Any], expected: bool | str):
    known = {"run": "a", "env": ENV, "states": {GOAL: 4}, "drawn": None, "held_out": 0}
    assert verdict(Trained(**{**known, **changes}), **asked) == expected


def side(**keys: Any) -> Any:
    words = ["env=fake", "model=fake", *(f"env.eval.{key}={value}" for key, value in keys.items())]
    return make_side("eval", compose(words, "eval", [CONFIG]).config.env.eval)


def test_several_trainings_are_added_up_and_starts_with_seeds_alone_are_new():
    fake = side()
    plan = eval_plan(fake.spec, episodes_per_task=2, group_size=3)
    all_of_them = Trained("a", ENV, dict.fromkeys(fake.spec.tasks), None, 0)
    half = Trained("b", ENV, dict.fromkeys(fake.spec.tasks[:1]), None, 0)
    unknown = Trained("c")
    assert seen(plan, fake, []) == Seen(0, 4, 0, "")
    assert seen(plan, fake, [half]) == Seen(2, 4, 0, "")
    assert seen(plan, fake, [unknown, half]) == Seen(2, 4, 2, "which starts c had is not noted")
    assert seen(plan, fake, [unknown, all_of_them]) == Seen(4, 4, 0, "")
    single = side(num_init_states=1)
    assert seen(eval_plan(single.spec, episodes_per_task=3), single, [unknown]) == Seen(0, 6, 0, "")


def test_variations_that_share_their_words_are_not_told_apart():
    """Of those that a training began from it is not known which they are; what no training had is new all the same."""
    fake = side()
    one_text = replace(fake, spec=replace(fake.spec, tasks=("lift it", "lift it")))
    plan = eval_plan(fake.spec, episodes_per_task=2)
    trained = Trained("a", ENV, {"lift it": None}, {"lift it": [0]}, 0)
    assert seen(plan, one_text, [trained]) == Seen(
        0, 4, 2, "several tasks have the instruction of one that a began from"
    )
    words = ["env=fake", "model=fake", "env.eval._target_=varied_env.VariedEnv", "+env.eval.sample=2"]
    varied = make_side("eval", compose(words, "eval", [CONFIG]).config.env.eval)
    own = {"_target_": "varied_env.VariedEnv", **varied.kwargs}
    of = Trained("a", own, dict.fromkeys(varied.spec.tasks), None, 0)
    plan = eval_plan(varied.spec, episodes_per_task=1)
    assert seen(plan, varied, [of]) == Seen(2, 2, 0, "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VariedEnv, "keys_without_start", ("sample",))
        assert seen(plan, varied, [replace(of, env={**own, "sample": 1})]) == Seen(0, 2, 2, "a had another sample")


@pytest.mark.parametrize(
    ("found", "text"),
    [(Seen(4, 4, 0, ""), "all 4 starts"), (Seen(0, 4, 0, ""), "none of 4 starts"), (Seen(1, 4, 0, ""), "1 of 4 starts"),
     (Seen(0, 4, 4, "why"), "unknown (why)"), (Seen(1, 4, 2, "why"), "1 of 4 starts, 2 unknown (why)")],
)  # fmt: skip
def test_the_answer_in_words(found, text):
    assert found.text == text


def test_an_export_says_the_starts_of_all_trainings_behind_it_or_an_older_one_what_was_held_out():
    model = {"_target_": "embodied.testing.FakePolicy"}
    config: dict[str, Any] = {"runner": {"ckpt_path": None}, "actor": {"model": {"model_path": "new"}}}
    one = {"run": "a", "env": ENV, "states": {GOAL: 4}, "drawn": {GOAL: [1]}, "held_out": 0}
    export(Path("new"), model, starts=[one], trainings=[{"run": "a", "held_out_states": 0}])
    assert behind(config) == [Trained(**one)]
    export(Path("old"), model, trainings=[{"run": "b", "held_out_states": 3}])
    config["actor"]["model"]["model_path"] = "old"
    assert behind(config) == [Trained("b", held_out=3)]
    export(Path("checked"), model, trainings=[{"run": "b", "held_out_states": "3"}])
    config["actor"]["model"]["model_path"] = "checked"
    assert behind(config) == [Trained("checked")]
    config["runner"]["ckpt_path"] = "runs/gone/checkpoints/000001"
    assert behind(config) == [Trained("gone")]


@pytest.mark.parametrize(
    "changes",
    [
        {"drawn": {GOAL: ["x"]}}, {"drawn": {GOAL: [1.5]}}, {"drawn": {GOAL: [-1]}}, {"drawn": {GOAL: [4]}},
        {"drawn": {"another task": [1]}}, {"states": {GOAL: -4}}, {"states": {GOAL: True}}, {"states": {GOAL: "4"}},
        {"held_out": -5}, {"held_out": 0.5}, {"held_out": float("inf")},
    ],
)  # fmt: skip
def test_starts_that_cannot_be_are_not_known(changes: Mapping[str, Any]):
    one = {"run": "a", "env": ENV, "states": {GOAL: 4}, "drawn": {GOAL: [1]}, "held_out": 0}
    export(Path("bad"), {"_target_": "embodied.testing.FakePolicy"}, starts=[{**one, **changes}])
    config = {"runner": {"ckpt_path": None}, "actor": {"model": {"model_path": "bad"}}}
    (found,) = behind(config)
    assert found == Trained("bad")
    assert verdict(found, state=2) == "which starts bad had is not noted"
