"""Which initial states the trainings behind some weights left out: of runs, demonstrations, exported folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied.evaluation.provenance import export_note, left_out_by
from embodied.lib.files import sealed


def run_of(path: Path, held_out: int, **runner: Any) -> dict[str, Any]:
    """Writes the configuration of a run, and returns it."""
    data = runner.pop("data", [])
    model = {key: runner.pop(key, None) for key in ("model_path", "lora_path")}
    config = {
        "runner": {"task_type": "embodied", "ckpt_path": None, **runner}, "actor": {"model": model},
        "protocol": {"held_out_states": held_out}, "data": {"train_data_paths": data},
    }  # fmt: skip
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return config


def test_all_training_behind_the_weights_must_have_left_the_states_out(tmp_path):
    def behind(*names: str, held_out: int = 10, **first: Any) -> bool | None:
        """Of runs that begin with each other's weights; the first is made with ``first``."""
        before, config = None, {}
        for name in names:
            config = run_of(tmp_path / name, held_out, **({"ckpt_path": before} if before else first))
            before = str(tmp_path / name / "checkpoints" / "000001")
        return left_out_by({**config, "runner": {**config["runner"], "ckpt_path": before}}, 10, trains=False)

    assert behind("a", "b") is True
    assert behind("c", "d", held_out=9) is False
    run_of(tmp_path / "seen", 0)
    assert behind("e", "f", ckpt_path=str(tmp_path / "seen" / "checkpoints" / "000001")) is False
    assert behind("g", model_path="weights/from/elsewhere") is None
    assert behind("h", ckpt_path="nowhere/checkpoints/000001") is None
    for name, held_out, said in (("held", 10, True), ("all", None, False)):
        (tmp_path / "demos" / name).mkdir(parents=True)
        facts = {"seed": 1} | ({"held_out_states": held_out} if held_out else {})
        (tmp_path / "demos" / name / "config.yaml").write_text(yaml.safe_dump({"demos": facts}), encoding="utf-8")
        assert behind(f"sft-{name}", task_type="sft", data=[str(tmp_path / "demos" / name)]) is said
    assert behind("sft-other", task_type="sft", data=["elsewhere"]) is None
    new = run_of(tmp_path / "new", 10)
    assert left_out_by(new, 10, trains=True) is True, "random weights have seen nothing"
    assert left_out_by(new, 0, trains=True) is None


def folder_of(path: Path, *held_out: int | None) -> str:
    """Writes what of an exported folder is read here: one training for each number."""
    trainings = [{"run": f"run-{number}", "held_out_states": count} for number, count in enumerate(held_out)]
    path.mkdir(parents=True)
    (path / "embodied.json").write_text(json.dumps(sealed({"source": {"trainings": trainings}})), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("network", "adapters", "own", "said"),
    [
        ([10], None, 10, True), ([30, 10], None, 20, True), ([10], None, 9, False), ([10, 9], None, 10, False),
        ([10, None], None, 10, None), ([9, None], None, 10, False), ([10], [10], 10, True), ([10], [9], 10, False),
        ([], None, 10, True),
    ],
)  # fmt: skip
def test_an_exported_folder_says_what_the_trainings_behind_it_left_out(tmp_path, network, adapters, own, said):
    """Its claim is that of the least training, and the run that begins with it cannot claim more."""
    made = {"model_path": folder_of(tmp_path / "network", *network)}
    made |= {"lora_path": folder_of(tmp_path / "adapters", *adapters)} if adapters else {}
    config = run_of(tmp_path / "run", own, **made)
    assert left_out_by(config, 10, trains=True) is said
    after = [one["held_out_states"] for one in export_note(tmp_path / "run" / "checkpoints" / "000001")]
    assert after == [*network, *(adapters or []), own]
    again = run_of(tmp_path / "next", 40, model_path=folder_of(tmp_path / "exported", *after))
    assert left_out_by(again, 10, trains=True) is said


def test_a_folder_that_does_not_say_it_is_not_known(tmp_path):
    older, damaged = Path(folder_of(tmp_path / "older", 10)), Path(folder_of(tmp_path / "damaged", 9))
    (older / "embodied.json").write_text(
        json.dumps(sealed({"source": {"run": "of an older version"}})), encoding="utf-8"
    )
    (damaged / "embodied.json").write_text(
        (damaged / "embodied.json").read_text(encoding="utf-8").replace("9", "10"), encoding="utf-8"
    )
    for name, path in (("a", older), ("b", damaged), ("c", tmp_path / "nowhere")):
        config = run_of(tmp_path / name, 10, model_path=str(path))
        assert left_out_by(config, 10, trains=True) is None
        assert left_out_by(config, 10, trains=False) is None
        assert [one["run"] for one in export_note(tmp_path / name / "checkpoints" / "000001")] == [None, name]
    elsewhere = tmp_path / "copied" / "checkpoints" / "000001"
    assert export_note(elsewhere) == [{"run": "copied", "held_out_states": None}], "without the run's folder"


def test_runs_that_name_each_other_end(tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        run_of(tmp_path / name, 10, ckpt_path=str(tmp_path / other / "checkpoints" / "000001"))
    found = export_note(tmp_path / "a" / "checkpoints" / "000001")
    assert [(one["run"], one["held_out_states"]) for one in found] == [(None, None), ("b", 10), ("a", 10)]
