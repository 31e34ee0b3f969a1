"""A simulated robot behind a policy server: what it executes is what an evaluation in one process executes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from serving_rig import serving
from straight_policy import Straight

from embodied import eval as evaluation
from embodied import train
from embodied.learn.origin import restore
from embodied.lib.targets import load_target
from embodied.testing import FakeEnv, FlowPolicy
from embodied.types import Sampling, Start

HERE = Path(__file__).parents[1]
EXAMPLE = HERE.parent / "examples" / "robot_over_the_wire.py"
FAKE = {"success_distance": 0.9, "horizon": 24}
RUN = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "env.num_workers=1", "runner.experiment_name=run",
    "env.eval.video_cfg.save_video=false", "actor.model.num_action_chunks=12", "--config-dir", str(HERE / "config"),
)  # fmt: skip
"""Chunks are long, so that a busy machine may be late by 300 ms."""
TRAIN = (
    "runner.max_epochs=1", "runner.save_interval=1", "runner.val_check_interval=-1", "algorithm.rollout_epoch=4",
    "env.train.max_episode_steps=10", "env.train.reward_mode=dense",
)  # fmt: skip
GREEDY = "algorithm.val_sampling_params.do_sample=false"


@contextmanager
def served(folder: Path, *options: str) -> Iterator[str]:
    """A server in a process of its own; gives its address. Ended as a scheduler would end it."""
    command = [sys.executable, "-m", "embodied.tools.serve", str(folder), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as process:
        assert process.stdout is not None
        try:
            ready = next((line for line in process.stdout if line.startswith("ready: ")), "it has ended")
            yield ready.split()[1].rstrip(",")
        finally:
            process.terminate()
        process.stdout.read()
    assert process.returncode == 0


def drive(*arguments: str) -> str:
    """What the example prints, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments], capture_output=True, text=True, timeout=600, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_one_process(checkpoint: Path, target: str, kwargs: dict[str, Any], starts: list[Start], steps: int) -> list[Any]:
    """The greedy actions of episodes, from the policy itself: an array an episode."""
    policy, spec = restore(checkpoint)
    env = load_target(target, "env")(**kwargs)
    env.prepare()
    noise = torch.zeros(1, *policy.spec.noise.shape)
    executed = []
    for start in starts:
        env.reset(start)
        actions, over = [], False
        while not over:
            out = {name: np.zeros(field.shape, field.dtype) for name, field in spec.obs.items()}
            env.observe(out)
            obs = {name: torch.from_numpy(values)[None] for name, values in out.items()}
            told = policy.encode_instructions([env.spec.tasks[start.task_id]])
            with torch.inference_mode():
                chunk = policy.act({**obs, **told}, noise, Sampling(do_sample=False)).fields["actions"][0].numpy()
            for action in chunk:
                actions.append(action)
                over = env.step(action).terminated or len(actions) == steps
                if over:
                    break
        executed.append(np.stack(actions))
    env.close()
    return executed


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of the fake policy, after an iteration."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train.main([*RUN, *TRAIN]) == 0
        (path,) = (folder / "runs" / "run" / "checkpoints").iterdir()
        yield path


@pytest.fixture(scope="module")
def address(checkpoint: Path) -> Iterator[str]:
    with served(checkpoint) as url:
        yield url


def test_over_the_wire_each_episode_is_that_of_an_evaluation_in_one_process(checkpoint, address, tmp_path):
    sides = [f"env.{side}.{key}" for side in ("train", "eval") for key in ("success_distance=0.9", "horizon=24")]
    options = [*sides, "env.eval.max_episode_steps=null", "env.eval.episodes_per_task=3", GREEDY]
    assert evaluation.main([*RUN, *options, f"runner.ckpt_path={checkpoint}", "runner.experiment_name=eval"]) == 0
    (like,) = (checkpoint.parents[2] / "eval" / "eval").glob("*.json")
    env = ["--env", "embodied.testing.FakeEnv", json.dumps(FAKE)]
    said = drive(address, "--like", str(like), "--clock", "steps", "--actions", str(tmp_path / "a.npz"), *env)
    episodes = json.loads(like.read_text(encoding="utf-8"))["episodes"]
    assert 0 < sum(one["success"] for one in episodes) < len(episodes) == 6, "else success would say little"
    assert "equal in success and length: 6 of 6 episodes" in said
    starts = [Start(**one["start"]) for one in episodes]
    expected = in_one_process(checkpoint, "embodied.testing.FakeEnv", FAKE, starts, 24)
    with np.load(tmp_path / "a.npz") as sent:
        assert [sent[name].tobytes() for name in sent.files] == [actions.tobytes() for actions in expected]


def test_an_episode_that_differs_is_named(address, tmp_path, capsys):
    other = {"start": {"task_id": 0, "init_state_id": 0, "seed": 0}, "success": True, "steps": 999}
    (tmp_path / "like.json").write_text(json.dumps({"episodes": [other]}), encoding="utf-8")
    like = ["--like", str(tmp_path / "like.json"), "--clock", "steps", "--env", "embodied.testing.FakeEnv"]
    assert example().main([address, *like]) == 0
    said = capsys.readouterr().out
    assert "0 of 1 episodes" in said
    assert "in one process True after 999" in said


def test_at_its_real_control_rate_with_latency_and_a_guard(address, tmp_path):
    (tmp_path / "guard.yaml").write_text(
        f"control_hz: 20\naction: {{low: {[-0.5] * 7}, high: {[0.5] * 7}}}\nlog: {tmp_path}/log\n", encoding="utf-8"
    )
    said = drive(
        address, "--mode", "realtime", "--execute", "6", "--latency-ms", "50", "--max-steps", "14", "--guard",
        str(tmp_path / "guard.yaml"), "--actions", str(tmp_path / "a.npz"), "--env", "embodied.testing.FakeEnv",
    )  # fmt: skip
    assert "14.0 control steps an episode" in said
    with np.load(tmp_path / "a.npz") as sent:
        assert max(np.abs(sent[name]).max() for name in sent.files) == 0.5
    assert "bounds[" in (tmp_path / "log").read_text(encoding="utf-8")


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("robot_over_the_wire", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["robot_over_the_wire"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def seeker() -> Iterator[str]:
    """A server whose policy goes straight to the goal."""
    policy = Straight()
    policy.bind(FakeEnv().spec)
    with serving(policy) as server:
        yield f"ws://{server.address}"


def ran(url: str, tmp_path: Path, *options: str) -> tuple[float, float]:
    """Success rate and mean control steps of 24 episodes that have 100 ms of latency and 20 control steps."""
    out, env = tmp_path / "out.json", {"success_distance": 0.15, "horizon": 20, "num_tasks": 6}
    arguments = [url, "--clock", "steps", "--episodes", "4", "--out", str(out), *options]
    assert example().main([*arguments, "--env", "embodied.testing.FakeEnv", json.dumps(env)]) == 0
    episodes = json.loads(out.read_text(encoding="utf-8"))
    return float(np.mean([one["success"] for one in episodes])), float(np.mean([one["steps"] for one in episodes]))


def test_with_latency_chunks_that_are_asked_for_ahead_reach_the_goal_sooner(seeker, tmp_path, capsys):
    """100 ms are two control steps of FakeEnv: a robot that waits stands still for two of six."""
    without = ran(seeker, tmp_path)
    waits = ran(seeker, tmp_path, "--latency-ms", "100", "--execute", "4")
    ahead = ran(seeker, tmp_path, "--latency-ms", "100", "--execute", "4", "--mode", "ahead")
    realtime = ran(seeker, tmp_path, "--latency-ms", "100", "--execute", "4", "--mode", "realtime")
    print(f"\n(success, steps): no latency {without}, wait {waits}, ahead {ahead}, realtime {realtime}")
    assert waits[1] > 1.2 * without[1]
    assert waits[0] < without[0]
    for one in (ahead, realtime):
        assert one[0] == without[0]
        assert one[1] <= without[1] + 1


@pytest.mark.parametrize("clock", ["steps", "real"])
def test_the_rest_of_a_chunk_reaches_a_server_that_goes_on_from_it(clock, tmp_path, monkeypatch):
    policy, asked = FlowPolicy(one_step=True), []
    policy.bind(FakeEnv().spec)
    act_after = policy.act_after
    monkeypatch.setattr(policy, "act_after", lambda *given: asked.append(given[4].tolist()) or act_after(*given))
    options = ["--clock", clock, "--mode", "realtime", "--execute", "2", "--max-steps", "6"]
    with serving(policy) as server:
        assert example().main([f"ws://{server.address}", *options, "--env", "embodied.testing.FakeEnv"]) == 0
    assert asked == [[2], [2]] * 2, "of each of two tasks, but its first chunk"


@pytest.mark.parametrize(("hertz", "latency_s", "steps"), [(50.0, 0.14, 7), (50.0, 0.141, 8), (20.0, 0.1, 2)])
def test_latency_is_counted_in_whole_control_steps(hertz, latency_s, steps):
    clock = example().StepTime(SimpleNamespace(horizon=8, answer=lambda *_, **__: None), hertz, latency_s)
    answer, counted = clock.infer_async({}), 0
    while not answer.done():
        clock.tick()
        counted += 1
    assert counted == steps


def test_a_control_step_begins_a_period_after_a_late_one_and_drawing_takes_no_time(monkeypatch):
    module, now = example(), [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    clock = module.RealTime(SimpleNamespace(horizon=8), 20.0, 0.1)
    begun = []
    for step_s, drawing_s in ((0.01, 0.0), (0.01, 0.4), (0.12, 0.0), (0.01, 0.0), (0.0, 0.0)):
        clock.tick()
        begun.append(round(now[0], 3))
        with clock.standing():
            now[0] += drawing_s
        now[0] += step_s
    drawn = 0.4
    late = 0.1 + drawn + 0.12
    assert begun == pytest.approx([0.0, 0.05, 0.1 + drawn, late, late + 0.05])


@pytest.mark.slow
@pytest.mark.sim
def test_libero_over_the_wire_is_libero_in_one_process(tmp_path, monkeypatch):
    """With random weights: nothing succeeds, and every action is equal bit by bit."""
    monkeypatch.chdir(tmp_path)
    sizes = {"camera_names": ["agentview"], "camera_heights": 128, "camera_widths": 128}
    libero = {"task_suite_name": "libero_spatial", "task_ids": [0], "init_params": sizes}
    sides = [
        f"env.{side}.{key}"
        for side in ("train", "eval")
        for key in ("task_ids=[0]", "init_params.camera_heights=128", "init_params.camera_widths=128")
    ]
    run = (
        "env=libero_spatial", "runner.device=cpu", "env.num_workers=1", "tracker=jsonl", *sides,
        "env.eval.video_cfg.save_video=false", "env.eval.episodes_per_task=2", "env.eval.max_episode_steps=40",
    )  # fmt: skip
    once = (
        "runner.max_epochs=1", "runner.save_interval=1", "runner.val_check_interval=-1", "algorithm.rollout_epoch=1",
        "env.train.max_episode_steps=8", "env.train.total_num_envs=2", "algorithm.group_size=2",
    )  # fmt: skip
    assert train.main([*run, *once, "runner.experiment_name=run"]) == 0
    (checkpoint,) = (tmp_path / "runs" / "run" / "checkpoints").iterdir()
    assert evaluation.main([*run, GREEDY, f"runner.ckpt_path={checkpoint}", "runner.experiment_name=eval"]) == 0
    (like,) = (tmp_path / "runs" / "eval" / "eval").glob("*.json")
    env = ["--env", "embodied.envs.libero.LiberoEnv", json.dumps(libero)]
    with served(checkpoint) as url:
        same = drive(url, "--like", str(like), "--max-steps", "40", "--clock", "steps", "--actions", "a.npz", *env)
        assert "equal in success and length: 2 of 2 episodes" in same
        for mode in ("wait", "realtime"):
            late = ["--latency-ms", "100", "--mode", mode, "--execute", "4", "--max-steps", "40"]
            assert "0/1 succeed, 40.0 control steps" in drive(url, *late, *env)
    starts = [Start(**one["start"]) for one in json.loads(like.read_text(encoding="utf-8"))["episodes"]]
    expected = in_one_process(checkpoint, "embodied.envs.libero.LiberoEnv", libero, starts, 40)
    with np.load("a.npz") as sent:
        assert [sent[name].tobytes() for name in sent.files] == [actions.tobytes() for actions in expected]
