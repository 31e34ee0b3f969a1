"""benchmarks/math_quickstart.py: what it runs of an experiment, and how calls are counted."""

import json
from types import SimpleNamespace

import benchmark_file
import pytest


@pytest.fixture(scope="module")
def quickstart():
    return benchmark_file.load("math_quickstart")


TALKS = (  # problem 12*34: called rightly and answered; wrongly, then rightly, and answered wrongly
    {"prompt": "12*34=<calc>12*34</calc><result>408</result>", "response": ";408", "success": True},
    {
        "prompt": "12*34=<calc>12*3</calc><result>36</result><calc>12*34</calc><result></result>", "response": ";36",
        "success": False,
    },
    {"prompt": "12*34=<calc>1/0</calc><result>error: division by zero</result>", "response": ";1", "success": False},
    {"prompt": "12*34=", "response": "<calc>12*34", "success": False},  # a call that never ends
    {"prompt": "12*34=", "response": "12*34</calc>;408", "success": True},  # no call
)  # fmt: skip


def test_calls_are_counted_over_whole_transcripts(quickstart):
    assert quickstart._calls.count(TALKS) == {
        "episodes": 5, "with_call": 4, "calls": 5, "well_formed": 3, "of_problem": 2, "right_call": 2,
        "answered_right": 1,
    }  # fmt: skip


def test_shares_of_nothing_are_a_dash(quickstart):
    lines = quickstart._calls.table({"a": quickstart._calls.count(TALKS), "b": quickstart._calls.count(TALKS[-1:])})
    assert lines.splitlines()[2:] == [
        "| a | 80.0% | 1.00 | 60.0% | 40.0% | 50.0% |",
        "| b | 0.0% | 0.00 | – | – | – |",
    ]


def test_a_control_is_cloned_trained_and_evaluated_without_what_it_lacks(quickstart, tmp_path):
    proof, said = quickstart.PROOFS["math_calculator"], {}
    steps = SimpleNamespace(out=tmp_path, run=lambda name, module, *given: said.update({name: (module, given)}))
    for name, _, _ in proof.runs():
        for folder in (name, f"{name}/first"):
            (tmp_path / "runs" / folder / "checkpoints" / "000001").mkdir(parents=True)
    quickstart.everything(steps, proof, together=2)
    assert sorted(name for name, (module, _) in said.items() if module == "train") == [
        "math-calculator-1", "math-calculator-2", "math-calculator-3", "math-calculator-without-calls-1",
        "math-calculator-without-results-1",
    ]  # fmt: skip
    _, plain = said["math-calculator-2"]
    assert plain == (
        "experiment=math_calculator", "runner.experiment_name=math-calculator-2", "runner.seed=2",
    )  # fmt: skip
    _, control = said["math-calculator-without-results-1"]
    (first,) = [json.loads(one.removeprefix("runner.first=")) for one in control if one.startswith("runner.first=")]
    assert "data.options.results=false" in first
    for given in (control, first, said["math-calculator-without-results-1-after-greedy"][1]):
        assert "env.train.results=false" in given
        assert "env.eval.results=false" in given
    assert "runner.first=[]" in said["math-calculator-1-before-sampled"][1]
    cloned = tmp_path / "runs" / "math-calculator-1" / "first" / "checkpoints" / "000001"
    assert f"runner.ckpt_path={cloned}" in said["math-calculator-1-before-sampled"][1]


def test_the_report_shows_runs_that_are_complete(quickstart, tmp_path):
    proof = quickstart.PROOFS["math_calculator"]
    name = "math-calculator-without-results-1"
    (tmp_path / "runs" / name).mkdir(parents=True)
    rows = [{"step": 1, "rollout/success_rate": 0.25, "time/iteration_s": 30.0}, {"step": 1, "eval/success_rate": 0.5}]
    (tmp_path / "runs" / name / "metrics.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8"
    )
    (tmp_path / f"{name}.json").write_text(json.dumps({"wall_s": 90.0}), encoding="utf-8")
    task = {"successes": 2, "episodes": 5, "success_rate": 0.4, "low": 0.1, "high": 0.8}
    for when, how in quickstart.EVALUATIONS:
        folder = tmp_path / "runs" / f"{name}-{when}-{how}"
        (folder / "eval").mkdir(parents=True)
        (folder / "eval" / "000000.json").write_text(json.dumps({"tasks": [{}, task]}), encoding="utf-8")
        (folder / "generations").mkdir()
        (folder / "generations" / "000000.jsonl").write_text(
            "".join(f"{json.dumps(talk)}\n" for talk in TALKS), encoding="utf-8"
        )
    assert quickstart.collect(tmp_path, proof)["runs"] == {}
    (tmp_path / f"{name}-after-sampled.json").write_text("{}", encoding="utf-8")
    result = quickstart.collect(tmp_path, proof)
    cell = "40.0% (10.0% to 80.0%)"
    lines = quickstart.tables(result, proof).splitlines()
    assert f"| without results, seed 1 | {' | '.join([cell] * 4)} | 1.5 min |" in lines
    assert "| without results, seed 1 | after sampled | 80.0% | 1.00 | 60.0% | 40.0% | 50.0% |" in lines
