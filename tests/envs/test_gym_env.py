"""``env=gym``: Gymnasium's own small envs and ours, checked, compared with Gymnasium itself, and trained in."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import small_gym_envs
from embodied.envs.gym import GymEnv, env, facts, probe
from embodied.envs.gym.facts import GymFacts
from embodied.envs.gym.mapping import MappingSettings, mapping_of
from embodied.envs.gym.settings import Making
from embodied.envs.gym.sources import Rule, entries

from embodied import instructions, train
from embodied.errors import AssetsMissingError, ConfigError, EmbodiedError, SpecMismatchError, UnknownNameError
from embodied.protocols import HasProgressFeatures
from embodied.schema.compose.compose import compose
from embodied.testing import check_env
from embodied.tools import demos
from embodied.types import ContinuousAction, DiscreteAction, Start, StepResult

HERE = Path(__file__).parent
SEEN = "small_gym_envs:tests/Seen-v0"
LEAVES = "small_gym_envs.Leaves"


@pytest.fixture(autouse=True)
def _apart(monkeypatch, tmp_path):
    """No answer of another test, and no search for MuJoCo's renderer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MUJOCO_GL", os.environ.get("MUJOCO_GL", "egl"))


@pytest.fixture
def here(monkeypatch):
    """Envs are asked in this process, which takes milliseconds."""
    asked = lambda making, remake, python: probe.describe(making, remake)  # noqa: E731
    monkeypatch.setattr(env, "facts_of", asked)
    monkeypatch.setattr(env, "ask", asked)


def look(one: GymEnv) -> dict[str, np.ndarray]:
    out = {name: np.zeros(field.shape, field.dtype) for name, field in one.spec.obs.items()}
    one.observe(out)
    return out


def seen(**more) -> GymEnv:
    return GymEnv(**{"id": SEEN, "success": "info.solved", **more})


def test_an_env_is_asked_in_a_process_of_its_own_and_a_file_keeps_the_answer(tmp_path, monkeypatch):
    one = GymEnv(id="CartPole-v1")
    check_env(one)
    assert one.spec.action == DiscreteAction(2)
    assert (one.spec.obs["state"].shape, one.spec.max_episode_steps, one.spec.control_hz) == ((4,), 500, 50.0)
    monkeypatch.setattr("subprocess.run", None)
    assert GymEnv(id="CartPole-v1").spec == one.spec
    (file,) = (tmp_path / "embodied" / "gym").glob("*.json")
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "max_steps": 7}), encoding="utf-8")
    changed = GymEnv(id="CartPole-v1")
    assert changed.spec.max_episode_steps == 7
    with pytest.raises(SpecMismatchError, match="has changed since it was last asked"):
        changed.preflight()


def test_an_answer_under_another_renderer_is_no_change_of_the_env(monkeypatch):
    """One shell exports MUJOCO_GL, so that nothing is chosen for it; the next does not."""
    GymEnv(id="CartPole-v1").preflight()
    facts._ask_once.cache_clear()  # as in the next command
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.delenv("PYOPENGL_PLATFORM", raising=False)
    GymEnv(id="CartPole-v1").preflight()


def test_progress_features_are_what_the_mapping_names(here):
    one = seen(progress_features=["obs.arm.mark", "obs.arm.place[0:1]"])
    check_env(one)
    assert isinstance(one, HasProgressFeatures)
    assert not isinstance(seen(), HasProgressFeatures), "without the key it offers none"
    one.reset(Start(0, 0, 4))
    before = one.progress_features()
    one.step(np.array([1, 0], np.float32))
    found, arm = one.progress_features(), one._sim.values["obs"]["arm"]
    assert (one.num_progress_features, found.dtype, found.shape) == (2, np.float32, (2,))
    assert found.tolist() == [arm["mark"][0], arm["place"][0]]
    assert found[0] == before[0]
    assert found[1] > before[1]
    odd = (
        (["obs.mission"], "text"), (["obs.arm.no"], "does not have"), ("obs", "expected a list"),
        (5, "expected a list"),
        ([0], "has 0, expected texts alone"),
        (["obs.arm.mark", "obs.arm.place[20:30]"], "has no numbers: obs.arm.place"),
        (["obs.arm.place[0:0]"], "has no numbers"),
    )  # fmt: skip
    for sources, message in odd:
        with pytest.raises(ConfigError, match=rf"progress_features.*{message}"):
            seen(progress_features=sources)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"id": "CartPole-v1"},
        {"id": "Pendulum-v1", "success": "return>=-200"},
        {"id": SEEN, "success": "info.solved"},
        {"id": SEEN, "success": "info.gap<0.2", "images": ["render", "obs.top"], "image_size": 20, "state": []},
        {"id": SEEN, "success": "info.solved", "make_kwargs": {"discrete": True}, "instruction_from": "obs.mission"},
        {"id": SEEN, "success": "info.solved", "expert": "small_gym_envs.towards", "state": ["obs.arm.place[0:1]"]},
        {"tasks": [{"make_kwargs": {"far": 0.1}, "instruction": "near"}, SEEN], "id": SEEN, "success": "info.solved"},
    ],
    ids=["cartpole", "pendulum", "pictures", "chosen", "discrete", "expert", "tasks"],
)  # fmt: skip
def test_it_keeps_the_promises_of_an_env(here, kwargs):
    check_env(GymEnv(**kwargs))


@pytest.mark.parametrize("id", ["CartPole-v1", "Pendulum-v1"])
def test_an_episode_is_the_one_that_gymnasium_runs(here, id):
    ours, theirs = GymEnv(id=id, success="return>=-100", end_on_success=False), gymnasium.make(id)
    ours.prepare()
    ours.reset(Start(0, 0, 5))
    obs, _ = theirs.reset(seed=5)
    total = 0.0
    for action in ours.spec.action.sample(np.random.default_rng(1), 12):
        np.testing.assert_array_equal(look(ours)["state"], np.asarray(obs, np.float32))
        result = ours.step(action)
        given = int(action) if isinstance(ours.spec.action, DiscreteAction) else action
        obs, reward, terminated, truncated, _ = theirs.step(given)
        total += float(reward)
        solved = total >= -100 and (terminated or truncated)
        assert result == StepResult(total, terminated, solved, truncated=truncated)
        if terminated:
            break


@pytest.mark.parametrize(
    ("id", "rule", "solved"),
    [
        ("MountainCar-v0", None, False),  # of its registered threshold, -110
        ("Pendulum-v1", "return>=-4000", True),
        ("Pendulum-v1", "return>-10", False),
        ("Pendulum-v1", "return<=0", True),
    ],
)
def test_a_return_that_each_episode_begins_with_counts_at_its_end(here, id, rule, solved):
    """It falls from 0: judged at once, each episode would be solved in its first step."""
    one = GymEnv(id=id, success=rule)
    assert one.judges_at_end
    assert "judged at the end of an episode" in one.reads()["success"]
    for _ in range(2):
        one.reset(Start(0, 0, 5))
        told = [one.step(action) for action in one.spec.action.sample(np.random.default_rng(1), 200)]
        assert [result.success for result in told] == [False] * 199 + [solved]
        assert not any(result.terminated or result.truncated for result in told[:-1])
    assert not GymEnv(id="CartPole-v1").judges_at_end


def test_an_env_without_a_limit_of_its_own_is_judged_where_it_is_cut_off(here):
    one = GymEnv(id="Pendulum-v1", success="return>=-4000", make_kwargs={"max_episode_steps": -1})
    assert one.spec.max_episode_steps == 200
    one.reset(Start(0, 0, 5))
    told = [one.step(action) for action in one.spec.action.sample(np.random.default_rng(1), 201)]
    assert [number for number, result in enumerate(told, 1) if result.success] == [200, 201]


def test_episodes_that_are_cut_off_before_they_are_judged_are_refused(here, capsys):
    rule = ("env=gym", "env.train.id=Pendulum-v1", "env.train.success=return>=-500", "model=mlp", "runner.dry_run=true")
    assert train.main([*rule, "env.train.max_episode_steps=null"]) != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "env.eval.max_episode_steps cuts episodes off at 96 of 200 control steps" in said
    assert train.main([*rule, "env.eval.max_episode_steps=null"]) == 0, "a training may be paid for progress"
    capsys.readouterr()
    sparse = ("env.eval.max_episode_steps=null", "env.train.reward_mode=sparse", "env.train.use_rel_reward=false")
    assert train.main([*rule, *sparse]) != 0
    assert "env.train.max_episode_steps cuts episodes off at 96" in " ".join(capsys.readouterr().err.split())


def test_equal_starts_are_equal_episodes_whatever_ran_before(here):
    one, two = seen(), seen()

    def play(which: GymEnv, seed: int) -> list[bytes]:
        which.reset(Start(0, 0, seed))
        told = []
        for action in which.spec.action.sample(np.random.default_rng(0), 6):
            which.step(action)
            told += [field.tobytes() for field in look(which).values()]
        return told

    first = play(one, 3)
    assert play(one, 4) != first
    assert play(one, 3) == play(two, 3) == first


def test_fixed_starts_are_others_in_an_evaluation(here):
    one = seen(num_init_states=3)
    assert one.spec.num_init_states == (3,)
    assert [one.seed_of(Start(0, 2, seed)) for seed in (0, 9, 2**30 + 9)] == [2, 2, 2**30 + 2]
    assert seen().seed_of(Start(0, 0, 9)) == 9
    with pytest.raises(ConfigError, match="init_state_id"):
        one.seed_of(Start(0, 3, 0))


def test_an_observation_has_what_is_mapped(here):
    one = seen(
        images=["obs.top", "render"], image_size=[24, 6], state=["obs.arm.mark", "obs.arm.place"],
        instruction_from="obs.mission", rotate_images=True, instruction="go",
    )  # fmt: skip
    assert one.spec.cameras == ("top", "render")
    assert one.spec.tasks == ("go",)
    one.reset(Start(0, 0, 1))
    got, (raw, _) = look(one), gymnasium.make("tests/Seen-v0").reset(seed=1)
    np.testing.assert_array_equal(got["state"], [*raw["arm"]["mark"], *raw["arm"]["place"]])
    assert instructions.read(got["instruction"]) == raw["mission"]
    assert got["images"].shape == (2, 24, 6, 3)
    assert [int(picture[-1].max()) for picture in got["images"]] == [100, 100], "the red row is below, once turned"
    assert one.frame().shape == (24, 24, 3)
    assert one.frame()[-1, 0, 0] == 100


def test_an_env_that_cannot_draw_has_grey_videos(here):
    one = GymEnv(id="CartPole-v1", make_kwargs={"render_mode": None})
    assert "videos are grey" in one.prepare().reason
    one.reset(Start(0, 0, 0))
    assert (one.frame() == 128).all()


def test_actions_arrive_in_the_env_s_own_form(here):
    for kwargs, action, expected in (
        ({}, np.array([9.0, 0.5], np.float32), [[2.0, 0.5]]),
        ({"discrete": True}, np.int32(0), -1),
    ):
        one = seen(make_kwargs=kwargs)
        one.reset(Start(0, 0, 0))
        one.step(action)
        (got,) = one._sim.env.unwrapped.got
        assert np.array_equal(got, expected)
    assert one.spec.action == DiscreteAction(3)
    assert seen().spec.action == ContinuousAction((-2.0, -1.0), (2.0, 1.0))


def test_wrappers_are_put_on_in_order(here):
    push = {"target": "small_gym_envs.Push", "kwargs": {"by": 0.25}}
    one = seen(
        wrappers=[push, {"target": "gymnasium.wrappers.RescaleAction", "kwargs": {"min_action": -1, "max_action": 1}}]
    )
    assert one.spec.action == ContinuousAction((-1.0, -1.0), (1.0, 1.0))
    one.reset(Start(0, 0, 0))
    one.step(np.array([0.5, 0.0], np.float32))
    np.testing.assert_allclose(one._sim.env.unwrapped.got[0], [[1.25, 0.25]])


def test_success_ends_an_episode_unless_it_is_not_to(here):
    for ends in (True, False):
        one = seen(end_on_success=ends, progress="info.gap", progress_range=[1, 0])
        one.reset(Start(0, 0, 0))
        results = [one.step(np.array([2, 0], np.float32)) for _ in range(3)]
        solved = next(result for result in results if result.success)
        assert (solved.reward, solved.terminated) == (1.0, ends)
        assert 0 < results[0].reward < 1


def test_after_its_end_an_episode_stands_still(here):
    one = seen()
    one.reset(Start(0, 0, 0))
    left = np.array([-2, 0], np.float32)
    while not (last := one.step(left)).terminated:
        pass
    before = look(one)["state"]
    assert one.step(left) == last
    np.testing.assert_array_equal(look(one)["state"], before)


def test_each_task_has_its_env_and_its_sentence(here):
    one = seen(tasks=[{"make_kwargs": {"far": 5.0}, "instruction": "anywhere"}, {"instruction": "there"}], kept_envs=1)
    assert one.spec.tasks == ("anywhere", "there")
    results = []
    for task in (0, 1, 0):
        one.reset(Start(task, 0, 0))
        results.append(one.step(np.zeros(2, np.float32)).success)
    assert results == [True, False, True]
    assert len(one._sim._made) == 1


def test_an_env_whose_reset_leaves_traces_is_refused_or_made_anew(here):
    leaves = {"id": None, "entry_point": LEAVES, "imports": ["small_gym_envs"]}
    with pytest.raises(ConfigError, match=r"two episodes from one seed differ: .*obs") as caught:
        seen(**leaves)
    assert "env.train.remake=true" in caught.value.remedy
    check_env(seen(**leaves, remake=True))
    assert not seen(**leaves, repeatable=False).spec.repeatable


@pytest.mark.parametrize(
    ("expert", "discrete"),
    [("small_gym_envs.towards", False), ("small_gym_envs.Towards", True)],
    ids=["function", "class"],
)
def test_an_expert_s_actions_solve_the_task(here, expert, discrete):
    one = seen(expert=expert, make_kwargs={"discrete": discrete})
    one.reset(Start(0, 0, 0))
    assert any(one.step(action).success for action in one.expert())
    assert not hasattr(seen(), "expert")


def test_an_expert_that_gives_no_action_is_named(here):
    one = seen(expert="small_gym_envs.nonsense")
    one.reset(Start(0, 0, 0))
    with pytest.raises(ConfigError, match="nonsense gives 'left', which is no action of Box"):
        next(one.expert())


@pytest.mark.parametrize(
    ("kwargs", "kind", "message"),
    [
        ({"id": "CartPol-v1"}, UnknownNameError, "Did you mean: `CartPole`"),
        ({"id": "CartPole-v1", "make_kwargs": {"foo": 1}}, ConfigError, "unexpected keyword argument 'foo'"),
        ({"id": "CartPole-v1", "imports": ["no_such_module"]}, AssetsMissingError, "no module 'no_such_module'"),
        ({}, ConfigError, "neither an id nor an entry_point"),
        ({"id": "a", "entry_point": "b"}, ConfigError, "both an id and an entry_point"),
        ({"tasks": []}, ConfigError, "tasks is empty"),
        ({"tasks": [{"idd": "x"}]}, ConfigError, "Did you mean 'id'"),
        ({"tasks": ["CartPole-v1", "Pendulum-v1"]}, ConfigError, r"different observations: Pendulum obs float32 \(3"),
        ({"id": "CartPole-v1", "wrappers": ["gymnasium.wrappers.Nope"]}, ConfigError, r"wrappers\[0\].target"),
        ({"id": "CartPole-v1", "wrappers": ["gymnasium.wrappers.RescaleAction"]}, ConfigError, "does not fit to"),
        ({"id": "CartPole-v1", "imports": "gym"}, ConfigError, "imports is 'gym', expected a list"),
        ({"id": "CartPole-v1", "control_hz": 0}, ConfigError, "control_hz"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_said(here, kwargs, kind, message):
    with pytest.raises(kind, match=message) as caught:
        GymEnv(**kwargs)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"state": ["obs.arm.plaice"]}, r"Did you mean 'obs.arm.place'.*there are: .*obs.top uint8 \(12, 12, 3\)"),
        ({"state": ["obs.mission"]}, r"obs.mission, which is text \(\), expected numbers"),
        ({"state": "obs"}, "expected a list"),
        ({"state": ["arm"]}, "names no source"),
        ({"images": ["obs.arm.place"]}, r"float32 \(2,\), expected uint8 \(H, W, 3\).*obs.top, render"),
        ({"images": ["obs.top", "render"]}, "different sizes"),
        ({"image_size": [1, 2, 3]}, "expected pixels"),
        ({"instruction_from": "obs.top"}, "expected text"),
        ({"success": None}, r"neither info.is_success.*info.gap float64 \(\)"),
        ({"success": "info.won"}, "info.won, which the env does not have"),
        ({"success": "obs.mission"}, "no number"),
        ({"progress": "info.gop"}, "Did you mean 'info.gap'"),
        ({"progress_range": [1, 1]}, "two different numbers"),
    ],
)
def test_a_mapping_that_does_not_fit_lists_what_is_there(wanted, message):
    env = small_gym_envs.Seen(render_mode="rgb_array")
    found = entries("obs", env.reset(seed=0)[0]) | entries("info", env.step([[0, 0]])[4])
    facts = GymFacts(found, {"n": 2}, 30, 12.0, None, (24, 24, 3), "", "", {}, "1")
    with pytest.raises(ConfigError) as caught:
        mapping_of(replace(MappingSettings(success="info.solved"), **wanted), facts)
    text = " ".join(str(caught.value).split())
    assert re.search(message, text), text


def test_an_unasked_rule_is_found_and_one_without_its_entry_does_not_hold():
    facts = GymFacts({"obs": ((2,), "float32")}, {"n": 2}, 0, 0.0, 475.0, None, "none", "", {}, "1")
    assert mapping_of(MappingSettings(), facts).success == Rule.of("return>=475", "key")
    told = {**facts.entries, "info.success": ((), "bool")}
    assert mapping_of(MappingSettings(), replace(facts, entries=told)).success == Rule.of("info.success", "key")
    assert not Rule.of("info.success", "key").holds({"info": {}})
    assert [Rule.of(text, "key").holds({"reward": 0.5}) for text in ("reward>=0.5", "reward>0.5", "reward < 1")] == [
        True, False, True,
    ]  # fmt: skip


def test_an_unbounded_or_odd_action_space_is_refused():
    spaces = gymnasium.spaces
    for space, message in (
        (spaces.Box(-np.inf, np.inf, (2,)), "no bounds"),
        (spaces.MultiDiscrete([2, 3]), "expected Box or Discrete"),
    ):
        with pytest.raises(ConfigError, match=message):
            probe.action_facts(space, "it")


def test_an_evaluation_has_the_env_of_training_unless_it_is_given_another():
    composed = compose(
        ["env=gym", "env.train.id=CartPole-v1", "env.train.make_kwargs.a=1", "env.eval.success=terminated"]
    )
    sides = composed.resolved["env"]
    assert (sides["train"]["id"], sides["eval"]["id"]) == ("CartPole-v1", "CartPole-v1")
    assert sides["eval"]["make_kwargs"] == {"a": 1}
    assert (sides["train"]["success"], sides["eval"]["success"]) == (None, "terminated")


RUN = (
    "env=gym", "env.train.id=CartPole-v1", "model=mlp", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2",
    "runner.save_interval=2", "runner.val_check_interval=2", "env.train.max_episode_steps=40",
    "env.eval.video_cfg.save_video=false", "actor.model.num_action_chunks=2", "runner.experiment_name=run",
)  # fmt: skip


def test_the_same_command_is_the_same_run_with_other_workers(tmp_path, monkeypatch):
    rows = []
    for folder, workers in (("one", 1), ("two", 2)):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        assert train.main([*RUN, f"env.num_workers={workers}"]) == 0
        rows.append([*map(json.loads, Path("runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines())])
    names = ("train/loss", "train/grad_norm", "rollout/return_mean", "rollout/episodes")
    assert [[row[name] for name in names] for row in rows[0]] == [[row[name] for name in names] for row in rows[1]]
    assert rows[0][0]["train/grad_norm"] > 0
    assert rows[0][0]["rollout/return_mean"] > 5, "the sum of CartPole's rewards"


@pytest.mark.slow
def test_an_expert_s_demonstrations_are_learnt_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(HERE))
    env = (
        "env=gym",
        f"env.train.id={SEEN}",
        "env.train.success=info.solved",
        "env.train.expert=small_gym_envs.towards",
    )
    assert demos.main((*env, "episodes=12", "demos.path=shown", "env.num_workers=1", "noise_std=0.1")) == 0
    sft = (
        *env, "model=mlp", "tracker=jsonl", "runner.device=cpu", "data=shown", "runner.max_epochs=1",
        "sft.steps_per_iteration=150", "sft.val_samples=16", "actor.global_batch_size=32", "actor.micro_batch_size=32",
        "actor.optim.lr=1e-3", "runner.experiment_name=sft", "runner.val_check_interval=1",
        "env.eval.episodes_per_task=10", "env.eval.video_cfg.max_videos=2",
    )  # fmt: skip
    assert train.main(sft, "sft") == 0
    (row,) = map(json.loads, Path("runs/sft/metrics.jsonl").read_text(encoding="utf-8").splitlines())
    assert row["eval/success_rate"] >= 0.8
    assert [*Path("videos/sft/eval").rglob("*.mp4")]


def test_an_env_of_numbers_is_learnt_by_its_experiment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gym = ("experiment=gym", "env.train.id=CartPole-v1", "runner.max_epochs=6", "runner.experiment_name=run")
    assert (
        train.main([*gym, "tracker=jsonl", "runner.val_check_interval=0", "env.eval.video_cfg.save_video=false"]) == 0
    )
    rows = [*map(json.loads, Path("runs/run/metrics.jsonl").read_text(encoding="utf-8").splitlines())]
    returns = [row["rollout/return_mean"] for row in rows if "rollout/return_mean" in row]
    assert len(returns) == 6
    assert returns[0] < 40, "a stick falls at once"
    assert max(returns[-2:]) > 3 * returns[0], "one iteration differs from CPU to CPU"


def test_errors_are_ours_in_the_process_that_asks():
    told = probe.answer({"tasks": [], "imports": ["no_such_module"], "wrappers": [], "variables": {}}, False)
    assert told["error"] == "AssetsMissingError"
    assert issubclass(AssetsMissingError, EmbodiedError)
    assert Making.of_json({"tasks": [], "imports": [], "wrappers": [], "variables": {}}).tasks == ()
