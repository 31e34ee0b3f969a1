"""``--cfg=origin`` and ``embodied explain KEY --run DIR``: where each value comes from, asked of real processes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import warm

from embodied.errors import ConfigError
from embodied.run import sft_first
from embodied.schema.compose.compose import compose
from embodied.schema.compose.origin_trace import trace
from embodied.schema.compose.origins import FILE, Origin, Origins, read
from embodied.schema.keys.paths import leaves
from embodied.tools.library.run_origins import of_run

TESTS = Path(__file__).resolve().parents[1]
FAKE = ("env=fake", "model=fake", "--config-dir", str(TESTS / "config"))
OUTER = """\
# @package _global_
defaults:
  - inner
  - override /algorithm: rloo
runner:
  seed: 11
  logger:
    group_name: ${runner.run_id}
"""
INNER = """\
# @package _global_
runner:
  seed: 12
  max_epochs: 5
  run_id: nested
"""
SMALL = (
    *FAKE, "tracker=jsonl", "runner.device=cpu", "runner.save_interval=1", "runner.val_check_interval=-1",
    "algorithm.rollout_epoch=4", "env.train.max_episode_steps=10", "env.train.reward_mode=dense", "env.num_workers=1",
    "env.eval.video_cfg.save_video=false", "runner.experiment_name=run", "runner.max_steps=1",
)  # fmt: skip


@pytest.fixture
def mine(tmp_path) -> Path:
    folder = tmp_path / "mine" / "experiment"
    folder.mkdir(parents=True)
    (folder / "outer.yaml").write_text(OUTER, encoding="utf-8")
    (folder / "inner.yaml").write_text(INNER, encoding="utf-8")
    return folder


def process(module: str, *words: str, cwd: Path) -> str:
    path = os.pathsep.join(filter(None, [str(TESTS.parent), os.environ.get("PYTHONPATH")]))
    done = warm.python(["-m", module, *words], cwd, {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout


def parsed(text: str) -> dict[str, tuple[object, str]]:
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            start, _, origin = line.partition("  # ")
            key, _, value = start.partition(": ")
            values[key] = (json.loads(value), origin)
    return values


def origins(*words: str, cwd: Path) -> tuple[dict[str, tuple[object, str]], list[str]]:
    """What a command says of each key, and of the keys that it left out."""
    text = process("embodied.train", *words, "--cfg=origin", cwd=cwd)
    return parsed(text), [line for line in text.splitlines() if line.startswith("#")]


def test_files_nested_defaults_groups_and_references(mine, tmp_path):
    found, left_out = origins(*FAKE, "--config-dir", str(mine.parent), "experiment=outer", cwd=tmp_path)
    outer, inner = mine / "outer.yaml", mine / "inner.yaml"
    assert found["runner.seed"] == (11, f"{outer}, line 6"), "the outer file comes over the one that it begins with"
    assert found["runner.max_epochs"] == (5, f"{inner}, line 4")
    assert found["algorithm.adv_type"] == ("rloo", "config/algorithm/rloo.yaml, line 5"), "the outer file chose it"
    said = f"{outer}, line 8: ${{runner.run_id}}; runner.run_id: {inner}, line 5"
    assert found["runner.logger.group_name"] == ("nested", said)
    assert found["env.train.success_distance"] == (0.3, f"{TESTS}/config/env/fake.yaml, line 2")
    name, said = found["runner.experiment_name"]
    assert name == "fake-fake-rloo-nested"
    assert said.startswith("derived from env, model, algorithm and runner.run_id; runner.run_id: ")
    assert found["runner.resume_dir"] == ("auto", "default of RunnerConfig")
    assert left_out == []


def test_the_command_line_with_signs_places_in_lists_and_other_systems_names(mine, tmp_path):
    words = (
        *FAKE, "--config-dir", str(mine.parent), "experiment=outer", "~runner.seed", "+runner.max_steps=3",
        "runner.logger.logger_backends.1=jsonl", "runner.checkpoint.s3_bucket=s3://me:pw@bucket",
        "actor.enable_offload=true", "runner.max_tokens_per_mbs=null", "actor.model.tensor_model_parallel_size=1",
        f"hydra.run.dir={tmp_path}/all", "demos={episodes: 7}", "noise_std=0.5",
    )  # fmt: skip
    with pytest.raises(AssertionError, match=r"s3_bucket has a name and a password"):
        origins(*words, cwd=tmp_path)
    found, left_out = origins(*(word for word in words if "s3_bucket" not in word), cwd=tmp_path)
    assert found["runner.seed"] == (1234, "default of RunnerConfig"), "~ takes the file's value away"
    assert found["runner.max_steps"] == (3, "command line: +runner.max_steps=3")
    said = "derived from runner.max_steps; runner.max_steps: command line: +runner.max_steps=3"
    assert found["runner.max_epochs"] == (3, said)
    assert found["runner.logger.logger_backends"] == (["jsonl", "jsonl"], "config/tracker/default.yaml, line 4")
    said = "command line: runner.logger.logger_backends.1=jsonl"
    assert found["runner.logger.logger_backends.1"] == ("jsonl", said)
    said = (
        "translated from actor.enable_offload of RLinf; actor.enable_offload: command line: actor.enable_offload=true"
    )
    assert found["actor.offload_optimizer"] == (True, said)
    assert found["runner.max_tokens_per_mbs"] == (2048, "default of RunnerConfig")
    value, said = found["runner.output_dir"]
    assert value == f"{tmp_path}/all/runs"
    assert said == "derived from hydra.run.dir; before that: config/train.yaml, line 20"
    assert found["demos.episodes"] == (7, "command line: demos={episodes: 7}")
    assert found["demos.noise_std"] == (0.5, "command line: noise_std=0.5"), "a short form, as it was typed"
    assert [line.partition(":")[0] for line in left_out] == [
        "# runner.max_tokens_per_mbs", "# actor.model.tensor_model_parallel_size",
    ]  # fmt: skip
    assert "the default stays (command line: runner.max_tokens_per_mbs=null)" in left_out[0]
    assert "asks for nothing here (command line: actor.model.tensor_model_parallel_size=1)" in left_out[1]


def test_a_protocol_and_an_env_of_the_command_line(tmp_path):
    words = ("env=libero_spatial", "protocol=rlinf", "env.eval.wait_steps=3", "env.train.task_ids=[1]")
    found, _ = origins(*words, cwd=tmp_path)
    assert found["env.eval.task_suite_name"] == ("libero_spatial", "config/env/libero_spatial.yaml, line 5")
    assert found["env.eval.max_episode_steps"] == (512, "protocol rlinf"), "over the experiment that train.yaml chooses"
    assert found["env.train.max_episode_steps"] == (96, "config/experiment/laptop.yaml, line 14")
    assert found["env.eval.wait_steps"] == (3, "command line: env.eval.wait_steps=3"), "over the protocol"
    said = "derived from env.train.task_ids; env.train.task_ids: command line: env.train.task_ids=[1]"
    assert found["env.eval.task_ids"] == ([1], said)
    assert found["protocol.name"] == ("rlinf", "config/protocol/rlinf.yaml, line 3")
    assert found["runner.seed"] == (1234, "default of RunnerConfig")


def test_resolvers_and_what_rewards_ask_for(tmp_path):
    words = ("env=arithmetic", "model=causal_lm_tiny", "data.max_prompt_length=9", "reward.reward_type=exact")
    found, _ = origins(*words, cwd=tmp_path)
    said = (
        "config/model/causal_lm_tiny.yaml, line 15: ${first:${data.max_prompt_length},64}; data.max_prompt_length: "
        "command line: data.max_prompt_length=9"
    )
    assert found["actor.model.max_prompt_tokens"] == (9, said)
    _, said = found["actor.model.max_new_tokens"]
    assert "; runner.seq_length: default of RunnerConfig; actor.model.max_prompt_tokens: config/model/" in said
    said = "derived from reward.reward_type; reward.reward_type: command line: reward.reward_type=exact"
    assert found["env.eval.verifier"] == ([{"name": "exact"}], said)


def test_a_run_keeps_its_origins_and_a_resumed_one_has_those_of_its_last_start(tmp_path):
    process("embodied.train", *SMALL, cwd=tmp_path)
    run = tmp_path / "runs" / "run"
    kept = (run / "config.yaml").read_bytes()
    explained = parsed(process("embodied.tools.explain", "runner.max_epochs", "seed", "--run", str(run), cwd=tmp_path))
    said = "derived from runner.max_steps; runner.max_steps: command line: runner.max_steps=1"
    assert explained["runner.max_epochs"] == (1, said)
    assert explained["runner.seed"] == (1234, "default of RunnerConfig"), "the end of a key finds all that end so"
    process("embodied.train", *(word for word in SMALL if "max_steps" not in word), "runner.max_epochs=2", cwd=tmp_path)
    explained = parsed(process("embodied.tools.explain", "runner.max_epochs", "--run", str(run), cwd=tmp_path))
    assert explained == {"runner.max_epochs": (2, "command line: runner.max_epochs=2")}
    assert (run / "config.yaml").read_bytes() != kept
    assert "origin" not in (run / "config.yaml").read_text(encoding="utf-8")
    (run / FILE).unlink()
    text = process("embodied.tools.explain", "runner.max_epochs", "--run", str(run), cwd=tmp_path)
    assert text.startswith("runner.max_epochs: 2  # not the default, which is 10\n")
    assert f"{run / FILE} is not there or cannot be read" in text


def test_every_value_of_a_run_has_an_origin():
    composed = compose(["env=fake", "model=fake"], "train", [str(TESTS / "config")])
    known = trace(composed.resolved, composed.trail)
    assert {key for key, _ in leaves("", composed.resolved)} <= set(known.of)
    assert len([*known.lines(composed.resolved)]) > 300
    assert [key for key, origin in known.of.items() if origin == Origin("default", "the schema")] == []


def test_a_section_that_a_protocol_sets_is_all_the_protocols(tmp_path):
    (tmp_path / "protocol").mkdir()
    sets = "{env.eval.init_params: {camera_names: [agentview], camera_heights: 128}}"
    text = f"name: wide\nenv: embodied.envs.libero.LiberoEnv\nsets: {sets}\n"
    (tmp_path / "protocol" / "wide.yaml").write_text(text, encoding="utf-8")
    composed = compose(["env=libero_10", "protocol=wide"], "train", [str(tmp_path)])
    known = trace(composed.resolved, composed.trail)
    assert known.describe("env.eval.init_params.camera_heights") == "protocol wide"
    assert known.describe("env.train.init_params.camera_heights") == "config/env/libero_10.yaml, line 11"
    assert known.describe("protocol.name") == f"{tmp_path}/protocol/wide.yaml, line 1"


def test_secrets_are_not_shown(tmp_path):
    resolved = {"data": {"options": {"api_key": "abcd1234", "url": "https://me:pw@host/x", "header": "abcd1234",
                                     "again": "abcd1234", "loop": 3}}}  # fmt: skip
    of = {
        "data.options.api_key": Origin("command line", "data.options.api_key=(hidden)"),
        "data.options.url": Origin("file", "x.yaml, line 1"),
        "data.options.header": Origin("file", "x.yaml, line 2: ${data.options.api_key}", ("data.options.api_key",)),
        "data.options.again": Origin("file", "x.yaml, line 3: ${data.options.header}", ("data.options.header",)),
        "data.options.loop": Origin("derived", "", ("data.options.loop",)),
    }
    text = "\n".join(Origins(of, {}).lines(resolved))
    assert "abcd1234" not in text
    assert "me:pw" not in text
    assert text.count("(hidden)") == 6
    Origins(of, {}).write(tmp_path)
    assert read(tmp_path) == Origins(of, {})
    composed = compose(
        ["env=fake", "model=fake", "reward.remote.enable=false", "runner.logger.project_name=https://me:pw@host"],
        "train", [str(TESTS / "config")],
    )  # fmt: skip
    known = trace(composed.resolved, composed.trail)
    assert "me:pw" not in "\n".join(known.lines(composed.resolved))
    known.write(tmp_path)
    assert "me:pw" not in (tmp_path / FILE).read_text(encoding="utf-8")


def test_a_run_that_begins_with_one_before_it_says_its_checkpoint(tmp_path):
    checkpoint = tmp_path / "first" / "checkpoints" / "000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "meta.json").touch()
    composed = compose(["env=fake", "model=fake"], "train", [str(TESTS / "config")])
    begun = sft_first._beginning_with(
        replace(composed, origins=trace(composed.resolved, composed.trail)), tmp_path / "first", ()
    )
    assert begun.origins.describe("runner.ckpt_path") == f"checkpoint {checkpoint}"


@pytest.mark.parametrize(("name", "said"), [("runner.sede", "Did you mean 'runner.seed'?"), ("", "has no key ''")])
def test_a_key_that_a_run_does_not_have(name, said, tmp_path):
    (tmp_path / "config.yaml").write_text("runner: {seed: 3}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        of_run(name, tmp_path)
    assert said in str(error.value)


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"runner: [", b"3"])
def test_a_folder_that_is_none_of_a_run(content, tmp_path):
    if content is not None:
        (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.yaml") as error:
        of_run("runner.seed", tmp_path)
    assert "--run runs/NAME" in str(error.value)
    assert "runner.seed" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"of": {}}', '{"of": {"a": 1}, "left_out": {}}',
     '{"of": {"runner.seed": {"kind": "sweep", "text": "", "keys": []}}, "left_out": {}}',
     '{"of": {"runner.seed": {"kind": "derived", "text": "", "keys": [1]}}, "left_out": {}}'],
)  # fmt: skip
def test_origins_that_cannot_be_read_are_none(content, tmp_path):
    (tmp_path / FILE).write_text(content, encoding="utf-8")
    (tmp_path / "config.yaml").write_text("runner: {seed: 3}\n", encoding="utf-8")
    assert read(tmp_path) is None
    assert of_run("runner.seed", tmp_path)[0] == "runner.seed: 3  # not the default, which is 1234"


@pytest.mark.parametrize("form", ["{folder}", "file://{folder}"])
def test_files_of_a_search_path_of_hydra_s_are_named(form, tmp_path):
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\nrunner: {max_epochs: 7}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text, encoding="utf-8")
    searched = f"hydra.searchpath=['{form.format(folder=tmp_path)}']"
    composed = compose(["env=fake", "model=fake", "experiment=mine", searched], "train", [str(TESTS / "config")])
    assert "mine.yaml, line 2" in trace(composed.resolved, composed.trail).describe("runner.max_epochs")
