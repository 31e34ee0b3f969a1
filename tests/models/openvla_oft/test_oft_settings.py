"""Keys under actor.model: all are read, bad values are refused with the key and the fix."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from embodied.models import openvla_oft
from embodied.models.openvla_oft import Settings, build_policy

from embodied.errors import CheckpointError, ConfigError

ROOT = Path(__file__).parents[3]

BAD = [
    ({"size": "8b"}, "size"),
    ({"size": None}, "size"),
    ({"precision": "fp8"}, "precision"),
    ({"attention": "sparse"}, "attention"),
    ({"attn_implementation": "flash"}, "attn_implementation"),
    ({"decoding": "diffusion"}, "decoding"),
    ({"decoding": "autoregressive", "num_action_chunks": 1}, "attention"),
    ({"decoding": "autoregressive", "attention": "causal"}, "num_action_chunks"),
    ({"max_prompt_length": 0}, "max_prompt_length"),
    ({"use_film": 1}, "use_film"),
    ({"probe": "yes"}, "probe"),
    ({"image_preset": "jpeg"}, "image_preset"),
    ({"policy_setup": "google_robot"}, "policy_setup"),
    ({"value_type": "token_level"}, "value_type"),
    ({"image_size": [64, 32]}, "image_size"),
    ({"image_size": 60}, "image_size"),
    ({"vocab_size": 256}, "vocab_size"),
    ({"hidden_size": 130}, "hidden_size"),
    ({"vision_hidden_size": 66}, "vision_hidden_size"),
    ({"vision_num_layers": 1}, "vision_num_layers"),
    ({"vision_num_layers": [4, 4, 4]}, "vision_num_layers"),
    ({"vision_num_attention_heads": 0}, "vision_num_attention_heads"),
    ({"vision_num_attention_heads": 5}, "heads do not divide"),
    ({"num_action_chunks": 0}, "num_action_chunks"),
    ({"action_dim": 7.5}, "action_dim"),
    ({"proprio_dim": -1}, "proprio_dim"),
    ({"num_images_in_input": True}, "num_images_in_input"),
    ({"seed": -1}, "seed"),
    ({"stop_token": "yes"}, "stop_token"),
    ({"unnorm_key": "libero_10"}, "unnorm_key"),
    ({"is_lora": True, "lora_rank": 0}, "lora_rank"),
    ({"is_lora": True, "lora_dropout": 1.0}, "lora_dropout"),
    ({"is_lora": True, "lora_target_modules": ["q_prj"]}, "lora_target_modules"),
    ({"is_lora": True, "lora_modules_to_save": ["head"]}, "lora_modules_to_save"),
    ({"is_lora": True, "lora_init_weights": "loftq"}, "lora_init_weights"),
    ({"is_lora": True, "lora_alpha": 0}, "lora_alpha"),
    ({"is_lora": True, "lora_alpha": "16"}, "lora_alpha"),
    ({"lora_path": "somewhere"}, "lora_path"),
    ({"freeze_pattern": "("}, "freeze_pattern"),
    ({"trust_remote_code": "yes"}, "trust_remote_code"),
    ({"low_cpu_mem_usage": "no"}, "low_cpu_mem_usage"),
    ({"model_revision": "main"}, "model_revision"),
    ({"lora_rnk": 4}, "lora_rank"),
]


@pytest.mark.parametrize(("keys", "named"), BAD, ids=lambda v: str(v))
def test_bad_values_name_the_key(keys, named) -> None:
    with pytest.raises(ConfigError) as caught:
        build_policy(**keys)
    assert named in str(caught.value)
    assert caught.value.remedy


def test_flash_attention_without_its_package_or_in_fp32(monkeypatch) -> None:
    keys = {"attn_implementation": "flash_attention_2", "precision": "bf16"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install flash-attn"):
        build_policy(**keys)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(ConfigError, match="precision=bf16"):
        Settings.from_kwargs({**keys, "precision": "fp32"})
    assert Settings.from_kwargs(keys).attn_implementation == "flash_attention_2"


def test_a_missing_folder(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="model_path"):
        build_policy(model_path=str(tmp_path / "none"))


def test_the_signature_is_that_of_the_settings() -> None:
    parameters = inspect.signature(build_policy).parameters
    assert list(parameters) == [f.name for f in fields(Settings)]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in parameters.values())


def test_every_setting_is_read_somewhere() -> None:
    folder = Path(openvla_oft.__file__).parent
    shared = [folder.parent / "shared" / name for name in ("trained.py", "keys.py")]  # read the keys of adapters
    code = "\n".join(file.read_text(encoding="utf-8") for file in (*folder.glob("*.py"), *shared))
    handled_by_name = {"low_cpu_mem_usage"}  # a permission that is not used, as a run says
    handled_by_name |= {"override_config"}  # its entries take the place of sizes, before there are settings
    sizes = {"patch_size", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
    sizes |= {"vision_num_layers", "vision_num_attention_heads"}  # through Settings._pair
    unread = [
        f.name
        for f in fields(Settings)
        if f"settings.{f.name}" not in code and f"self.{f.name}" not in code and f.name not in handled_by_name | sizes
    ]
    assert not unread


@pytest.mark.parametrize("name", ["openvla", "openvla_oft", "openvla_oft_tiny"])
def test_model_files_name_known_keys_only(name) -> None:
    values = yaml.safe_load((ROOT / "config" / "model" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert values.pop("_target_") == "embodied.models.openvla_oft.build_policy"
    values |= {"seed": 0, "value_type": "chunk_level"}  # interpolations
    Settings.from_kwargs(values)


def test_single_sizes_override_the_preset() -> None:
    net = Settings.from_kwargs(
        {"hidden_size": 64, "vision_hidden_size": 32, "image_size": 32, "patch_size": 16}
    ).net_config()
    assert (net.hidden_size, net.featurizer.width, net.featurizer.mlp_width, net.patches) == (64, 32, 128, 4)


def test_importing_the_package_is_light() -> None:
    code = "import sys, embodied.models.openvla_oft; print({'torch', 'transformers', 'peft'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, encoding="utf-8"
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("told", "means"), [("widowx_bridge", "bridge"), ("panda-qpos", "libero"), ("libero", "libero"), ("none", "none")]
)
def test_set_ups_have_other_names_elsewhere(told, means) -> None:
    assert Settings.from_kwargs({"policy_setup": told}).policy_setup == means
