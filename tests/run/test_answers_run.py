"""Answers of a file, verified without a model, through the command that users type."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from embodied import eval as evaluation
from embodied import train

HERE = Path(__file__).parents[1]
SUMS = [(f"{n}+{n}=", str(2 * n)) for n in range(6)]
MATH = (
    "env=math", "env.train.data=sums.jsonl", "env.eval.data=sums.jsonl", "env.num_workers=2", "tracker=jsonl",
    "env.eval.total_num_envs=4", "env.eval.video_cfg.save_video=false", "env.train.max_response_bytes=64",
    "env.eval.max_response_bytes=64",
)  # fmt: skip
FAKE = (
    "env=fake_text", "tracker=jsonl", "env.num_workers=2", "env.train.total_num_envs=8", "env.eval.total_num_envs=8",
    "env.eval.video_cfg.save_video=false", "--config-dir", str(HERE / "config"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write("sums.jsonl", [{"prompt": prompt, "answer": answer} for prompt, answer in SUMS])


def write(name: str, rows: list[dict[str, Any]]) -> None:
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def verified(*options: str, name: str = "run") -> dict[str, Any]:
    assert evaluation.main([*MATH, "answers=answers.jsonl", f"runner.experiment_name={name}", *options]) == 0
    return json.loads(Path(f"runs/{name}/eval/000000.json").read_text(encoding="utf-8"))


def test_answers_are_verified_by_prompt_and_by_number(capsys):
    write("answers.jsonl", [
        {"prompt": "3+3=", "response": r"\boxed{6}"},
        {"problem": 0, "responses": [r"\boxed{0}", r"\boxed{1}", "none"]},
        {"start": {"task_id": 0, "init_state_id": 5, "seed": 3}, "response": r"\boxed{11}"},
        {"prompt": "3+3=", "responses": [r"\boxed{6.0}", r"\boxed{7}"]},
        {"problem": 5, "task": "sums.jsonl", "responses": [r"\boxed{10}", r"\boxed{10.0}"]},
    ])  # fmt: skip
    found = verified()
    starts = [(one["start"]["init_state_id"], one["success"]) for one in found["episodes"]]
    assert starts == [
        (0, True), (0, False), (0, False), (3, True), (3, True), (3, False), (5, False), (5, True), (5, True),
    ]  # fmt: skip
    (_, total) = found["tasks"]
    assert (total["successes"], total["episodes"]) == (5, 9)
    assert 0.55 - total["low"] > 0.3  # three problems, not nine
    assert found["rates"]["eval/pass_at/1"] == pytest.approx(5 / 9)
    assert found["rates"]["eval/pass_at/2"] == pytest.approx((2 / 3 + 1 + 1) / 3)
    assert found["rates"]["eval/maj_at/2"] == pytest.approx((1 / 2 + 2 / 3 + 2 / 3) / 3)
    assert found["answers"] == {
        "answers": 9, "problems": 3, "total": 6, "most": 3, "success_rate": pytest.approx((1 / 3 + 2 / 3 + 2 / 3) / 6)
    }  # fmt: skip
    assert found["conditions"]["weights"] == "answers.jsonl"
    out = capsys.readouterr().out
    assert "9 answers to 3 of 6 problems; 3 have none" in out
    assert "with the 3 problems without an answer as wrong: 27.8%" in out
    assert "maj@k" in out
    assert not list(Path("runs/run").glob("checkpoints"))


def test_all_answered_once_is_an_accuracy(capsys):
    write("answers.jsonl", [{"prompt": p, "response": rf"\boxed{{{a}}}"} for p, a in reversed(SUMS)])
    found = verified("runner.logger.log_val_generations=2")
    assert found["tasks"][-1]["success_rate"] == 1
    assert found["rates"] == {}
    assert "have none" not in capsys.readouterr().out
    kept = [
        json.loads(line) for line in Path("runs/run/generations/000000.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [(one["prompt"], one["response"]) for one in kept] == [("0+0=", r"\boxed{0}"), ("1+1=", r"\boxed{2}")]


def test_numbers_are_those_of_rows_whatever_is_left_out():
    write("gaps.jsonl", [{"prompt": "none", "answer": ""}, *({"prompt": p, "answer": a} for p, a in SUMS)])
    data = ("env.train.data=gaps.jsonl", "env.eval.data=gaps.jsonl")
    for more in ((), ("env.train.shuffle=true", "env.eval.shuffle=true", "env.train.shuffle_seed=3")):
        write("answers.jsonl", [{"problem": n + 1, "response": rf"\boxed{{{2 * n}}}"} for n in range(6)])
        assert verified(*data, *more, name=f"run{len(more)}")["tasks"][-1]["successes"] == 6


def test_a_csv_file_will_do():
    Path("answers.csv").write_text('problem,response\n4,\\boxed{8}\n2,"\\boxed{1,004}"\n', encoding="utf-8")
    assert evaluation.main([*MATH, "answers=answers.csv", "runner.experiment_name=run"]) == 0
    found = json.loads(Path("runs/run/eval/000000.json").read_text(encoding="utf-8"))
    assert [(one["start"]["init_state_id"], one["success"]) for one in found["episodes"]] == [(2, False), (4, True)]


def test_a_hanging_verifier_costs_its_answer_alone():
    Path("rewards.py").write_text(
        "def f(solution_str, ground_truth):\n    while solution_str == 'hang': pass\n    return 1", encoding="utf-8"
    )
    verifier = "[{name: custom, path: rewards.py, function: f, verify_timeout_s: 0.3}]"
    write("answers.jsonl", [{"problem": n, "response": "hang" if n == 2 else "ok"} for n in range(6)])
    found = verified(f"env.train.verifier={verifier}", f"env.eval.verifier={verifier}")
    assert [one["success"] for one in found["episodes"]] == [True, True, False, True, True, True]


def test_conversations_are_matched_as_the_env_puts_them():
    told = [{"role": "system", "content": "add"}, {"role": "user", "content": "2+2="}]
    write("answers.jsonl", [{"prompt": told, "response": r"\boxed{4}"}])
    system = ("env.train.system_prompt=add", "env.eval.system_prompt=add")
    assert verified(*system)["episodes"][0]["success"]


def test_what_a_model_was_worth_comes_again_from_its_generations():
    options = ("model=fake_text", "runner.device=cpu", "runner.logger.log_val_generations=12")
    several = ("algorithm.val_sampling_params.do_sample=true", "algorithm.val_group_size=2")
    shown = ("env.eval.episodes_per_task=6", "runner.experiment_name=model")
    assert evaluation.main([*FAKE, *options, *several, *shown]) == 0
    file = "runs/model/generations/000000.jsonl"
    assert evaluation.main([*FAKE, f"answers={file}", "runner.experiment_name=file"]) == 0
    by_model, by_file = (
        json.loads(Path(f"runs/{run}/eval/000000.json").read_text(encoding="utf-8")) for run in ("model", "file")
    )
    assert by_file["tasks"] == by_model["tasks"]
    assert by_file["rates"] == by_model["rates"] != {}
    assert [one["return"] for one in by_file["episodes"]] == [one["return"] for one in by_model["episodes"]]


def test_no_model_is_built():
    write("answers.jsonl", [{"problem": 0, "response": ""}])
    assert verified("model=causal_lm", "actor.model.model_path=/nowhere")["tasks"][-1]["successes"] == 0


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "9+9=", "response": "18"}, "answers.jsonl, row 1: no problem of env.eval has the prompt '9+9='"),
        ({"problem": 6, "response": "18"}, "no problem 6: none of the 6 of task 0 of env.eval is of that row"),
        ({"start": {"init_state_id": 6}, "response": "18"}, "no problem 6, task 0 of env.eval has 6"),
        ({"problem": "six", "response": "18"}, "no problem 'six'"),
        ({"problem": 1, "task": 1, "response": "18"}, "no task 1, env.eval has 1"),
        ({"problem": 1, "task": "sum.jsonl", "response": "18"}, "Did you mean 'sums.jsonl'?"),
        ({"problem": 1}, "row 1 holds no answer"),
        ({"problem": 1, "responses": []}, "row 1 holds no answer"),
        ({"problem": 1, "response": 18}, "row 1 holds no answer"),
        ({"prompt": 7, "response": "18"}, "the prompt is 7"),
        ({"problem": 1, "prompt": "2+2=", "response": "4"}, "row 1: its prompt is '2+2=', and that of the problem"),
        ({"start": {"init_state_id": 1}, "prompt": "2+2=", "response": "4"}, "row 1: its prompt is '2+2='"),
        ({"response": "18"}, "names no problem; it has response"),
        ({"problem": 1, "response": "x" * 65}, "the answer has 65 bytes, and the env takes 64"),
    ],
)
def test_rows_that_fit_no_problem_are_named(row, said, capsys):
    write("answers.jsonl", [{"problem": 0, "response": "0"}, row])
    assert evaluation.main([*MATH, "answers=answers.jsonl", "runner.experiment_name=run"]) == 2
    assert said in capsys.readouterr().err
    assert not Path("runs/run/eval").exists()


def test_what_cannot_be_evaluated_is_refused(capsys):
    write("answers.jsonl", [{"problem": 0, "response": "0"}])
    write("empty.jsonl", [])
    commands = {
        "answers of a file can only be evaluated": (train.main, [*MATH, "answers=answers.jsonl"]),
        "whose answers are evaluated?": (evaluation.main, [*MATH, "answers=answers.jsonl", "runner.ckpt_path=x"]),
        "empty.jsonl is empty": (evaluation.main, [*MATH, "answers=empty.jsonl"]),
        "no file at none.jsonl": (evaluation.main, [*MATH, "answers=none.jsonl"]),
        "up to 2 turns": (evaluation.main, [*FAKE, "answers=answers.jsonl", "env.train.turns=2", "env.eval.turns=2"]),
        "runner.answers: for texts alone": (evaluation.main, [*FAKE, "env=fake", "answers=answers.jsonl"]),
    }  # fmt: skip
    for said, (main, options) in commands.items():
        assert main([*options, "runner.experiment_name=run"]) == 2
        assert said in capsys.readouterr().err


def test_a_dry_run_says_what_would_be_done(capsys):
    write("answers.jsonl", [{"problem": 0, "response": "0"}])
    assert evaluation.main([*MATH, "answers=answers.jsonl", "runner.dry_run=true"]) == 0
    out = capsys.readouterr().out
    assert "math-answers-eval" in out
    assert "1 answer to 1 of 6 problems; 5 have none" in out
    assert not Path("runs").exists()


@pytest.mark.slow
def test_two_ranks_share_the_answers():
    import subprocess

    write("answers.jsonl", [{"prompt": p, "responses": [rf"\boxed{{{a}}}", "0"]} for p, a in SUMS])
    one = verified()
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launch, "-m", "embodied.eval", *MATH, "answers=answers.jsonl", "runner.experiment_name=two"]
    subprocess.run([*command, "env.num_workers=1"], check=True, timeout=300)
    assert json.loads(Path("runs/two/eval/000000.json").read_text(encoding="utf-8")) == one
