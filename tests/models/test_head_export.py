"""A head as an exported folder: it decides as its checkpoint, with its base within, and is refused around another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from embodied.models.head import HeadPolicy, around_base
from saved_policies import ENV as OF_OFT
from saved_policies import LORA, Learner, save

from embodied.errors import (
    CheckpointError,
    ConfigError,
    DamagedCheckpointError,
    EmbodiedError,
    PolicyChangedError,
    SpecMismatchError,
    printed,
)
from embodied.learn.checkpoint.checkpoint import Checkpoints
from embodied.learn.checkpoint.exported import ExportFile, open_export, with_files
from embodied.learn.origin import Origin, Simulator, restore
from embodied.lib.spec_json import to_json
from embodied.serving.loading import load
from embodied.testing import FakeEnv, check_policy
from embodied.tools import export
from embodied.types import Sampling

MADE = {**OF_OFT, "num_tasks": 3}
ENV = FakeEnv(**MADE).spec  # type: ignore[arg-type]
CONFIG = str(Path(__file__).parents[1] / "config")
HEAD, AROUND = "embodied.models.head.HeadPolicy", "embodied.models.head.around_base"
FAKE = {"_target_": "embodied.testing.FakePolicy", "seed": 3}
FLOW = {"_target_": "embodied.testing.FlowPolicy", "one_step": True}
SMALL = {"hidden": 16, "critics": 3}


def base_folder(folder: Path, seed: int = 3) -> str:
    """An exported folder of the fake policy."""
    folder.mkdir()
    facts = ExportFile("hf", "fp32", to_json(ENV), {}, {**FAKE, "seed": seed}, {})
    (folder / "embodied.json").write_text(json.dumps(with_files(facts, folder)), encoding="utf-8")
    return str(folder)


def learnt(policy: Any) -> Any:
    """As after some training: no weight is what it was made with."""
    policy.bind(ENV)
    with torch.no_grad():
        random = torch.Generator().manual_seed(5)
        for name, parameter in policy.named_parameters():
            if not name.startswith("head.base."):
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=random))
    return policy


def saved(run: Path, target: str, keys: dict[str, Any]) -> Path:
    """A checkpoint of such a head."""
    policy = learnt((HeadPolicy if target == HEAD else around_base)(**keys))
    origin = Origin(target, keys, (), 0, ENV, Simulator("embodied.testing.FakeEnv", MADE))
    return Checkpoints(run / "checkpoints", 1, origin=origin.as_json()).save(Learner(policy), 1)


def decided(policy: Any, sampling: Sampling) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    obs = {
        name: torch.randint(0, 256, (3, *field.shape), dtype=torch.uint8, generator=random)
        if field.dtype == "uint8" else torch.randn(3, *field.shape, generator=random)
        for name, field in ENV.obs.items()
    }  # fmt: skip
    noise = torch.randn(3, *policy.spec.noise.shape, generator=random)
    return dict(policy.act({**obs, **policy.encode_instructions(ENV.tasks)}, noise, sampling).fields)


def same(one: Any, other: Any) -> None:
    for sampling in (Sampling(do_sample=False), Sampling()):
        wanted, found = decided(one, sampling), decided(other, sampling)
        assert {*wanted} == {*found}
        for name, field in wanted.items():
            assert torch.equal(field, found[name]), name


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "from scratch": (HEAD, {"num_action_chunks": 2, "pictures": True}),
    "bounds": (HEAD, {"state_low": [-2.0] * 8, "state_high": [3.0] * 8}),
    "residual, built by a class": (AROUND, {"base": FAKE, "residual_scale": [0.1] * 6 + [0]}),
    "residual, its export": (AROUND, {"base": {"folder": "BASE"}, "num_action_chunks": 2}),
    "residual, the export of a head": (AROUND, {"base": {"_target_": HEAD, "num_action_chunks": 2, **SMALL}}),
    "noise": (AROUND, {"base": FLOW, "head": "noise", "noise_width": 7}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_folder_decides_as_its_checkpoint(case: str, tmp_path: Path, capsys: Any):
    target, keys = CASES[case]
    if keys.get("base") == {"folder": "BASE"}:
        keys = {**keys, "base": {"url": None, "folder": base_folder(tmp_path / "policy")}}
    path, out = saved(tmp_path / "run", target, {**SMALL, **keys}), tmp_path / "out"
    assert export.main([str(path.parent.parent), "--out", str(out), "--observations", "3"]) == 0
    assert "on 3 observations" in capsys.readouterr().out
    wanted = restore(path).policy
    shutil.rmtree(tmp_path / "policy", ignore_errors=True)
    moved = shutil.move(out, tmp_path / "elsewhere")  # it stands alone
    shutil.rmtree(tmp_path / "run")
    found, env = open_export(Path(moved))
    assert env == ENV
    same(wanted, found)
    same(wanted, load(Path(moved)).policy)
    records, one = decided(wanted, Sampling()), torch.zeros(3, wanted.spec.decision["chunk"].shape[0])
    obs = {"state": torch.zeros(3, 8), "images": torch.zeros(3, *ENV.obs["images"].shape, dtype=torch.uint8)}
    seen = {**records, **obs, **wanted.encode_instructions(ENV.tasks)}
    for critics in ("learning", "target"):  # the targets begin anew
        assert torch.equal(wanted.judge(seen, one, "learning"), found.judge(seen, one, critics))
    check_policy(found, ENV)
    within = Path(moved) / "base" / "embodied.json"
    assert within.is_file() == (case in ("residual, its export", "residual, the export of a head"))


@pytest.mark.slow
def test_a_base_with_adapters_is_written_with_them_merged(tmp_path: Path, capsys: Any):
    base = save(tmp_path / "oft", **LORA)
    path = saved(tmp_path / "run", AROUND, {**SMALL, "base": {"folder": str(base)}})
    out = tmp_path / "out"
    verify = ("--verify", "env=fake", *(f"env.{side}.{key}={value}" for side in ("train", "eval")
                                        for key, value in MADE.items()), "episodes=3")  # fmt: skip
    assert export.main([str(path), "--out", str(out), "--config-dir", CONFIG, *verify]) == 0, capsys.readouterr()
    shown = capsys.readouterr().out
    assert "written from" in shown
    assert "verified: env=fake" in shown
    wanted = restore(path).policy
    shutil.rmtree(tmp_path / "oft")
    found: Any = load(out).policy
    greedy = Sampling(do_sample=False)
    torch.testing.assert_close(decided(wanted, greedy)["actions"], decided(found, greedy)["actions"], atol=1e-5, rtol=0)
    assert (out / "base" / "model.safetensors").is_file()


def test_a_base_that_was_changed_within_the_folder_is_refused(tmp_path: Path):
    keys = {**SMALL, "base": {"folder": base_folder(tmp_path / "policy")}}
    path, out = saved(tmp_path / "run", AROUND, keys), tmp_path / "out"
    export.run(path, "hf", out)
    shutil.rmtree(out / "base")
    base_folder(out / "base", seed=4)
    with pytest.raises(DamagedCheckpointError, match=r"embodied\.json"):
        open_export(out)
    with pytest.raises(PolicyChangedError, match="trained on the base"):
        around_base(**SMALL, base={**FAKE, "seed": 4}, model_path=str(again(tmp_path, path))).bind(ENV)


def again(folder: Path, path: Path) -> Path:
    export.run(path, "hf", folder / "again")
    return folder / "again"


def test_a_training_begins_with_its_weights_and_other_sizes_are_refused(tmp_path: Path):
    path = saved(tmp_path / "run", HEAD, SMALL)
    out = again(tmp_path, path)
    policy: Any = HeadPolicy(**SMALL, model_path=str(out))
    policy.bind(ENV)
    same(restore(path).policy, policy)
    with pytest.raises(SpecMismatchError, match="of another size"):
        HeadPolicy(hidden=8, model_path=str(out)).bind(ENV)
    with pytest.raises(CheckpointError, match="holds no exported head"):
        HeadPolicy(model_path=base_folder(tmp_path / "policy"))
    data = bytearray((out / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (out / "model.safetensors").write_bytes(data)
    with pytest.raises(DamagedCheckpointError, match="safetensors"):
        HeadPolicy(model_path=str(out))


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--format", "onnx"), "hf"), (("--dtype", "bf16"), "written in fp32"), (("--quantize", "int8"), "--quantize"),
     (("--shard-size", "1MB"), "one small file"), (("--base", "ws://127.0.0.1:1"), "asks no server")],
)  # fmt: skip
def test_what_cannot_be_written_is_said(options: tuple[str, ...], said: str, tmp_path: Path, capsys: Any):
    path = saved(tmp_path / "run", HEAD, SMALL)
    assert export.main([str(path), "--out", str(tmp_path / "out"), "--observations", "0", *options]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_base_that_offers_no_format_is_refused_by_name(tmp_path: Path):
    origin = Origin(FAKE["_target_"], {"seed": 3}, (), 0, ENV)  # type: ignore[arg-type]
    from embodied.testing import FakePolicy

    policy = FakePolicy(seed=3)
    policy.bind(ENV)
    run = tmp_path / "plain"
    Checkpoints(run / "checkpoints", 1, origin=origin.as_json()).save(Learner(policy), 1)
    path = saved(tmp_path / "run", AROUND, {**SMALL, "base": {"folder": str(run)}})
    with pytest.raises(ConfigError, match=r"FakePolicy.*offers no format"):
        export.run(path, "hf", tmp_path / "out")


@pytest.mark.parametrize("base", [{"url": "ws://h:1"}, {"url": None, "token_file": "/a/secret"}])
def test_a_folder_that_names_a_server_or_a_secret_is_not_used(base: dict[str, Any], tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    facts = ExportFile("hf", "fp32", to_json(ENV), {}, {"_target_": AROUND, "model_path": ".", "base": base}, {})
    (out / "embodied.json").write_text(json.dumps(with_files(facts, out)), encoding="utf-8")
    from embodied.lib.weights_folder import find
    from embodied.schema.compose.brought.reading import read

    for use in (lambda: open_export(out, trust=True), lambda: load(out, trust=True, base="ws://h:2"),
                lambda: read(find(str(out)))):  # fmt: skip
        with pytest.raises(EmbodiedError, match="says of itself where a server is") as caught:
            use()
        assert "strangers" in printed(caught.value)
