"""What is wrong with a model is said before any simulator starts: status 2, the fix, no worker."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from embodied import train
from embodied.runtime.pool import pool

CONFIGS = str(Path(__file__).parents[2] / "config")
RUN = (
    "env=fake", "model=openvla_oft_tiny", "tracker=jsonl", "runner.device=cpu", "runner.experiment_name=run",
    "runner.max_epochs=1", "env.train.total_num_envs=2", "env.eval.total_num_envs=2", "algorithm.group_size=2",
    "actor.model.use_proprio=false", "actor.model.is_lora=false", "actor.model.lora_modules_to_save=null",
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_workers(tmp_path, monkeypatch) -> None:
    def started(*args, **kwargs):
        raise AssertionError("a worker was about to start")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool.Pool, "__init__", started)


@pytest.fixture
def folder(make, tmp_path) -> Path:
    make().save(tmp_path / "hf")
    return tmp_path / "hf"


def refused(capsys, *overrides: str) -> str:
    assert train.main([*RUN, *overrides, "--config-dir", CONFIGS]) == 2
    return "".join(capsys.readouterr())


MODELS = [
    (("actor.model.image_size=60",), "patch_size 8 does not divide it"),
    (("actor.model.image_size=[64,32]",), "square"),
    (("actor.model.num_images_in_input=5",), "the policy reads 5 images, the env has"),
    (("actor.model.max_prompt_length=3",), "the limit is 3"),
    (("actor.model.use_proprio=true", "actor.model.proprio_dim=9"), "proprio_dim=8"),
    (("actor.model.action_dim=6",), "action_dim=7"),
    (("actor.model.model_path=nowhere",), "no folder"),
    (("actor.model.model_path=package:no_such_package/x",), "package 'no_such_package'"),
    (("actor.model.model_path=package:embodied.models.no_such/x",), "package 'embodied.models.no_such'"),
    (("actor.model.model_path=package:embodied/nowhere",), "nowhere (actor.model.model_path)"),
    (("actor.model.precision=fp8",), "fp16"),
    (("actor.model.torch_compile=true", "actor.model.torch_compile_backend=none"), "torch_compile_backend"),
]


@pytest.mark.parametrize(("overrides", "said"), MODELS, ids=lambda v: str(v))
def test_wrong_keys(capsys, overrides, said) -> None:
    assert said in refused(capsys, *overrides)


def test_wrong_checkpoints(capsys, folder) -> None:
    path = f"actor.model.model_path={folder}"
    assert "env" in refused(capsys, path, "actor.model.unnorm_key=bridge_orig")
    assert "the checkpoint's bidirectional" in refused(capsys, path, "actor.model.attention=causal")
    weights = load_file(folder / "model.safetensors")
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1000])
    assert "model.safetensors is damaged" in refused(capsys, path)
    weights["surprise"] = weights.pop("projector.fc1.bias")
    save_file(weights, folder / "model.safetensors")
    said = refused(capsys, path)
    assert "1 missing: projector.fc1.bias" in said
    assert "1 unknown: surprise" in said
    (folder / "action_head--1_checkpoint.pt").touch()
    assert "language head never learnt action tokens" in refused(capsys, path)
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    (folder / "policy.json").unlink()
    (folder / "action_head--1_checkpoint.pt").unlink()
    assert "another architecture" in refused(capsys, path)
