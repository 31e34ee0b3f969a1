"""``docs/how_to/your_problems.md`` followed to the letter: from a JSONL file and a reward to an exported model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_how_to import commands, rows, run, write_files

from embodied.schema.compose.compose import compose

PAGE = "your_problems.md"
HERE = ["make_problems.py", "rewards.py", "my/experiment/problems.yaml"]
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
    make, show, learn, judge, export, smollm = commands(PAGE)
    run(make, tmp_path)
    assert [len(Path(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()) for name in ("train", "test")] == [
        900,
        100,
    ]
    for command, entry in ((show, "sft"), (learn, "train"), (judge, "eval")):
        words = command.split("--config-dir my ")[1].split()
        config = compose(words, entry, ["my"]).config
        assert config.runner.experiment_name in ("shown", "learnt", "judged")
    assert "--out sorter" in export
    words = [word.replace('""', "") for word in smollm.split("--config-dir my ")[1].split()]
    assert compose(words, "train", ["my"]).config.actor.model.model_extra["is_lora"] is True


@pytest.mark.slow
def test_a_jsonl_file_and_a_reward_become_a_trained_and_exported_model(tmp_path: Path) -> None:
    write_files(PAGE, tmp_path)
    make, show, learn, judge, export, _ = commands(PAGE)
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
