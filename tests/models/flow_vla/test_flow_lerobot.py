"""LeRobot's own SmolVLAPolicy reads the folders that are saved here and exported, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from embodied.models.flow_vla import build_policy
from embodied.models.flow_vla.policy import FlowVLAPolicy
from embodied.models.flow_vla.sampling.chains import solve
from environments import python_with
from flow_golden import folder_of, heads
from safetensors.torch import load_file, save_file
from test_flow_folders import tokenizer
from torch import Tensor

from embodied.types import EnvSpec, Sampling

PACKAGES = (
    "--no-deps", "lerobot==0.4.4", "draccus==0.10.0", "mergedeep", "pyyaml-include==1.4.1", "toml", "typing_inspect",
    "mypy_extensions",
)  # fmt: skip
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
STATISTICS = {
    "action": {"mean": [0.1] * 7, "std": [0.3, 2.0] * 3 + [1.0], "q01": [-0.7] * 7, "q99": [0.9] * 7},
    "proprio": {"mean": [0.2] * 8, "std": [1.5] * 8, "q01": [-1.5] * 8, "q99": [2.0] * 8},
}


@pytest.fixture(scope="module")
def lerobot(pytestconfig: pytest.Config) -> Callable[[Path], dict[str, Tensor]]:
    """Makes LeRobot answer to a folder's ``case.safetensors``; its environment is made once and kept."""
    assert pytestconfig.cache is not None
    python = python_with(PACKAGES, pytestconfig.cache.mkdir("lerobot") / "venv", shares=True)

    def answered(folder: Path) -> dict[str, Tensor]:
        command = [python, str(Path(__file__).with_name("lerobot_chunk.py")), str(BENCHMARKS), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, encoding="utf-8")
        assert done.returncode == 0, done.stderr[-2000:]
        return load_file(folder / "answer.safetensors")

    return answered


def made_here(tmp_path: Path) -> FlowVLAPolicy:
    """Random weights. The expert's width of 256 is the one that LeRobot derives of its sizes."""
    return build_policy(layout="smolvla", action_horizon=6, num_steps=10, expert_intermediate_size=256)


def read_and_trained(tmp_path: Path) -> FlowVLAPolicy:
    """LeRobot's folder, with other weights than it came with."""
    source = folder_of("smolvla_tiny", tmp_path)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    del config["pretrained_revision"]  # a key of newer versions than the one that reads it here
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = {"tokenizer_path": str(tokenizer(tmp_path))}  # the golden folder has none
    policy = build_policy(model_path=str(source), num_steps=10, **words, **heads("smolvla_tiny"))
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if ".expert." in name:
                parameter.mul_(1.1)
    return policy


@pytest.mark.slow
@pytest.mark.parametrize("make", [made_here, read_and_trained])
def test_lerobot_answers_with_the_same_chunk(
    make: Callable[..., FlowVLAPolicy], lerobot: Callable[[Path], dict[str, Tensor]], made_up_env: EnvSpec,
    tmp_path: Path,
) -> None:  # fmt: skip
    policy = make(tmp_path)
    policy.use_statistics("demonstrations", STATISTICS)
    policy.bind(replace(made_up_env, tasks=("lift it",), num_init_states=(1,)))
    out = tmp_path / "saved"
    policy.save(out)
    obs, noise = observed(policy)
    sizes = policy.model.sizes
    first = noise[:, : sizes.horizon * sizes.action_width].view(2, sizes.horizon, sizes.action_width)
    inputs = policy.parts.inputs(obs)
    case: dict[str, Any] = {**obs, "state": inputs.state[:, :8].contiguous(), "noise": first.contiguous()}
    save_file({**case, "prompt_mask": case["prompt_mask"].to(torch.uint8)}, out / "case.safetensors")
    found = lerobot(out)
    with torch.no_grad():
        field = policy.parts.field(policy.parts.read(obs))
        chunk = solve(lambda x, time: field(x, time)[0], first, 10)[..., :7]
    assert (found["chunk"] - chunk).abs().max() <= 1e-5 * max(1.0, chunk.abs().max().item())
    assert chunk.abs().max() > 0.1
    actions = policy.act(obs, noise, Sampling(do_sample=False)).fields["actions"]
    assert (found["actions"][:, :4].clamp(-1, 1) - actions).abs().max() <= 1e-5


def observed(policy: FlowVLAPolicy) -> tuple[dict[str, Tensor], Tensor]:
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 2, 64, 64, 3), dtype=torch.uint8, generator=random)
    noise = torch.randn(2, *policy.spec.noise.shape, generator=random).clamp(-3, 0.9)
    told = policy.encode_instructions(["lift it", "stop"])
    told = {**told, "prompt": told["prompt"].clamp(max=policy.model.sizes.vocab - 1)}
    return {"images": images, "state": torch.randn(2, 8, generator=random), **told}, noise
