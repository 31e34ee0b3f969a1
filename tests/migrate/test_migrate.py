"""Configurations of RLinf, verl, SimpleVLA-RL, ROLL and Cosmos-RL become experiments that a run would begin with."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied import cli
from embodied.errors import ConfigError
from embodied.migrate import SYSTEMS, Migration, migrate
from embodied.migrate.report import to_do
from embodied.schema import AlgorithmConfig, episodes_per_iteration
from embodied.schema.compose.compose import compose
from embodied.schema.keys.paths import at
from embodied.schema.others import tables
from embodied.schema.others.translation_rules import translate_key
from embodied.tools import migrate as tool

HERE = Path(__file__).parents[1] / "migrate"
TINY = ("model=openvla_oft_tiny",)
TEXT = ("actor.model.model_path=x",)


def migrated(name: str, system: str, *given: str) -> Migration:
    return migrate(tool.read(HERE / name), system, given)


def note(found: Migration, key: str) -> Any:
    (only,) = [one for one in found.notes if one.key == key]
    return only


def test_rlinfs_libero_10():
    found = migrated("rlinf_libero_10.yaml", "rlinf", *TINY)
    assert found.remaining == ""
    assert found.groups == {"env": "libero_10", "model": "openvla_oft"}
    wanted = {
        "algorithm.group_size": 8, "algorithm.adv_type": "grpo", "algorithm.loss_type": "ppo",
        "algorithm.sampling_params.temperature": 1.6, "algorithm.clip_ratio_high": 0.28, "env.train.total_num_envs": 32,
        "actor.optim.lr": 2.0e-5, "actor.fsdp_config.sharding_strategy": "no_shard", "runner.save_interval": 40,
        "actor.model.lora_rank": 32, "runner.seed": 1234, "algorithm.rollout_epoch": 8,
    }  # fmt: skip
    assert {key: found.settings.get(key) for key in wanted} == wanted
    assert note(found, "runner.logger.log_path").value == "../results/libero_10", "references are resolved"
    assert [one.key for one in found.notes if one.how == "unknown"] == []
    assert note(found, "algorithm.n_chunk_steps").how != "unknown"


def test_what_only_the_user_can_give_is_said_and_the_rest_is_tried(tmp_path):
    found = migrated("rlinf_libero_10.yaml", "rlinf")
    assert found.remaining.startswith("actor.model.model_path is not set")
    assert note(found, "runner.seq_length").how == "refused", "it is for texts"
    assert "actor.model.model_path" not in found.settings
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "theirs.yaml").write_text(found.as_yaml(), encoding="utf-8")
    config = compose(["experiment=theirs", "actor.model.model_path=x"], "train", [str(tmp_path)]).config
    assert config.actor.model.target == "embodied.models.openvla_oft.build_policy"


def test_rlinfs_math_with_what_only_megatron_does():
    found = migrated("rlinf_math.yaml", "rlinf", *TEXT)
    assert found.remaining == ""
    assert found.groups == {"env": "math", "model": "causal_lm"}
    assert (found.settings["algorithm.clip_ratio_low"], found.settings["algorithm.clip_ratio_high"]) == (0.2, 0.2)
    assert found.settings["actor.global_batch_size"] == 8
    assert "no file at train.jsonl" in found.elsewhere
    assert "no file at train.jsonl" in "".join(to_do(found, "rlinf"))
    assert (
        "algorithm.sampling_params.top_k" not in found.settings
        or found.settings["algorithm.sampling_params.top_k"] == 0
    )
    assert "no layer is split over devices" in note(found, "actor.model.tensor_model_parallel_size").why
    assert note(found, "actor.training_backend").how == "refused"
    assert note(found, "algorithm.sampling_params.max_new_tokens").value == 2048 - 256
    assert "write its value" in note(found, "runner.output_dir").why


@pytest.mark.parametrize(
    ("name", "system", "given", "wanted"),
    [
        ("verl_math.sh", "verl", TEXT, {"algorithm.group_size": 4, "actor.global_batch_size": 32,
                                        "runner.max_epochs": None, "algorithm.kl_beta": 0.001,
                                        "runner.save_interval": 20}),
        ("simplevla_libero.sh", "verl", TINY, {"actor.optim.lr": 5e-6, "algorithm.clip_ratio_high": 0.28,
                                               "actor.offload_optimizer": True, "actor.offload_reference": True,
                                               "actor.offload_grad": True, "algorithm.rollout_epoch": 8,
                                               "env.train.total_num_envs": 8, "algorithm.group_size": 8}),
        ("roll_math.yaml", "roll", TEXT, {"algorithm.group_size": 4, "actor.global_batch_size": 32, "runner.seed": 42}),
        ("cosmos_math.toml", "cosmos-rl", TEXT, {"algorithm.group_size": 4, "algorithm.clip_ratio_high": 0.28,
                                                 "runner.save_interval": 10}),
    ],
)  # fmt: skip
def test_files_of_the_others(name, system, given, wanted):
    found = migrated(name, system, *given)
    assert found.remaining == ""
    assert {key: found.settings.get(key) for key in wanted} == wanted
    assert found.groups["env"] == ("libero_10" if "libero" in name else "math")


GSM8K = [
    {
        "data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": f"{n}+1?"}],
        "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
    }
    for n in range(50)
]  # fmt: skip
PPO = """
batch=$((4 * 2))
rows="${DATA:-${PWD}/data}"
python3 -m verl.trainer.main_ppo \\
    data.train_files=$rows/train.jsonl data.val_files="${rows}/test.jsonl" data.train_batch_size=${batch} \\
    data.max_response_length=$((batch * 4 + 2)) \\
    actor_rollout_ref.model.path=${MODEL_PATH:-model} actor_rollout_ref.actor.ppo_mini_batch_size=4 \\
    actor_rollout_ref.rollout.name=vllm critic.model.path=model critic.optim.lr=1e-5 \\
    algorithm.filter_groups.metric=acc trainer.total_epochs=3 2>&1 | tee log
"""


def test_a_script_of_verl_means_verls_defaults_too(tmp_path, monkeypatch):
    """Scripts of verl say what differs from its defaults alone, and its data say columns and verifier."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name, rows in (("train", GSM8K), ("test", GSM8K[:7])):
        (tmp_path / "data" / f"{name}.jsonl").write_text(
            "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
        )
    (tmp_path / "ppo.sh").write_text(PPO, encoding="utf-8")
    found = migrate(tool.read(tmp_path / "ppo.sh"), "verl")
    assert found.remaining == ""
    assert [one.key for one in found.notes if one.how == "unknown"] == []
    wanted = {
        "data.train_data_paths": [f"{tmp_path}/data/train.jsonl"], "algorithm.sampling_params.max_new_tokens": 34,
        "actor.model.model_path": "model", "algorithm.adv_type": "gae", "algorithm.group_size": 1,
        "algorithm.reward_type": "token_level", "algorithm.gamma": 1.0, "algorithm.clip_ratio_high": 0.2,
        "actor.model.is_lora": False, "actor.model.value_head": True, "rollout.backend": "native",
        "actor.optim.value_lr": 1e-5, "actor.global_batch_size": 4, "data.answer_key": "reward_model.ground_truth",
        "runner.max_epochs": 3 * (50 // 8), "env.eval.episodes_per_task": 7,
        "env.train.verifier": [{"name": "gsm8k", "strict": True}],
    }  # fmt: skip
    assert {key: found.settings.get(key) for key in wanted} == wanted
    epochs = {"runner": {"max_epochs": 3}}
    data = {"train_data_paths": [str(tmp_path / "data/train.jsonl")], "rollout_batch_size": 8}
    of_rlinf = [migrate(theirs, "rlinf").settings["runner.max_epochs"] for theirs in (epochs, {**epochs, "data": data})]
    assert of_rlinf == [3, 3 * (50 // 8)], "an epoch of RLinf is an iteration of a robot, and a pass over problems"


@pytest.mark.parametrize(
    ("batch", "samples", "rounds", "slots"),
    [("64", "8", 64, 8), (4, 2, 1, 8), (5, 2, 5, 2), (3, None, 3, 8), (6, 16, 12, 8)],
)
def test_simplevlas_starts_of_an_iteration(batch, samples, rounds, slots):
    """rollout_epoch · total_num_envs / group_size are as many starts as they say, each a whole group."""
    theirs = {"data.task_suite_name": "libero_10", "data.n_samples": samples}
    (row,) = tables.find("data.train_batch_size", ["verl"])
    found = translate_key(row, batch, theirs.get)
    assert found.settings == {"algorithm.rollout_epoch": rounds, "env.train.total_num_envs": slots}
    group = int(samples or AlgorithmConfig().group_size)
    assert rounds * slots == int(batch) * group
    settings = [f"{key}={value}" for key, value in {**found.settings, "algorithm.group_size": group}.items()]
    config = compose(["env=libero_10", *TINY, *settings], "train").config
    assert episodes_per_iteration(config) // config.algorithm.group_size == int(batch)


def test_prompts_of_texts_stay_prompts():
    (row,) = tables.find("data.train_batch_size", ["verl"])
    for get in ({}.get, lambda key: None):
        assert translate_key(row, 64, get).settings == {"data.rollout_batch_size": 64}


def test_rlinfs_switch_for_host_memory_says_what_stays():
    found = migrate({"actor": {"enable_offload": True}}, "rlinf", ("env=fake", "model=fake"))
    assert found.settings == {"actor.enable_offload": True}
    assert "weights stay" in note(found, "actor.enable_offload").why


LONG = [pytest.param(one, marks=pytest.mark.slow) for one in SYSTEMS if one != "roll"]


@pytest.mark.parametrize("system", ["roll", *LONG])
def test_the_defaults_of_every_documented_key_make_a_run(system):
    """Of those whose default the documents say in one word."""
    theirs: dict[str, Any] = {}
    for row in tables.rows():
        plain = row.default not in ("-", "(example path)") and not row.default.startswith(("$", "list("))
        if (
            row.system in SYSTEMS[system]
            and not row.where
            and plain
            and " " not in row.default
            and "/" not in row.default
        ):
            inner: Any = theirs
            *path, name = row.key.split(".")
            for part in path:
                inner = inner.setdefault(part, {}) if isinstance(inner, dict) else None
            if isinstance(inner, dict) and not isinstance(inner.get(name), dict):
                inner[name] = yaml.safe_load(row.default)
    found = migrate(theirs, system, ("env=math", "model=causal_lm", *TEXT))
    assert found.remaining == ""
    assert len(found.notes) > 20
    assert [one.key for one in found.notes if one.how == "unknown"] == []


def test_the_command_writes_an_experiment_that_a_run_takes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert (
        cli.main(["migrate", str(HERE / "rlinf_libero_10.yaml"), "--from", "rlinf", "--out", "mine", "--with", *TINY])
        == 0
    )
    said = capsys.readouterr()
    assert "run it: python -m embodied.train --config-dir mine experiment=rlinf_libero_10" in said.out
    for part in ("taken over: ", "renamed: ", "derived: ", "algorithm.kl_penalty = kl → algorithm.kl_penalty_type=kl"):
        assert part in said.err
    config = compose(["experiment=rlinf_libero_10", *TINY], "train", ["mine"]).config
    assert at(config.model_dump(by_alias=True), "algorithm.sampling_params.temperature") == 1.6


@pytest.mark.parametrize(
    ("theirs", "name"),
    [
        ("libero_grpo.yaml", "my_libero_grpo"),
        ("their grpo (é).yaml", "their_grpo_"),
        ("null.yaml", "my_null"),
        ("1e3.yaml", "my_1e3"),
    ],
)
def test_the_command_writes_a_name_that_an_override_can_say_and_ours_do_not_have(
    tmp_path, monkeypatch, capsys, theirs, name
):
    monkeypatch.chdir(tmp_path)
    Path(theirs).write_text("runner: {max_epochs: 3}", encoding="utf-8")
    assert tool.main([theirs, "--from", "rlinf", "--out", "my folder"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    words = shlex.split(said.partition("run it: ")[2])[3:]
    assert words == ["--config-dir", "my folder", f"experiment={name}"]
    assert compose(words[2:], "train", ["my folder"]).config.runner.max_epochs == 3


def test_names_that_a_script_sets_are_read_and_others_stay():
    found = tool.read(HERE / "simplevla_libero.sh")
    assert found["data"]["task_suite_name"] == "libero_10"
    assert found["actor_rollout_ref"]["actor"]["optim"]["lr"] == "5e-6"
    assert found["trainer"]["experiment_name"] == "$NOBODY_SAYS"
    assert found["trainer"]["default_local_dir"] == "/tmp/libero_10/$NAME"


def test_the_folder_of_the_user_is_read_from_the_environment(tmp_path, monkeypatch):
    """As verl's examples name their files; two of them are one text of a list."""
    monkeypatch.setenv("HOME", "/home/me")
    script = "one=$HOME/a.parquet\nmain data.train_files=\"['$one', '${HOME}/b.parquet']\" data.train_batch_size=4\n"
    (tmp_path / "run.sh").write_text(script, encoding="utf-8")
    found = migrate(tool.read(tmp_path / "run.sh"), "verl", TEXT)
    assert found.groups == {"env": "math", "model": "causal_lm"}
    assert found.settings["data.train_data_paths"] == ["/home/me/a.parquet", "/home/me/b.parquet"]
    assert found.settings["data.rollout_batch_size"] == 4
    assert "no file at /home/me/a.parquet" in found.elsewhere


def test_problems_whose_files_nobody_knows_are_problems_all_the_same():
    """Their other keys are of texts, and would be refused for a robot."""
    found = migrate({"data": {"train_files": "$DATA/a.parquet", "train_batch_size": 4}}, "verl", TEXT)
    assert note(found, "data.train_files").how == "refused"
    assert (found.groups["env"], found.settings["data.rollout_batch_size"]) == ("math", 4)


@pytest.mark.parametrize(
    ("theirs", "low", "high", "how"),
    [
        ({"clip_ratio": 0.1}, 0.1, 0.1, "renamed"),
        ({"clip_ratio": 0.1, "clip_ratio_high": 0.28}, 0.1, 0.28, "derived"),
        ({"clip_ratio_low": 0.3, "clip_ratio_high": 0.28, "clip_ratio": 0.1}, 0.3, 0.28, "nothing"),
    ],
)
def test_verls_width_of_one_side_comes_before_that_of_both(theirs, low, high, how):
    found = migrate({"actor_rollout_ref": {"actor": theirs}}, "verl", ("env=fake", "model=fake"))
    assert (found.settings["algorithm.clip_ratio_low"], found.settings["algorithm.clip_ratio_high"]) == (low, high)
    assert note(found, "actor_rollout_ref.actor.clip_ratio").how == how
    assert all(one.how != "refused" for one in found.notes)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.ini", "a=1", "what kind of file is this"),
        ("a.yaml", "a: [1", "a.yaml, line 1: expected"),
        ("a.yaml", "- 1", "KEY: VALUE is expected"),
        ("a.toml", "a = ", "is no TOML"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, text, said, capsys):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        tool.read(tmp_path / name)
    assert tool.main([str(tmp_path / name), "--from", "rlinf"]) == 2
    assert "fix: " in capsys.readouterr().err
    assert tool.main([str(tmp_path / "absent.yaml"), "--from", "rlinf"]) == 2
