"""``python -m embodied.tools.serve`` as users run it: a process of its own, in which no simulator can be imported."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from serving_rig import ENV, ask, listening, observation
from small_run import HIDDEN, RUN
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from embodied import config, train
from embodied.client import wire
from embodied.errors import CheckpointError, ConfigError, UnknownNameError
from embodied.learn.checkpoint.exported import ExportFile, check_trusted, with_files
from embodied.lib.spec_json import to_json
from embodied.serving.loading import load, parse_keys
from embodied.testing import FakePolicy
from embodied.tools import export as tools_export
from embodied.tools import serve
from embodied.types import Sampling

COMMAND = f"import sys\nfor name in {HIDDEN}: sys.modules[name] = None\n" + (
    "from embodied.tools.serve import main\nsys.exit(main(sys.argv[1:]))"
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert train.main([*RUN]) == 0
    finally:
        os.chdir(before)
    return folder / "runs" / "run" / "checkpoints" / "000001"


def export(folder: Path, target: str = "embodied.testing.FakePolicy") -> Path:
    """A folder as an export writes it, of the fake policy."""
    folder.mkdir()
    facts = ExportFile("hf", "fp32", to_json(ENV), {}, {"_target_": target, "seed": 3}, {})
    (folder / "embodied.json").write_text(json.dumps(with_files(facts, folder)), encoding="utf-8")
    assert set(asdict(facts)) >= {"model", "env_spec"}
    return folder


@contextmanager
def command(*arguments: str) -> Iterator[tuple[subprocess.Popen, int]]:
    """The command in a process, and its port."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", COMMAND, *arguments, "--port", "0"]
    with listening(words, environ, subprocess.PIPE) as found:
        yield found


def test_a_checkpoint_is_served_without_a_simulator_until_sigterm(checkpoint: Path):
    with command(str(checkpoint)) as (process, port):
        assert urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10).read() == b"ready\n"
        with connect(f"ws://127.0.0.1:{port}", compression=None, proxy=None) as socket:
            told = wire.unpack(socket.recv(timeout=10))
            message = observation(1)
            message["images"] = np.zeros(told["observation"]["images"]["shape"], np.uint8)
            reply = ask(socket, message)
            assert list(reply["actions"].shape) == told["action_shape"]
            process.send_signal(signal.SIGTERM)
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=20)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1001
        _, said = process.communicate(timeout=30)
        assert process.returncode == 0, said
        assert "Traceback" not in said


def test_an_export_is_loaded(tmp_path: Path):
    policy, env, source = load(export(tmp_path / "export"))
    assert env == ENV
    assert "hf export" in source
    expected = FakePolicy(seed=3)
    assert isinstance(policy, FakePolicy)
    assert (policy.head.weight == expected.head.weight).all()


def test_keys_of_the_policy_take_the_place_of_the_folder_s(tmp_path: Path, checkpoint: Path):
    keys = parse_keys(["actor.model.num_action_chunks=6", "actor.model.seed=5"])
    policy = load(exported := export(tmp_path / "export"), keys=keys).policy
    assert policy.spec.decision["actions"].shape[0] == policy.spec.num_action_chunks == 6
    with pytest.raises(CheckpointError, match="of another model"):  # built so, and its weights are those of 4 actions
        load(checkpoint, keys=keys)
    for folder in (exported, checkpoint):
        with pytest.raises(UnknownNameError, match=r"Did you mean 'actor\.model\.seed'"):
            load(folder, keys={"sed": 5})
    with pytest.raises(ConfigError, match="no model of this library"):
        load(export(tmp_path / "other", "no_such_module.Policy"), keys=keys)


def as_checkpoint(folder: Path, checkpoint: Path, **policy: object) -> None:
    """Lays a checkpoint over an export, with other facts of its policy."""
    shutil.copytree(checkpoint, folder, dirs_exist_ok=True)
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    del meta["checksum"]
    meta["origin"]["policy"] |= policy
    (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")


def test_code_of_strangers_is_not_run(tmp_path: Path):
    folder = export(tmp_path / "export", "subprocess.run")
    with pytest.raises(ConfigError, match=r"subprocess\.run"):
        load(folder)
    folder = export(tmp_path / "other", "serving_rig.SlowPolicy")
    with pytest.raises(ConfigError, match="no model of this library"):
        load(folder)
    with pytest.raises(TypeError, match="seed"):  # it is called, with the keyword arguments of the folder
        load(folder, trust=True)
    with pytest.raises(ConfigError, match="no model of this library"):  # it begins as ours do
        load(export(tmp_path / "check", "embodied.testing.check_policy"))


def test_every_model_of_the_configuration_may_be_named_by_a_folder():
    folder = Path(config.__file__).parent / "model"
    texts = [file.read_text(encoding="utf-8") for file in folder.glob("*.yaml")]
    targets = {target for text in texts for target in re.findall(r"^_target_: (.+)$", text, re.M)}
    assert "embodied.models.mlp.MLPPolicy" in targets
    served = "embodied.models.served.build_policy"  # a folder could name any address, and a file that is sent there
    for target in sorted(targets - {"embodied.models.auto.ByEnv", served}):  # the first chooses one of them
        check_trusted(target, {}, Path("folder"))
    with pytest.raises(ConfigError, match="no model of this library"):
        check_trusted(served, {"url": "ws://127.0.0.1:1", "token_file": "secrets"}, Path("folder"))


def test_a_checkpoint_of_strangers_is_not_run_either(tmp_path: Path, checkpoint: Path):
    """One file more makes an export a checkpoint."""
    as_checkpoint(folder := export(tmp_path / "export"), checkpoint, _target_="serving_rig.SlowPolicy", kwargs={"x": 1})
    with pytest.raises(ConfigError, match=r"serving_rig\.SlowPolicy.*no model of this library"):
        load(folder)
    with pytest.raises(TypeError, match="'x'"):  # it is called
        load(folder, trust=True)
    as_checkpoint(folder, checkpoint, kwargs={"trust": True})
    with pytest.raises(ConfigError, match="says of itself that it is to be trusted") as caught:
        load(folder)
    assert "--trust" in caught.value.remedy


def test_a_folder_of_something_else_is_said(tmp_path: Path, checkpoint: Path):
    with pytest.raises(CheckpointError, match="neither a checkpoint"):
        load(tmp_path)
    with pytest.raises(CheckpointError, match="there is no folder"):
        load(tmp_path / "nothing")
    assert load(checkpoint.parents[1]).source == f"checkpoint {checkpoint}", "the newest of a run"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "can be reached from other machines"),
        (["--token-file", "none"], "cannot be read"),
        (["--tls-cert", "cert.pem"], "both a certificate and its key"),
        (["--max-batch", "0"], "give a number above 0"),
        (["--rate", "-1"], "give a number above 0"),
        (["--temperature", "nan"], "--temperature is nan"),
        (["--port", "99999"], "give a number from 0 to 65535"),
        (["--threads", "-1"], "--threads is -1"),
        (["--device", "gpu"], "--device is gpu, expected auto, cpu, cuda or cuda:1"),
        (["--device", "cuda:77"], "--device is cuda:77"),
        ([], "neither a checkpoint"),
        (["--map", "state"], "neither a checkpoint"),
        (["--port", "0", "model.seed=1"], "model.seed=1: expected actor.model.KEY=VALUE"),
    ],
)
def test_wrong_arguments_end_with_status_2(tmp_path, capsys, arguments, said):
    assert serve.main([str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "fix:" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(("arguments", "said"), [(["--map", "q=stat"], "Did you mean"), (["--map", "q"], "KEY=FIELD")])
def test_wrong_keys_end_with_status_2(tmp_path, capsys, arguments, said):
    assert serve.main([str(export(tmp_path / "export")), "--device", "cpu", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hf", "torch_export", "onnx"])
def test_exports_of_openvla_oft_answer_as_their_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.chdir(tmp_path)
    assert train.main([*RUN, "model=openvla_oft_tiny"]) == 0
    (source,) = Path("runs/run/checkpoints").iterdir()
    policy, env, _ = load(source)
    if kind not in policy.export_formats:
        pytest.skip(f"this version does not write {kind}")
    assert tools_export.main([str(source), "--format", kind, "--out", "export", "--observations", "0"]) == 0
    exported, again, said = load(Path("export"))
    assert again == env
    assert f"{kind} export" in said
    message = observation()
    obs = {name: torch.from_numpy(message[name]).unsqueeze(0) for name in ("images", "state")}
    noise = torch.full((1, *policy.spec.noise.shape), 0.5)
    answers = [
        one.act({**obs, **one.encode_instructions(["open the drawer"])}, noise, Sampling(do_sample=False)).fields
        for one in (policy, exported)
    ]
    assert torch.allclose(answers[0]["actions"], answers[1]["actions"], atol=1e-4)
