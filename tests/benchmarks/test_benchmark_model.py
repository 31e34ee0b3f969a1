"""benchmarks/model.py compares equal things: its plain path gives the numbers of the policy's own."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from benchmark_file import load


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return load("model")


@pytest.fixture
def arguments(benchmark, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["model.py", "--device", "cpu", "--batches", "2", "--micro-batches", "2"])
    args = benchmark.arguments()
    assert (args.size, args.precision) == ("tiny", "fp32")
    args.matmul = 64
    return args


def test_the_plain_path_gives_the_same_logits(benchmark, arguments) -> None:
    bench = benchmark.Bench(arguments)
    obs, _ = bench.observations(2)
    with torch.no_grad():
        ours, plain = (
            bench.policy.parts.read_out(bench.policy.inputs(obs)).logits,
            benchmark.plain_logits(bench.policy, obs),
        )
    assert (ours - plain).abs().max() <= 1e-4


def test_every_variant_gives_a_row_and_a_ratio(benchmark, arguments) -> None:
    bench = benchmark.Bench(arguments)
    variants = bench.variants(arguments)
    for variant in variants:
        bench.measure(variant, min_seconds=0.0)
    rows = benchmark.rows_of(variants)
    assert [(row["variant"], row["batch"]) for row in rows] == [
        ("matmul", 64), ("eager", 2), ("plain", 2), ("train", 2)
    ]  # fmt: skip
    assert all(row["rate"]["median"] > 0 and row["peak_gb"] > 0 for row in rows)
    assert list(benchmark.ratios_of(rows)) == ["eager/plain at 2"]


def test_the_gaps_of_float32_are_nothing_and_those_of_bf16_are_something(arguments, monkeypatch) -> None:
    gaps = load("_model_gaps")
    monkeypatch.setattr(gaps, "GAP_BATCH", 4)
    monkeypatch.setattr(gaps, "GAP_CALL", 2)
    exact, coarse = (gaps.gaps_of(arguments, precision) for precision in ("fp32", "bf16"))
    assert exact["gradient_relative_error"] <= 1e-6
    assert exact["act_evaluate_max"] <= 1e-5
    assert 1e-3 < coarse["logprob_error_mean"] < 0.1
    assert coarse["gradient_cosine"] > 0.95
