"""What means nothing for a flow policy is refused before a worker starts, with its fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from embodied.models.flow_vla import build_policy

from embodied import train
from embodied.errors import ConfigError
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
        (["sampling_params.top_k=3"], "sampling_params.top_k is 3, and", "it is then 0"),
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
