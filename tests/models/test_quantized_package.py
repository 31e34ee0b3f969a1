"""What can be said of ``actor.model.quantization_bit`` without bitsandbytes, and the tests that need it, in an
environment of their own that has it."""

from __future__ import annotations

import subprocess
import tomllib
from functools import partial
from pathlib import Path

import pytest
import torch
from embodied.models.causal_lm import build_policy as build_text
from embodied.models.flow_vla import build_policy as build_flow
from embodied.models.openvla_oft import build_policy
from environments import python_with
from safetensors.torch import save_file
from torch import nn

from embodied.errors import AssetsMissingError, ConfigError
from embodied.parallel import sharding
from embodied.run.memory import footprint
from embodied.schema import AlgorithmConfig, FsdpConfig

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("build", [build_policy, build_text, partial(build_flow, train_expert_only=False)])
def test_what_cannot_work_is_refused_with_the_fix(build, monkeypatch) -> None:
    for bits in (3, True, "4"):
        with pytest.raises(ConfigError, match="8, 4, or null"):
            build(is_lora=True, quantization_bit=bits)
    with pytest.raises(ConfigError, match="is_lora=true"):
        build(quantization_bit=8)
    monkeypatch.setattr("embodied.models.shared.bits.find_spec", lambda name: None)
    with pytest.raises(AssetsMissingError, match="bitsandbytes") as caught:
        build(is_lora=True, quantization_bit=4)
    assert "pip install 'embodied-rl[quantize]'" in caught.value.remedy


def test_compiled_blocks_are_refused() -> None:
    with pytest.raises(ConfigError, match="torch_compile=false"):
        build_policy(is_lora=True, quantization_bit=8, torch_compile=True)


def test_fsdp2_is_refused() -> None:
    policy = nn.Linear(4, 4)
    policy.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ConfigError, match="strategy=replicate"):
        sharding._check_can_shard(policy, FsdpConfig(), AlgorithmConfig(), torch.device("cpu"))


@pytest.mark.parametrize(("bits", "each"), [(None, 2), (8, 1), (4, 0.5 + 1 / 64 + 4 / 64 / 256)])
def test_the_size_of_files_is_reckoned_in_these_bits(tmp_path, monkeypatch, bits, each) -> None:
    shapes = {"language_model.model.layers.0.mlp.up_proj.weight": [256, 64], "lm_head.weight": [100, 8]}
    weights = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(weights, tmp_path / "model.safetensors")
    monkeypatch.setattr(footprint, "LARGE", 1)
    found = footprint.of_files({"model_path": str(tmp_path), "precision": "bf16", "quantization_bit": bits})
    assert found is not None
    assert found.all == 256 * 64 * each + 100 * 8 * 2


@pytest.mark.slow
def test_with_the_package(pytestconfig) -> None:
    """Runs test_quantized.py where bitsandbytes is; all other packages are those of this environment."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"][
        "quantize"
    ]
    python = python_with(wanted, pytestconfig.cache.mkdir("quantize") / "env", shares=True)
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests" / "models" / "test_quantized.py")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    encoding="utf-8")  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
