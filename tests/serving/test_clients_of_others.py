"""The clients that users have, from the package index, in an environment of their own: openpi's pins numpy below 2."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from environments import python_with
from serving_rig import ENV, serving

from embodied.testing import FakePolicy
from embodied.types import Sampling

PACKAGES = ("openpi-client==0.1.2", "typing_extensions", "json-numpy==2.1.1")
TOKEN = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def python(pytestconfig: pytest.Config) -> Path:
    """The interpreter of that environment; it is made once and kept with pytest's cache."""
    assert pytestconfig.cache is not None
    return Path(python_with(PACKAGES, pytestconfig.cache.mkdir("clients-of-others") / "venv"))


@pytest.mark.slow
def test_openpis_own_client_and_json_numpy(python: Path):
    script = Path(__file__).parent / "clients_of_others.py"
    with serving(token=TOKEN) as served:
        command = [python, script, str(served.port), TOKEN]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env={"no_proxy": "*"}, encoding="utf-8"
        )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    openpi, openvla = said["openpi"], said["openvla"]
    expected = in_process()
    assert openpi["numpy"].startswith("1.")
    assert openpi["metadata"] == [4, 7]
    assert [np.array_equal(np.float32(actions), expected) for actions in openpi["actions"]] == [True, True]
    assert "expected float32 [8]" in openpi["error"]
    assert {"infer_ms", "prev_total_ms"} <= set(openpi["timing"])
    assert openpi["policy_timing"] == ["infer_ms"]
    assert np.array_equal(np.float32(openpi["steps"]), expected[[0, 1, 2, 3, 0]])
    assert np.array_equal(np.float32(openvla["actions"]), expected)
    assert openvla["twice"] == openvla["actions"]


def in_process() -> np.ndarray:
    """The actions for the same observation."""
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, ENV.obs["images"].shape, np.uint8)
    state = random.standard_normal(8).astype(np.float32)
    policy = FakePolicy()
    policy.bind(ENV)
    obs = {"images": torch.from_numpy(pictures)[None], "state": torch.from_numpy(state)[None]}
    noise = torch.zeros(1, *policy.spec.noise.shape)
    told = policy.encode_instructions([ENV.tasks[1]])
    return policy.act({**obs, **told}, noise, Sampling(do_sample=False)).fields["actions"][0].numpy()
