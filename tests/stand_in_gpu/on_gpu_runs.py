"""Whole commands on the device: the same numbers as on the CPU, and no copy or wait that is not named."""

from __future__ import annotations

from pathlib import Path

import pytest
import runtime
import seeded_runs
from named import NAMED
from torch.nn.attention import SDPBackend, sdpa_kernel

from embodied import train

CONFIG = Path(__file__).parents[1] / "config"
SHORT = ("runner.max_epochs=1", "runner.val_check_interval=1")
RUNS = {
    "ppo": ("algorithm.update_epoch=2", "runner.max_epochs=2"),
    "tis": SHORT,
    "ema": SHORT,
    "terms": ("runner.max_epochs=2", "algorithm.early_stop_imp_ratio=5", "actor.enable_offload=true"),
    "oft": (*SHORT, "rollout.enforce_eager=false"),
    "oft ppo": (*SHORT, *seeded_runs.RUNS["oft"][2], "algorithm=ppo"),
    "texts": (
        *(*SHORT, "env=fake_text", "model=causal_lm_tiny", "tracker=jsonl", "runner.task_type=math"),
        *("env.train.total_num_envs=4", "env.eval.total_num_envs=4", "algorithm.group_size=2"),
        *("algorithm.rollout_epoch=1", "actor.model.max_new_tokens=12", "rollout.enforce_eager=false"),
        *("actor.global_batch_size=4", "actor.micro_batch_size=2", "algorithm.kl_beta=0.1"),
    ),
}
ROUNDED = ("oft", "oft ppo", "texts")  # several micro-batches and steps of these are equal to rounding alone
seen: dict[str, set[tuple[str, str]]] = {}
"""Copies and waits of the runs so far."""


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_the_numbers_of_the_cpu(gpu_process, name, tmp_path, monkeypatch):
    run = name.replace(" ", "_")
    usual = seeded_runs.RUNS[name][2] if name in seeded_runs.RUNS else ()
    keys = [*usual, *RUNS[name], "env.num_workers=1", f"runner.experiment_name={run}"]
    for device in ("cpu", "cuda"):
        (tmp_path / device).mkdir()
        monkeypatch.chdir(tmp_path / device)
        command = [*keys, f"runner.device={device}", "--config-dir", str(CONFIG)]
        if device == "cpu":
            with sdpa_kernel(SDPBackend.MATH):
                assert train.main(command) == 0
        else:
            with runtime.opened() as gpu:
                assert train.main(command) == 0
    if name in ROUNDED:
        found, wanted = (seeded_runs.metrics(tmp_path / device / "runs" / run)[0] for device in ("cuda", "cpu"))
        for key in ("train/loss", "train/grad_norm", "rollout/return_mean"):
            assert found.get(key) == pytest.approx(wanted.get(key), rel=1e-3), key
    else:
        assert seeded_runs.compare(tmp_path / "cpu", tmp_path / "cuda") == []
    seen[name] = set(gpu.seen)
    unnamed = sorted(gpu.seen.keys() - NAMED.keys())
    assert not unnamed, "\n".join(map(str, unnamed))


def test_every_name_is_needed(gpu_process):
    if seen.keys() != RUNS.keys():
        pytest.skip("only after all runs")
    assert sorted(NAMED.keys() - set().union(*seen.values())) == []
