"""Files of TRL's users: Python scripts that are read and never run, their rewards, and what accelerate starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied.errors import ConfigError
from embodied.migrate import Migration, translate
from embodied.migrate import migrate as migrate_and_try
from embodied.migrate.trl.launch import with_processes
from embodied.migrate.trl.script import read_script
from embodied.schema.others.translation import Unresolved
from embodied.tools import migrate as tool

BEGIN = "from trl import GRPOConfig, GRPOTrainer\n"
REWARDS = """
import math
from pathlib import Path

from trl import GRPOConfig, GRPOTrainer

SCALE = 2.0
UNUSED = Path("never")


def scaled(number):
    return SCALE * math.floor(number)


def short(completions, **columns):
    return [-scaled(len(one)) for one in completions]


raise SystemExit("a training script is not run")
GRPOTrainer(model="m", reward_funcs=[short], args=GRPOConfig(learning_rate=1e-5), train_dataset=None)
"""


def migrate(theirs: dict[str, Any], system: str, devices: int) -> Migration:
    """Without the trial, which takes a second and changes nothing of what is looked at here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translate, "attempt", lambda *given: None)
        return migrate_and_try(theirs, system, devices=devices)


def keys(text: str) -> dict[str, Any]:
    return read_script(BEGIN + text, "train.py")[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("GRPOConfig(beta=0.1)", 0.1),
        ("B = 0.1\nGRPOConfig(beta=B)", 0.1),
        ("A = 4\nB = 2 * A ** 2\ndef main():\n    GRPOConfig(beta=B)", 32),
        ("B = 1\nB = 2\nGRPOConfig(beta=B)\nB = 3", 2),
        ("def main():\n    B = 5\n    GRPOConfig(beta=B)\nB = 7", 5),
        ("common = dict()\nc = {'beta': -1.5}\nGRPOConfig(**c)", -1.5),
        ("N = 3\nGRPOConfig(beta=f'{N}-x')", "3-x"),
        ("if __name__ == '__main__':\n    B = 4\n    GRPOConfig(beta=B)", 4),
        ("c = GRPOConfig(beta=1)\nc.beta = 2", 2),
        ("import trl\ntrl.GRPOConfig(beta=9)", 9),
    ],
)
def test_a_value_that_stands_in_the_script_is_taken(text, value):
    assert keys(text)["beta"] == value
    assert not isinstance(keys(text)["beta"], Unresolved)


@pytest.mark.parametrize(
    "text",
    [
        "GRPOConfig(beta=float('0.1'))",
        "def main(B=0.1):\n    GRPOConfig(beta=B)",
        "B = 1\nif input():\n    B = 2\nGRPOConfig(beta=B)",
        "for B in (1, 2):\n    GRPOConfig(beta=B)",
        "try:\n    B = 1\nexcept OSError:\n    B = 2\nGRPOConfig(beta=B)",
        "B = 1\nB += 1\nGRPOConfig(beta=B)",
        "def f():\n    B = 1\nGRPOConfig(beta=B)",
        "B = 1\ndef main():\n    GRPOConfig(beta=B)\nB = 2",
        "GRPOConfig(beta=9 ** 9 ** 9)",
        "import os\nGRPOConfig(beta=os.environ['BETA'])",
    ],
)
def test_a_value_that_only_a_run_knows_is_none(text):
    value = keys(text)["beta"]
    assert isinstance(value, Unresolved), value
    found = migrate({"beta": value}, "trl", devices=0)
    assert "algorithm.kl_beta" in found.open
    assert "write its value" in next(note.why for note in found.notes if note.key == "beta")


def test_a_config_that_a_command_line_makes_says_what_to_do():
    with pytest.raises(ConfigError, match="no call of GRPOConfig") as refused:
        keys("args = parse()\nGRPOTrainer('m', None, args)")
    assert "YAML" in refused.value.remedy


def test_data_sets_are_files_names_on_the_hub_or_made_by_code():
    begin = "from datasets import load_dataset\n"
    said = keys(
        begin + "d = load_dataset('owner/x', 'main')\nd = d['train']\n"
        "GRPOTrainer('m', 'owner/judge', GRPOConfig(), d.map(f), load_dataset('csv', data_files='e.csv'))"
    )
    expected = {
        "model_name_or_path": "m", "reward_model_name_or_path": "owner/judge", "dataset_name": "owner/x",
        "dataset_config": "main", "dataset_train_split": "train", "train_dataset.map": "d.map(f)",
        "eval_dataset_name": ["e.csv"],
    }  # fmt: skip
    assert said == expected
    found = migrate(said, "trl", devices=0)
    assert found.settings["reward.use_reward_model"] is True
    assert found.settings["env.train.reward_coef"] == 0.0, "the reward model alone judges"


def test_rewards_of_a_script_become_a_file_without_the_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train-it.py").write_text(REWARDS, encoding="utf-8")
    assert tool.main(["train-it.py", "--from", "trl", "--out", "mine", "--processes", "4"]) == 0
    text = Path("mine/train_it_rewards.py").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(text, "rewards", "exec"), names)
    assert names["short"](["abc"]) == [-6.0]
    assert {"UNUSED", "GRPOTrainer", "Path"} & set(names) == set()
    made = yaml.safe_load(Path("mine/experiment/train-it.yaml").read_text(encoding="utf-8"))
    (verifier,) = made["env"]["train"]["verifier"]
    assert verifier == {"name": "custom", "path": "mine/train_it_rewards.py", "function": "short"}
    said = capsys.readouterr()
    assert "torchrun --standalone --nproc-per-node=4 -m embodied.train --config-dir mine" in said.out
    assert "look at it" in said.err


def test_without_a_folder_the_reward_of_a_script_has_to_be_decided(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(REWARDS, encoding="utf-8")
    assert "env.train.verifier" in migrate(tool.read(file), "trl", devices=0).open


@pytest.mark.parametrize(
    ("theirs", "given", "count"),
    [
        ({}, None, None),
        ({"accelerate_config": "zero3"}, None, 8),
        ({"accelerate_config": "zero3", "num_processes": 2}, None, 2),
        ({"accelerate_config": "zero3"}, 5, 5),
        ({"accelerate_config": "own.yaml"}, None, 6),
        ({"accelerate_config": "gone.yaml"}, None, None),
    ],
)
def test_accelerates_file_says_how_many_processes_there_are(theirs, given, count, tmp_path):
    (tmp_path / "own.yaml").write_text("num_processes: 6\nnum_machines: 1\n", encoding="utf-8")
    assert with_processes(theirs, tmp_path, given).get("num_processes") == count


def test_processes_of_other_systems_stand_in_their_files(tmp_path, capsys):
    file = tmp_path / "x.yaml"
    file.write_text("runner: {max_epochs: 1}\n", encoding="utf-8")
    assert tool.main([str(file), "--from", "rlinf", "--processes", "2"]) == 2
    assert "--processes is for TRL" in capsys.readouterr().err


def test_batches_that_come_out_even_in_no_iteration_stay_open():
    sizes = {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 1, "num_generations": 4}
    found = migrate(sizes, "trl", devices=0)
    assert "comes out even in no number of prompts" in found.open["data.rollout_batch_size"]
    assert found.settings["algorithm.group_size"] == 4
    even = migrate({**sizes, "steps_per_generation": 2}, "trl", devices=0)
    assert (even.settings["data.rollout_batch_size"], even.settings["actor.global_batch_size"]) == (3, 6)


@pytest.mark.parametrize(
    ("theirs", "key"),
    [
        ({"loss_type": "vespo"}, "algorithm.loss_type"),
        ({"scale_rewards": "batch"}, "algorithm.adv_type"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "algorithm.adv_type"),
        ({"loss_type": "cispo"}, "algorithm.clip_ratio_high"),
        ({"reward_funcs": ["reasoning_accuracy_reward"]}, "env.train.verifier"),
        ({"reward_funcs": ["accuracy_reward"], "reward_weights": [1, 2]}, "env.train.verifier"),
    ],
)
def test_what_is_trained_and_is_not_here_stays_open(theirs, key):
    assert key in migrate(theirs, "trl", devices=0).open


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("delta", 1.1), ("optim", "adafactor"), ("lr_scheduler_type", "polynomial"), ("sync_ref_model", True),
        ("mask_truncated_completions", True), ("min_p", 0.1), ("top_entropy_quantile", 0.5), ("use_dora", True),
        ("generation_kwargs", {"num_beams": 4}), ("use_adaptive_entropy", True), ("neftune_noise_alpha", 5),
    ],
)  # fmt: skip
def test_what_changes_a_number_and_is_not_here_is_refused_and_named(key, value):
    found = migrate({key: value, "beta": 0.1, "epsilon": 0.2}, "trl", devices=0)
    (note,) = [note for note in found.notes if note.key.startswith(key)]
    assert (note.how, note.settings) == ("refused", {})
    assert note.why
