"""What cannot be right of a flow policy is refused with its fix: keys before a worker starts, folders, values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from embodied.models.flow_vla import build_policy
from flow_golden import folder_of
from safetensors.torch import load_file, save_file
from test_flow_folders import edit, env_of, opened, tokenizer
from torch import Tensor

from embodied import train
from embodied.errors import CheckpointError, ConfigError, DamagedCheckpointError, EmbodiedError, SpecMismatchError
from embodied.run.training.collector import Collector
from embodied.serving.build import build_server
from embodied.testing import FakeEnv
from embodied.types import Sampling

ROOT = Path(__file__).parents[3]
RUN = (
    "model=flow_vla_tiny", "env=fake", "algorithm=ppo", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=1",
    "--config-dir", str(ROOT / "tests" / "config"), "actor.model.value_head=true",
)  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "what", "fix"),
    [
        (["sampling_params.temperature=0.7"], "sampling_params.temperature is 0.7, and", "it is then 1"),
        (
            ["val_sampling_params.do_sample=true", "val_sampling_params.top_p=0.9"],
            "val_sampling_params.top_p is 0.9, and", "it is then 1",
        ),
        (["sampling_params.do_sample=false"], "has no log-probs to learn from", "sampling_params.do_sample=true"),
        (
            ["entropy_bonus=0.01", "logprob_type=chunk_level", "entropy_type=chunk_level"],
            "the policy gives no entropies", "entropy_bonus=0",
        ),
    ],
)  # fmt: skip
def test_keys_that_mean_nothing_are_refused_before_workers_start(
    asked: list[str], what: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    opened: list[Collector] = []
    monkeypatch.setattr(Collector, "open", lambda self, stop: opened.append(self))
    assert train.main([*RUN, *(f"algorithm.{key}" for key in asked)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert what in said
    assert fix in said
    assert opened == []


def test_a_server_refuses_a_temperature() -> None:
    policy, env = build_policy(layout="pi0", num_action_chunks=2), FakeEnv().spec
    policy.bind(env)
    with pytest.raises(ConfigError, match=r"temperature is 0\.7"):
        build_server(policy, env, sampling=Sampling(do_sample=False, temperature=0.7))
    with pytest.raises(ConfigError, match=r"at\.top_k is 3"):
        policy.spec.check_sampling(Sampling(top_k=3), "at.")


@pytest.mark.parametrize(
    ("keys", "match", "fix"),
    [
        ({"noise_range": 0.1}, "lies between its two numbers", "two numbers above 0"),
        ({"noise_range": ["a", 1]}, "it is no number", "to two"),
        ({"noise_range": [0.1, math.inf]}, "it is no number", "to two"),
        ({"noise_level": "x"}, "it is no number", "to a number"),
        ({"noise_level": None}, "nothing to learn from", "above 0"),
        ({"rtc_max_weight": -1}, "nothing is guided", "above 0"),
        ({"seed": "x"}, "seeds are whole numbers", "0 or more"),
        ({"tokenizer_path": 3}, "it is no text", "into quotes"),
        ({"statistics_key": "so100"}, "model_path is null", "remove the key"),
        ({"cameras": "front"}, "lists different cameras", "or null"),
        ({"cameras": []}, "lists different cameras", "or null"),
        ({"cameras": ["front", "front"]}, "lists different cameras", "or null"),
        ({"value_head": "yes"}, "unknown value_head 'yes'", "True, False"),
        ({"hidden_size": 90}, "hidden_size = 90: 4 parts do not divide it", "a multiple of 4"),
        ({"num_key_value_heads": 3}, "num_attention_heads = 4: 3 parts", "a multiple of 3"),
        ({"vision_heads": 5}, "vision_hidden_size = 64: 5 parts", "a multiple of 5"),
        ({"expert_hidden_size": 97}, "expert_hidden_size = 97: 2 parts", "a multiple of 2"),
        ({"head_dim": 7}, "rotated in pairs", "even number"),
    ],
)
def test_values_that_cannot_be_right(keys: Mapping[str, Any], match: str, fix: str) -> None:
    with pytest.raises(EmbodiedError, match=match) as caught:
        build_policy(**keys)
    assert fix in caught.value.remedy


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"chunk_size": None}, "not as expected"),
        ({"chunk_size": "many"}, "not as expected"),
        ({"chunk_size": 0}, "chunks of 0 actions"),
        ({"tokenizer_max_length": "long"}, "not as expected"),
        ({"input_features": [1]}, "not as expected"),
        ({"image_resolution": [63, 63]}, "63 pixels are not filled by tokens of"),
        ({"image_resolution": [64, 32]}, "expected squares"),
    ],
)
def test_a_configuration_that_cannot_be_read(change: Mapping[str, Any], match: str, tmp_path: Path) -> None:
    path = folder_of("pi0_tiny", tmp_path)
    edit(path / "config.json", lambda values: values.update(change))
    with pytest.raises(CheckpointError, match=match) as caught:
        opened(path, "pi0_tiny")
    assert str(path / "config.json") in str(caught.value) or "config.json" in caught.value.remedy


def test_half_a_file_of_tensors(tmp_path: Path) -> None:
    path = folder_of("pi0_tiny", tmp_path)
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(DamagedCheckpointError) as caught:
        opened(path, "pi0_tiny")
    assert caught.value.remedy == "download or copy it again"


@pytest.mark.parametrize(
    ("feature", "change", "match"),
    [
        ("action.std", lambda t: -t - 1, "action has impossible statistics: of its number 0"),
        ("observation.state.std", lambda t: -t, "observation.state has impossible statistics"),
        ("action.mean", lambda t: t * math.nan, "are NaN"),
        ("action.std", lambda t: t[:-1].clone(), "has 7 and 6 statistics"),
    ],
)
def test_statistics_that_cannot_be_right(
    feature: str, change: Callable[[Tensor], Tensor], match: str, tmp_path: Path
) -> None:
    path = folder_of("pi0_tiny", tmp_path)
    (file,) = path.glob("policy_preprocessor_*.safetensors")
    found = load_file(file)
    save_file({**found, feature: change(found[feature])}, file)
    with pytest.raises(CheckpointError, match=match):
        opened(path, "pi0_tiny")


def test_statistics_of_openpi_that_are_no_numbers(tmp_path: Path) -> None:
    path = folder_of("openpi_pi0_tiny", tmp_path)
    edit(path / "assets" / "tiny" / "norm_stats.json", lambda v: v["norm_stats"]["actions"].update(std=[math.nan] * 7))
    with pytest.raises(CheckpointError, match="impossible statistics"):
        opened(path, "openpi_pi0_tiny")


def test_a_tokenizer_of_another_network_and_an_env_without_cameras(tmp_path: Path) -> None:
    path = folder_of("pi0_tiny", tmp_path)
    policy = opened(path, "pi0_tiny", tokenizer_path=str(tokenizer(tmp_path)))
    with pytest.raises(SpecMismatchError, match="needs images") as caught:
        policy.bind(env_of(cameras=0))
    assert "model=mlp" in caught.value.remedy
    policy.model.sizes.__dict__["vocab"] = 50
    with pytest.raises(SpecMismatchError, match="gives id 84, and the network embeds 50") as caught:
        policy.bind(env_of())
    assert "actor.model.tokenizer_path" in caught.value.remedy
