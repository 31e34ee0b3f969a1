"""``embodied.tools.demos``, as a user starts it: what is recorded, in which order, and how it goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import warm

from embodied.data import reading
from embodied.data.demonstrations import Demonstration, FieldSelection, check_fit
from embodied.data.lerobot.writer import Writer
from embodied.data.samples import Samples
from embodied.errors import SpecMismatchError
from embodied.runtime.worker.expert import ExpertJob
from embodied.testing import FakeEnv
from embodied.tools import demos
from embodied.types import Start

pq = pytest.importorskip("pyarrow.parquet", exc_type=ImportError)
HERE = Path(__file__).parents[1]
ODD = "env.train._target_=odd_experts."
KEYS = ("+env.train.num_actions=8", "+env.eval.num_actions=8")


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def arguments(*overrides: str) -> list[str]:
    return [
        "env=fake",
        "episodes=6",
        "env.num_workers=1",
        "env.train.horizon=60",
        "--config-dir",
        str(HERE / "config"),
        *overrides,
    ]


def make(*overrides: str) -> int:
    return demos.main(arguments(*overrides))


def contents(folder: str) -> dict[str, bytes]:
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.name != ".lock"}


def attempts(folder: str = "demos/fake") -> list[int]:
    files = sorted(Path(folder, "meta/episodes").rglob("*.parquet"))
    return [pq.read_table(file)["attempt"][0].as_py() for file in files]


def recorded(folder: str = "demos/fake") -> list[Demonstration]:
    return list(reading.read(Path(folder), FieldSelection(FakeEnv().spec.cameras)).episodes)


def test_it_records_what_the_expert_did_and_saw(capsys):
    assert make() == 0
    assert "6 of 6 demonstrations are in demos/fake" in capsys.readouterr().out
    episodes = recorded()
    assert len(episodes) == 6
    row = pq.read_table("demos/fake/meta/episodes/chunk-000/file-004.parquet").to_pylist()[0]
    start = Start(FakeEnv().spec.tasks.index(row["tasks"][0]), row["init_state_id"], row["seed"])
    env = FakeEnv(horizon=60, success_distance=0.3)
    env.reset(start)
    for t, action in enumerate(episodes[4].actions):
        assert np.array_equal(action, next(env.expert()))
        assert np.array_equal(episodes[4].pictures(t), [env.picture(start, t, camera) for camera in range(2)])
        state = {"images": np.zeros((2, 16, 16, 3), np.uint8), "state": np.zeros(8, np.float32)}
        env.observe(state)
        assert np.array_equal(episodes[4].fields["state"][t], state["state"])
        result = env.step(action)
    assert result.success, "the last action is the one that solved it"
    made = json.loads(Path("demos/fake/meta/info.json").read_text(encoding="utf-8"))["embodied"]
    assert made["env"]["_target_"] == "embodied.testing.FakeEnv"
    assert (made["seed"], made["noise_std"], made["max_steps"]) == (1234, 0, 60)


def test_only_successes_are_kept_in_the_order_of_the_starts_whatever_the_workers():
    for folder, workers in (("one", 1), ("three", 3)):
        assert make(f"{ODD}Moody", f"demos.path={folder}", f"env.num_workers={workers}") == 0
    assert contents("one") == contents("three")
    starts = [
        file["init_state_id"][0].as_py()
        for file in map(pq.read_table, sorted(Path("one/meta/episodes").rglob("*.parquet")))
    ]
    assert {start % 2 for start in starts} == {0}
    assert attempts("one") == sorted(attempts("one"))
    assert attempts("one")[-1] > 5, "some attempts failed"


@pytest.mark.parametrize(("how", "said"), [("exit", "status 7"), ("raise", "failed once"), ("hang", "did not answer")])
def test_an_attempt_whose_worker_failed_is_redone(capsys, how, said):
    """With noise: the numbers of the attempt are drawn anew from their beginning."""
    assert make("noise_std=0.3", "demos.path=usual") == 0
    once = (f"{ODD}FailsOnce", f"+env.train.marker={Path('marker').absolute()}", f"+env.train.how={how}")
    capsys.readouterr()
    assert make("noise_std=0.3", "demos.path=redone", *once, "env.num_workers=2", "env.step_timeout_s=1") == 0
    out = capsys.readouterr().out
    assert Path("marker").exists()
    assert said in out
    assert "1 of env.max_worker_restarts 3 in a row" in out
    usual, redone = contents("usual"), contents("redone")
    for folder in ("data", "meta/episodes"):
        assert {name: file for name, file in usual.items() if name.startswith(folder)} == {
            name: file for name, file in redone.items() if name.startswith(folder)
        }
    assert Path("redone.logs/worker-00.log").exists()


def test_forked_workers_record_the_same(capsys):
    assert make("demos.path=spawned", "env.num_workers=2") == 0
    assert make("demos.path=forked", "env.num_workers=2", "env.start_method=forkserver") == 0
    assert contents("forked") == contents("spawned")
    assert Path("forked.logs/fork-server.log").exists()


def test_workers_may_have_an_interpreter_of_their_own():
    assert make("demos.path=usual") == 0
    assert make("demos.path=other", f"env.python={sys.executable}") == 0
    assert contents("other") == contents("usual")


def test_more_episodes_go_on_where_it_stopped():
    assert make("demos.path=whole") == 0
    assert make("demos.path=parts", "episodes=2") == 0
    assert make("demos.path=parts") == 0
    assert contents("parts") == contents("whole")
    assert make("demos.path=parts") == 0
    assert contents("parts") == contents("whole"), "what is done stays done"


def test_another_env_or_noise_in_the_same_folder_is_refused(capsys):
    assert make("episodes=1") == 0
    assert make("noise_std=0.5") == 2
    assert "demos.noise_std: 0.0 there, 0.5 now" in capsys.readouterr().err
    assert make("env.train.size=8", "env.eval.size=8") == 2
    assert "env.train.size" in capsys.readouterr().err


def test_noise_is_executed_and_not_recorded():
    assert make("noise_std=0.3", "demos.path=noisy") == make("demos.path=clean") == 0
    noisy, clean = recorded("noisy"), recorded("clean")
    far = max(range(len(clean)), key=lambda number: len(clean[number]))
    assert np.array_equal(noisy[far].actions[0], clean[far].actions[0]), "the first state is the same"
    assert not np.array_equal(noisy[far].fields["state"][1], clean[far].fields["state"][1])
    assert np.array_equal(noisy[far].actions[:, 2:], np.zeros_like(noisy[far].actions[:, 2:])), "the expert's own"
    for t in range(len(noisy[far])):
        offset = noisy[far].fields["state"][t, :2]
        assert np.allclose(noisy[far].actions[t, :2], np.clip(10 * offset, -1, 1), atol=1e-5)


def test_mistakes_are_recorded_when_the_expert_has_ended_them():
    careless = (f"{ODD}Careless", "demos.mistakes=0.7", "env.train.success_distance=0.02", "episodes=12")
    for folder, workers in (("one", 1), ("two", 2)):
        assert make(*careless, f"demos.path={folder}", f"env.num_workers={workers}") == 0
    assert contents("one") == contents("two")
    files = sorted(Path("one/data").rglob("*.parquet"))
    ends = [pq.read_table(file)["next.success"].to_pylist()[-1] for file in files]
    job = ExpertJob(1234, 0.0, 0.7)
    assert ends == [not job.mistaken(number) for number in attempts("one")]
    assert 2 < sum(ends) < 10
    rows = [pq.read_table(file) for file in sorted(Path("one/meta/episodes").rglob("*.parquet"))]
    odd = [row["init_state_id"][0].as_py() % 2 == 1 for row in rows]
    assert any(odd)
    assert not any(wrong for wrong, end in zip(odd, ends, strict=True) if not end), "the step limit ended those"
    for episode, end in zip(recorded("one"), ends, strict=True):
        wrong = np.tile([-1.0, *[0.0] * (episode.actions.shape[1] - 1)], (3, 1))
        assert end or np.array_equal(episode.actions, wrong)
    made = json.loads(Path("one/meta/info.json").read_text(encoding="utf-8"))["embodied"]
    assert made["mistakes"] == 0.7


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ([f"{ODD}NoExpert"], "odd_experts.NoExpert has no expert"),
        ([f"{ODD}ExpertElsewhere"], "it has one for PickFake and PushFake"),
        ([f"{ODD}Dies"], "ended with status 7"),
        ([f"{ODD}Raises"], "this expert knows nothing"),
        ([f"{ODD}NotThisTask"], "choose another task"),
        (["env.train.success_distance=0", "env.train.horizon=1", "demos.max_attempts=3"], "solved 0 of 3 starts"),
        (["env.train.fault=prepare_exception"], "the fake env was told to fail in prepare"),
        (["demos.mistakes=0.5"], "demos.mistakes is 0.5, and the expert of embodied.testing.FakeEnv makes none"),
        (["env.python=/no/such/python"], "/no/such/python"),
        (["demos.episodes=0"], "demos.episodes = 0"),
        (["demos.episode=3"], "Did you mean 'episodes'?"),
    ],
)
def test_what_cannot_work_is_explained(capsys, overrides, text):
    assert make(*overrides) == 2
    error = capsys.readouterr().err
    assert text in error
    assert "fix: " in error


def test_a_dry_run_writes_nothing(capsys):
    assert make("runner.dry_run=true") == 0
    assert "6 that succeed, of at most 60 control steps" in capsys.readouterr().out
    assert list(Path().iterdir()) == []


def test_episodes_before_a_failure_stay():
    assert make(f"{ODD}Dies") == 2
    assert attempts() == [0, 1]


def test_a_signal_while_the_statistics_are_written_waits_for_them(monkeypatch):
    finish = Writer.finish

    def interrupted(self: Writer) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        finish(self)

    monkeypatch.setattr(Writer, "finish", interrupted)
    assert make("episodes=1") == 143, "all was done, and what follows in the shell is still to stop"
    assert "action" in json.loads(Path("demos/fake/meta/stats.json").read_text(encoding="utf-8"))


def test_sigterm_leaves_whole_episodes_and_no_worker():
    slow = ("env.train.step_s=0.01", "episodes=500", "env.num_workers=2")
    with warm.Program(["-m", "embodied.tools.demos", *arguments(*slow)]) as process:
        deadline = time.monotonic() + 60
        while not Path("demos/fake/meta/episodes/chunk-000/file-001.parquet").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
        process.send_signal(signal.SIGTERM)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 143
    assert re.fullmatch(r"SIGTERM: stopping within 20 s, .*\n", error)
    assert f"{len(recorded())} of 500 demonstrations" in out
    assert len(children) >= 2
    deadline = time.monotonic() + 60
    while [pid for pid in children if os.path.exists(f"/proc/{pid}")]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


KINDS = [{"num_actions": "8"}, {"pictures": "false"}, {"num_actions": "8", "pictures": "false"}]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_envs_of_every_kind_are_demonstrated_and_read_again(kind):
    options = [f"+env.{side}.{name}={value}" for side in ("train", "eval") for name, value in kind.items()]
    assert make("demos.path=kind", "env.train.state_dim=2", "env.eval.state_dim=2", *options) == 0
    env = FakeEnv(
        horizon=60, success_distance=0.3, state_dim=2, pictures="pictures" not in kind,
        num_actions=8 if "num_actions" in kind else None,
    )  # fmt: skip
    found = reading.read(Path("kind"), FieldSelection(env.spec.cameras))
    check_fit(found, env.spec, {})
    row = pq.read_table("kind/meta/episodes/chunk-000/file-005.parquet").to_pylist()[0]
    start = Start(env.spec.tasks.index(row["tasks"][0]), row["init_state_id"], row["seed"])
    episode = found.episodes[5]
    env.reset(start)
    for t, action in enumerate(episode.actions):
        assert (action.dtype, action.shape) == (env.spec.action.neutral().dtype, env.spec.action.neutral().shape)
        assert np.array_equal(action, next(env.expert()))
        result = env.step(action)
        if "pictures" in kind:
            assert episode.pictures is None
        else:
            assert np.array_equal(episode.pictures(t)[0, ..., 1], np.full((16, 16), t))
    assert result.success
    samples = Samples(found.episodes, 4).batch(np.array([0, 1]))
    assert samples["actions"].shape == (2, *env.spec.action.field(4).shape)
    assert samples["actions"].dtype == env.spec.action.field(4).dtype
    assert ("images" in samples) == ("pictures" not in kind)


def test_demonstrations_of_another_kind_of_action_are_refused():
    assert make("demos.path=numbers", "episodes=1") == make("demos.path=keys", *KEYS) == 0
    for path, spec, text in (
        ("numbers", FakeEnv(num_actions=8).spec, "have 7 numbers an action, and the env takes one of 8 actions"),
        ("keys", FakeEnv().spec, "have one of several actions a step, and the env takes 7"),
        ("keys", FakeEnv(num_actions=1).spec, r"have an action \d, and the env's are 0 to 0"),
    ):
        with pytest.raises(SpecMismatchError, match=text):
            check_fit(reading.read(Path(path), FieldSelection(spec.cameras)), spec, {})


def test_no_noise_is_added_to_discrete_actions(capsys):
    assert make("noise_std=0.1", *KEYS) == 2
    assert "takes one of 8 actions, to which no noise can be added" in capsys.readouterr().err


def test_help_names_the_entry(capsys):
    with pytest.raises(SystemExit) as done:
        demos.main(["--help"])
    assert done.value.code == 0
    assert "usage: python -m embodied.tools.demos" in capsys.readouterr().out


def test_a_state_that_is_not_finite_is_not_recorded(capsys):
    assert make("env.train._target_=broken_envs.StateIsNanLater") != 0
    assert "number 1 of the observation's state is -inf after" in " ".join(capsys.readouterr().err.split())
