"""benchmarks/trainer.py compares equal things: both variants take the same step."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from benchmark_file import load


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load("trainer")


@pytest.fixture
def bench(benchmark, monkeypatch):
    given = ["--device", "cpu", "--horizon", "3", "--group", "2", "--chances", "0", "0.5", "1", "--micro-batch", "4"]
    monkeypatch.setattr(sys, "argv", ["trainer.py", *given])
    return benchmark.Bench(benchmark.arguments())


def test_both_variants_take_the_same_step(bench) -> None:
    ours, padded = bench.variants
    gradients = []
    for variant in bench.variants:
        step = variant.trainer.optimizer.step

        def spy(variant=variant, step=step) -> None:
            named = variant.trainer.policy.named_parameters()
            gradients.append({name: p.grad.clone() for name, p in named if p.grad is not None})
            step()

        variant.trainer.optimizer.step = spy
        variant.measure(bench.arrays, 0)
    assert gradients[0].keys() == gradients[1].keys()
    assert any(g.abs().max() > 1e-3 for g in gradients[0].values())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-3, atol=1e-5)
    assert padded.trainer.samples == 6 * 3
    assert ours.trainer.samples == bench.useful == sum(len(r.rows) for r in ours.results[2:4]) < 6


def test_every_variant_gives_a_row_and_a_ratio(benchmark, bench) -> None:
    lines = list(benchmark.rounds(bench, 1))
    assert len(lines) == 4
    rows = benchmark.rows_of(bench)
    assert [(row["variant"], row["useful"]) for row in rows] == [("ours", bench.useful), ("padded", bench.useful)]
    assert all(row["ms_per_useful"]["median"] > 0 for row in rows)
    ratios = benchmark.ratios_of(bench)
    assert ratios["records"] == 18 / bench.useful
    assert ratios["wall"] > 0
