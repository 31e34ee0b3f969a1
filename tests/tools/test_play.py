"""``embodied play``: the same episode as that of an evaluation, its actors, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
from PIL import ImageGrab

from embodied import cli, train
from embodied.errors import RendererUnavailableError
from embodied.observe.terminal.window import Window
from embodied.run.evaluation.random_actions import RandomActions
from embodied.runtime.policy.policy_port import Request
from embodied.runtime.slab import Slab
from embodied.testing import FakeEnv
from embodied.types import EpisodeResult

CONFIG = ("--config-dir", str(Path(__file__).parents[1] / "config"))
FAKE = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "env.num_workers=1", *CONFIG,
    "env.eval.success_distance=0.6", "env.eval.max_episode_steps=8", "algorithm.val_sampling_params.do_sample=true",
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def play(*words: str) -> int:
    return cli.main(["play", *words])


def numbers(said: str) -> dict[str, str]:
    """What is printed of the episode, by name."""
    found = [line.split(":", 1) for line in said.splitlines() if line.startswith(("success:", "return:", "steps:"))]
    return {name: value.strip() for name, value in found}


def test_an_episode_of_an_evaluation_is_played_again_to_the_bit(capsys):
    more = ("env.eval.episodes_per_task=3", "env.eval.video_cfg.max_videos=99", "algorithm.val_group_size=1")
    assert train.main([*FAKE, *more, "runner.experiment_name=run"], "eval") == 0
    episodes: list[dict[str, Any]] = json.loads(Path("runs/run/eval/000000.json").read_text(encoding="utf-8"))[
        "episodes"
    ]
    assert {one["success"] for one in episodes} == {True, False}, "else the test would compare too little"
    capsys.readouterr()
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")}
    chosen = [next(one for one in episodes if one["success"] is wanted) for wanted in (True, False)]
    for number, one in enumerate(chosen):
        start, out = one["start"], Path(f"{number}.mp4")
        words = ["--task", str(start["task_id"]), "--state", str(start["init_state_id"]), "--seed", str(start["seed"])]
        assert play(*FAKE, *more, *words, "--out", str(out)) == 0
        said = numbers(capsys.readouterr().out)
        shown = {"success": "yes" if one["success"] else "no", "return": f"{one['return']:.4g}"}
        assert said == shown | {"steps": str(one["steps"])}
        assert out.read_bytes() == Path(one["video"]).read_bytes(), "every picture with its return is the same"
    assert {path: path.stat().st_mtime_ns for path in Path("runs").rglob("*")} == before, "no run folder is touched"


def test_the_expert_random_actions_and_a_start_that_no_evaluation_has(capsys):
    assert play(*FAKE, "--expert", "--task", "1") == 0
    said = capsys.readouterr().out
    assert numbers(said)["success"] == "yes"
    steps = int(numbers(said)["steps"])
    (video,) = Path("videos").rglob("*_expert.mp4")
    assert len(iio.imread(video)) == steps + 1
    found = []
    for seed in ("7", "7", "8"):
        assert play(*FAKE, "--random", "--seed", seed, "runner.experiment_name=some") == 0
        said = capsys.readouterr().out
        assert "untrained" not in said
        assert f"initial state 0, seed {seed}" in said
        (video,) = Path("videos/some").rglob(f"*_seed{seed}_random.mp4")
        found.append(iio.imread(video)[1:].tobytes())
    assert found[0] == found[1]
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("env", "keys", "expected"),
    [
        ("embodied.testing.FakeEnv", ("success_distance=0.05",), (True, True, False)),
        ("embodied.testing.FakeEnv", ("success_distance=0.05", "max_episode_steps=LAST"), (True, True, False)),
        ("embodied.testing.FakeEnv", ("success_distance=0.05", "max_episode_steps=2"), (False, False, True)),
        ("odd_experts.CutsOff", ("success_distance=0",), (False, False, True)),
        ("odd_experts.Spoils", ("success_distance=0", "max_episode_steps=3"), (False, True, False)),
        ("odd_experts.GivesUp", ("success_distance=0",), (False, False, False)),
    ],
    ids=["solved", "solved in the last step", "limit", "limit of the env", "failed for good", "gives up"],
)
def test_how_the_expert_s_episode_ended(monkeypatch, env, keys, expected):
    found: list[EpisodeResult] = []
    monkeypatch.setattr("embodied.run.play.result_lines", lambda result, texts: found.append(result) or [])
    assert play(*FAKE, "--expert", "env.eval.success_distance=0.05", "--seed", "4") == 0
    solved_at = found.pop().num_steps
    own = [f"env.eval.{key.replace('LAST', str(solved_at))}" for key in keys]
    assert play(*FAKE, "--expert", f"env.eval._target_={env}", *own, "--seed", "4") == 0
    (result,) = found
    assert (result.success, result.terminated, result.truncated) == expected
    assert result.solved_at == (solved_at if result.success else 0)
    assert 0 <= result.progress <= 1
    assert result.num_steps > 0


def test_random_actions_are_new_in_each_record():
    env = FakeEnv().spec
    slab = Slab.create({"actions": env.action.field(1)}, 3, "random")
    port = RandomActions(env, seed=1).port(slab)
    with closing(slab):
        for row, (episode, t) in enumerate([(0, 0), (0, 1), (1, 0)]):
            port.submit([Request(0, row, episode, t)])
            assert len(port.poll()) == 1
        assert len(np.unique(slab.arrays["actions"], axis=0)) == 3


def test_a_checkpoint_is_a_plain_word_and_an_untrained_policy_is_said(capsys):
    folder = Path("it's a run")
    command = [*FAKE, f'runner.output_dir="{folder}"', "runner.experiment_name=run", "runner.max_epochs=1"]
    assert train.main([*command, "algorithm.rollout_epoch=4", "env.eval.video_cfg.save_video=false"]) == 0
    checkpoint = folder / "run" / "checkpoints" / "000001"
    capsys.readouterr()
    assert play(*FAKE, str(checkpoint)) == 0
    said = capsys.readouterr().out
    assert f"played by  {checkpoint}" in said
    assert "untrained" not in said
    assert play(*FAKE) == 0
    assert "the policy is untrained" in capsys.readouterr().out
    assert play(*FAKE, str(checkpoint), f"runner.ckpt_path={checkpoint}") == 2
    assert "one checkpoint" in capsys.readouterr().err


def test_texts_are_printed(capsys):
    words = ("env=fake_text", "model=fake_text", "tracker=jsonl", "runner.device=cpu", *CONFIG)
    assert play(*words, "--state", "1") == 0
    said = capsys.readouterr().out
    assert "--- user\n#1 " in said
    assert "--- assistant\n" in said
    assert not [*Path().rglob("*.mp4")]
    assert play(*words, "--out", "some.mp4") == 2
    assert "an env of texts has no video" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--task", "9"), "--task 9: there are"),
        (("--state", "-1"), "--state -1: there are"),
        (("--seed", "-1"), "--seed -1 is below 0"),
        (("--out", "film.avi"), "write film.mp4"),
        (("runs/none",), "'runs/none' is not of the form KEY=VALUE, and there is no folder of that name"),
        (("runner.sed=3",), "Did you mean"),
        (("+perturb=robot",), "perturbations"),
    ],
)
def test_what_cannot_be_played_is_refused(words, says, capsys):
    assert play(*FAKE, *words) == 2
    assert says in capsys.readouterr().err


def test_a_window_without_a_display_is_refused(monkeypatch, capsys):
    monkeypatch.delenv("DISPLAY", raising=False)
    assert play(*FAKE, "--live") == 2
    said = capsys.readouterr().err
    assert "no window can be opened" in said
    assert "leave out --live" in said
    assert not Path("videos").exists()


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A display in memory."""
    pytest.importorskip("tkinter")
    if (xvfb := shutil.which("Xvfb")) is None:
        pytest.skip("there is no Xvfb")
    reads, writes = os.pipe()
    command = [xvfb, "-displayfd", str(writes), "-noreset", "-screen", "0", "640x480x24"]
    with subprocess.Popen(command, pass_fds=[writes], stderr=subprocess.DEVNULL) as server:
        os.close(writes)
        with os.fdopen(reads, encoding="utf-8") as numbers:
            name = f":{numbers.readline().strip()}"
        monkeypatch.setenv("DISPLAY", name)
        yield name
        server.terminate()


def test_a_window_shows_the_pictures(display, capsys):
    window = Window("some")
    picture = np.full((100, 120, 3), (200, 30, 40), np.uint8)
    window.show(picture)
    until, found = time.monotonic() + 20, 0
    while found != 100 * 120 and time.monotonic() < until:
        seen = np.asarray(ImageGrab.grab(xdisplay=display).convert("RGB"))
        found = (seen == picture[0, 0]).all(-1).sum()
    assert found == 100 * 120
    window._viewer.kill()  # as a display that goes away does
    window._viewer.wait()
    window.show(picture)
    window.show(picture)
    window.close()
    assert capsys.readouterr().err.count("the window was closed") == 1


@pytest.mark.slow
def test_a_live_episode_is_seen_and_the_same_one(display):
    lit, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.is_set():
            lit.append(int(np.asarray(ImageGrab.grab(xdisplay=display)).any(-1).sum()))

    words = (*FAKE, "env.eval.max_episode_steps=300", "env.eval.success_distance=0.01", "--random")
    assert play(*words, "--out", "still.mp4") == 0
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        assert play(*words, "--live", "--out", "live.mp4") == 0
    finally:
        ended.set()
        watcher.join()
    assert max(lit) > 100 * 100
    assert Path("live.mp4").read_bytes() == Path("still.mp4").read_bytes()


@pytest.mark.sim
@pytest.mark.slow
def test_the_expert_of_maniskill_is_seen(tmp_path):
    from embodied.envs.maniskill.rendering import check_vulkan

    try:
        check_vulkan()
    except RendererUnavailableError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "embodied.tools.play", "env=maniskill_pullcube", "--expert", "--out", "seen.mp4"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=560, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    said = numbers(done.stdout)
    assert said["success"] == "yes"
    frames = iio.imread(tmp_path / "seen.mp4")
    assert len(frames) == int(said["steps"]) + 1
    assert frames.std() > 10
    assert (frames[0] != frames[-1]).any()
