"""What is in the files after crashes and resumes."""

import errno
import io
import json
import os

import numpy as np
import pytest
import torch

from embodied.errors import ConfigError, RunFolderError, UnknownNameError
from embodied.observe.trackers import trackers
from embodied.observe.trackers.services import SERVICES
from embodied.observe.trackers.trackers import JsonlTracker, Trackers, make_trackers
from embodied.schema.keys.sections.runner import TRACKERS, LoggerConfig


def write(path, steps, **kwargs):
    tracker = JsonlTracker(path, **kwargs)
    for step in steps:
        tracker.log(step, {"train/loss": step / 4})
    tracker.close()


def steps_of(path):
    return [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_one_line_a_call_is_on_disk_at_once(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    tracker = JsonlTracker(path)
    tracker.log(3, {"train/loss": np.float32(0.25), "rollout/episodes": 8, "train/lr": torch.tensor(0.5)})
    assert (
        path.read_text(encoding="utf-8") == '{"step": 3, "train/loss": 0.25, "rollout/episodes": 8, "train/lr": 0.5}\n'
    )
    tracker.close()


def test_numbers_that_json_does_not_have_are_null(tmp_path):
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    tracker.log(1, {"train/loss": float("nan"), "train/grad_norm": float("inf")})
    tracker.close()
    assert json.loads((tmp_path / "m.jsonl").read_text(encoding="utf-8")) == {
        "step": 1,
        "train/loss": None,
        "train/grad_norm": None,
    }


def test_resuming_drops_later_steps_and_each_step_is_there_once(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, [1, 2, 3, 4, 5])
    write(path, [4, 5, 6], resume_step=3)
    assert steps_of(path) == [1, 2, 3, 4, 5, 6]
    write(path, [1], resume_step=0)
    assert steps_of(path) == [1]


def test_without_a_step_to_resume_from_lines_stay(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, [1, 2])
    write(path, [7])
    assert steps_of(path) == [1, 2, 7]


@pytest.mark.parametrize(
    "torn", ['{"step": 4, "train/lo', '{"step"', "4", '{"loss": 1}', '{"step": null}', "\x00\x00", "é"]
)
@pytest.mark.parametrize("resume_step", [3, None])
def test_a_torn_last_line_is_dropped(tmp_path, torn, resume_step):
    path = tmp_path / "m.jsonl"
    write(path, [1, 2, 3])
    with path.open("ab") as file:
        file.write(torn.encode()[:-1] if torn == "é" else torn.encode())
    write(path, [4], resume_step=resume_step)
    assert steps_of(path) == [1, 2, 3, 4]
    assert [p.name for p in tmp_path.iterdir()] == ["m.jsonl"]


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"cannot write the metrics to (.|\n)*runner\.logger\.log_path"):
        JsonlTracker(tmp_path / "file" / "m.jsonl")
    with pytest.raises(RunFolderError):
        make_trackers(["tensorboard"], tmp_path / "file")


class FullDisk(io.StringIO):
    def flush(self):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said(tmp_path):
    tracker = JsonlTracker(tmp_path / "m.jsonl")
    tracker.close()
    tracker._file = FullDisk()
    with pytest.raises(RunFolderError, match="No space left on device"):
        tracker.log(1, {"train/loss": 0.0})


class Spy:
    def __init__(self, fails: bool = False) -> None:
        self.logged, self.closed, self.fails = [], False, fails

    def log(self, step, metrics):
        self.logged.append((step, dict(metrics)))

    def close(self):
        self.closed = True
        if self.fails:
            raise OSError("gone")


def test_trackers_hand_on_and_refuse_what_is_not_documented():
    spies = [Spy(), Spy()]
    both = Trackers(spies)
    both.log(1, {"train/loss": 2.0})
    with pytest.raises(ValueError, match="undocumented metric 'train/loos'"):
        both.log(2, {"train/loos": 2.0})
    assert [spy.logged for spy in spies] == [[(1, {"train/loss": 2.0})]] * 2
    with pytest.raises(ValueError, match="undocumented"):
        Trackers().log(1, {"nonsense": 1.0})


def test_all_trackers_are_closed_also_when_one_fails():
    spies = [Spy(), Spy(fails=True), Spy()]
    with pytest.raises(OSError, match="gone"):
        Trackers(spies).close()
    assert [spy.closed for spy in spies] == [True] * 3


def test_the_id_of_a_run_is_handed_back_to_the_tracker_that_gave_it(tmp_path, monkeypatch):
    class Service(Spy):
        def __init__(self, run_id):
            super().__init__()
            self.run_id = run_id or "new"

    monkeypatch.setitem(trackers._BACKENDS, "service", lambda folder, resume_step, run_id: Service(run_id))
    first = make_trackers(["jsonl", "service"], tmp_path)
    assert first.run_ids == {"service": "new"}
    again = make_trackers(["jsonl", "service"], tmp_path, 3, {"service": "id 7", "gone": "id 8"})
    assert again.run_ids == {"service": "id 7"}
    again.log(4, {"train/loss": 1.0})
    assert again._named["service"].logged == [(4, {"train/loss": 1.0})]
    for made in (first, again):
        made.close()


def test_an_unknown_backend_opens_nothing(tmp_path):
    with pytest.raises(UnknownNameError, match=r"Did you mean 'tensorboard'(.|\n)*runner\.logger\.logger_backends"):
        make_trackers(["jsonl", "tensorbord"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Own(Spy):
    """What a user names by its dotted path."""

    def __init__(self, folder, resume_step, run_id):
        super().__init__()
        self.given, self.run_id = (folder, resume_step, run_id), "own id"


def one_argument(folder):
    return Spy()


def test_a_class_of_the_user_s_is_called_with_what_trackers_need(tmp_path):
    name = f"{__name__}.Own"
    made = make_trackers(["jsonl", name], tmp_path, 3, {name: "id 7"})
    assert made._named[name].given == (tmp_path, 3, "id 7")
    assert made.run_ids == {name: "own id"}
    made.log(4, {"train/loss": 1.0})
    made.close()
    assert (made._named[name].logged, made._named[name].closed) == ([(4, {"train/loss": 1.0})], True)


def test_a_class_that_cannot_be_imported_opens_nothing(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot import 'no_such_module\.Tracker'"):
        make_trackers(["jsonl", "no_such_module.Tracker"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module.Tracker", r"logger_backends: cannot import 'no_such_module\.Tracker'"),
        (f"{__name__}.Missing", "cannot import"),
        (f"{__name__}.one_argument", r"one_argument cannot be called with \(folder, resume_step, run_id\)"),
        (f"{__name__}.__doc__", "cannot be called"),
    ],
)
def test_what_cannot_be_a_tracker_is_refused_with_the_configuration(name, says):
    with pytest.raises(ConfigError, match=says):
        LoggerConfig(log_path="run", logger_backends=["jsonl", name])


def test_the_configuration_takes_ours_and_the_user_s():
    names = [*TRACKERS, f"{__name__}.Own"]
    assert LoggerConfig(log_path="run", logger_backends=names).logger_backends == names
    assert set(TRACKERS) == {*trackers._BACKENDS, *SERVICES}


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for values, resume_step in (([1.0, 2.0, 3.0], None), ([20.0, 30.0, 40.0], 1)):
        trackers = make_trackers(["jsonl", "tensorboard", "jsonl"], tmp_path, resume_step)
        for step, value in enumerate(values, start=1 if resume_step is None else resume_step + 1):
            trackers.log(step, {"train/loss": value})
        trackers.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    # The first run logged 1, 2, 3 for steps 1..3; the second went on after step 1 with 20, 30, 40 for steps 2..4.
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 1.0), (2, 20.0), (3, 30.0), (4, 40.0)]
    assert steps_of(tmp_path / "metrics.jsonl") == [1, 2, 3, 4]
