"""Problems of files through the commands that users type: order, a resumed run, what is counted, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from logged import rows_of

from embodied import sft, train
from embodied.parallel.group import Group
from embodied.run.build.given import ConfiguredEnv
from embodied.run.build.preflight import check
from embodied.schema.compose.compose import compose
from embodied.types import Start

HERE = Path(__file__).parents[1]
FOLDERS = ("--config-dir", str(HERE / "config"))
RUN = (
    "env=math", "model=fake_text", "tracker=jsonl", "runner.device=cpu", "runner.task_type=math", "experiment=null",
    "reward.num_workers=2", "env.train.total_num_envs=8", "env.eval.total_num_envs=8", "env.eval.episodes_per_task=6",
    "env.train.max_response_bytes=12", "env.eval.max_response_bytes=12", "env.eval.video_cfg.save_video=false",
    "algorithm.group_size=2", "algorithm.val_sampling_params.do_sample=true", "actor.optim.lr=0.3",
    "actor.global_batch_size=16", "actor.micro_batch_size=16", "runner.save_interval=1", "runner.max_epochs=4",
    "reward.custom_reward_function.path=rewards.py", "data=train.jsonl", "data.val_data_paths=[test.jsonl]",
    "data.rollout_batch_size=4",
)  # fmt: skip
REWARDS = """
def compute_score(prompts, completions, answer, **columns):
    with open("asked.txt", "a") as file:
        file.write(prompts[0] + "\\n")
    return [completions[0].count(answer[0]) / 12]

def fails(prompts, completions, answer, **columns):
    if prompts[0].startswith("#1"):
        raise RuntimeError("no luck with this one")
    return [1.0]
"""


def write(name: str, count: int, *more: dict[str, Any]) -> None:
    rows = [{"prompt": f"#{number} {'abc'[number % 3]}", "answer": "abc"[number % 3]} for number in range(count)]
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in [*rows, *more]), encoding="utf-8")


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("rewards.py").write_text(REWARDS, encoding="utf-8")
    write("train.jsonl", 10)
    write("test.jsonl", 6)
    yield
    Path("asked.txt").unlink(missing_ok=True)


def run(name: str, *options: str) -> list[list[str]]:
    """Trains; returns the prompts that were asked since the last call, sorted, an iteration (of 8 answers) each."""
    asked = Path("asked.txt")
    asked.unlink(missing_ok=True)
    assert train.main([*RUN, f"runner.experiment_name={name}", *options, *FOLDERS]) == 0
    lines = asked.read_text(encoding="utf-8").splitlines()
    return [sorted(lines[first : first + 8]) for first in range(0, len(lines), 8)]


def test_a_resumed_run_asks_the_problems_that_would_have_come():
    files = ("data.train_data_paths=[train.jsonl, more.jsonl]", "env.train.weights=[3, 1]", "data.seed=5")
    write("more.jsonl", 30)
    whole = run("whole", *files)
    parts = run("parts", *files, "runner.max_steps=2") + run("parts", *files)
    assert whole == parts
    assert len(whole) == 4
    assert rows_of("runs/whole") == rows_of("runs/parts")
    assert [row["step"] for row in rows_of("runs/whole")] == [1, 2, 3, 4]
    assert run("other", *files, "data.seed=6") != whole


def test_the_order_of_the_files_and_whole_passes():
    def numbers(asked: list[list[str]]) -> list[list[int]]:
        return [sorted({int(line[1:].split()[0]) for line in lines}) for lines in asked]

    in_order = numbers(run("order", "data.shuffle=false"))
    assert in_order == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 8, 9], [2, 3, 4, 5]]
    dropped = numbers(run("dropped", "data.shuffle=false", "data.drop_last=true"))
    assert dropped == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7]]
    shuffled = numbers(run("shuffled", "data.drop_last=true"))
    assert len({*shuffled[0], *shuffled[1]}) == len({*shuffled[2], *shuffled[3]}) == 8
    assert shuffled[:2] != shuffled[2:]


def test_failures_of_verifiers_and_skipped_problems_are_metrics(capsys):
    write("train.jsonl", 12, {"prompt": "lost"}, {"answer": "a"})  # #1, #10 and #11 fail
    options = ("reward.custom_reward_function.name=fails", "runner.max_epochs=3", "runner.val_check_interval=3")
    assert train.main([*RUN, "runner.experiment_name=run", *options, *FOLDERS]) == 0
    rows = rows_of("runs/run")
    assert sum(row["rollout/verifier_failures"] for row in rows) == 3 * 2  # each problem once, with two answers
    assert {row["rollout/skipped_problems"] for row in rows} == {2}
    assert [row.get("eval/verifier_failures") for row in rows] == [None, None, 1]
    assert rows[0]["rollout/return_mean"] == 1 - rows[0]["rollout/verifier_failures"] / 8
    said = capsys.readouterr().out
    assert "1 of 14 rows skipped, without an answer ('answer')" in said
    assert said.count(" verdicts failed on ") == 1 + sum(row["rollout/verifier_failures"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["data.prompt_key=question"], "no row has a prompt ('question')"),
        (["data.answer_key=solution"], "The first row has the columns: prompt, answer"),
        (["data=empty.jsonl"], "empty.jsonl is empty"),
        (["data=none.jsonl"], "no file at none.jsonl"),
        (["env.train.max_prompt_bytes=3", "env.eval.max_prompt_bytes=3"], "the prompt has 4 bytes, and 3 fit"),
        (["data.train_split=train"], "train.jsonl is a file, and has no (split train)"),
        (["data.drop_last=true", "data.rollout_batch_size=16"], "data.drop_last leaves out all 10 starts"),
        (["data.train_data_paths=[]", "data.val_data_paths=[]"], "env.train.data is not set"),
        (["reward.custom_reward_function.path=none.py"], "there is no file 'none.py'"),
        (["reward.custom_reward_function.path=null", "reward.reward_type=boxd"], "Did you mean 'boxed'"),
    ],
)
def test_bad_input_is_said_before_a_run(capsys, options, said):
    Path("empty.jsonl").touch()
    assert train.main([*RUN, "runner.experiment_name=bad", *options, *FOLDERS]) == 2
    assert said in capsys.readouterr().err


SFT = (
    "env=fake_text", "model=fake_text", "tracker=jsonl", "runner.device=cpu", "env.num_workers=1",
    "env.train.total_num_envs=2", "env.eval.total_num_envs=2", "env.eval.video_cfg.save_video=false",
    "actor.optim.lr=0.3", "actor.global_batch_size=4", "actor.micro_batch_size=4", "runner.max_epochs=2",
    "sft.steps_per_iteration=3", "sft.val_samples=4", "runner.val_check_interval=-1", "data.response_key=answer",
    "data=train.jsonl",
)  # fmt: skip


def losses(name: str, *options: str) -> list[float]:
    assert sft.main([*SFT, f"runner.experiment_name={name}", *options, *FOLDERS]) == 0
    return [row["sft/loss"] for row in rows_of(f"runs/{name}")]


def test_the_order_of_demonstrations(capsys):
    plain = losses("plain")
    assert plain == losses("seeded", "data.seed=1234")  # that of the run
    assert plain != losses("other", "data.seed=5")
    in_order = losses("order", "data.shuffle=false", "data.test_size=0")
    assert in_order != losses("all", "data.test_size=0")
    assert in_order != losses("dropped", "data.shuffle=false", "data.test_size=0", "data.drop_last=true")
    options = ("runner.experiment_name=bad", "data.drop_last=true", "actor.global_batch_size=16")
    assert sft.main([*SFT, *options, *FOLDERS]) == 2
    assert "data.drop_last leaves out all 9 samples" in capsys.readouterr().err


def test_demonstrated_answers_that_are_cut_are_said(capsys):
    Path("long.jsonl").write_text(
        Path("train.jsonl").read_text(encoding="utf-8") + '{"prompt": "#10 a", "answer": "abcabcabc"}\n',
        encoding="utf-8",
    )
    for file, lines in (("train", 0), ("long", 1)):
        options = (f"data={file}.jsonl", "data.test_size=0", f"runner.experiment_name={file}", "runner.dry_run=true")
        assert sft.main([*SFT, *options, *FOLDERS]) == 0
        assert capsys.readouterr().out.count("up to 1 of 11 have more than 8 tokens") == lines


def test_answers_and_problems_of_a_file_hold_the_same_rows_out():
    write("train.jsonl", 40, {"prompt": "no problem", "response": "x"}, {"prompt": "#41", "answer": "a"})
    Path("train.jsonl").write_text(
        Path("train.jsonl").read_text(encoding="utf-8").replace('"answer"', '"response": "a", "answer"'),
        encoding="utf-8",
    )
    files = ("data=train.jsonl", "env=math", "experiment=null", "model=fake_text")
    learned = compose([*files, "env.train.data=test.jsonl", "env.eval.data=test.jsonl"], "sft", [str(HERE / "config")])
    demonstrated = check(learned, Group()).demonstrations
    rewarded = check(compose([*files, "runner.task_type=math"], "train", [str(HERE / "config")]), Group())

    def prompts(side: ConfiguredEnv) -> set[str]:
        return {side.env.prompt(Start(0, number, 0)) for number in range(side.spec.num_init_states[0])}

    out = {one.instruction for one in demonstrated.held_out}
    assert len(out) == 4
    assert prompts(rewarded.eval) == out - {"no problem"}
    assert prompts(rewarded.train) == {one.instruction for one in demonstrated.train} - {"no problem"}


def test_robots_have_no_data_sets_of_hugging_face(capsys):
    options = ("env=fake", "model=fake", "data.train_split=train", "runner.experiment_name=bad")
    assert sft.main([*SFT, *options, *FOLDERS]) == 2
    assert "data.train_split: for texts alone" in capsys.readouterr().err


def test_an_evaluation_alone_reads_its_problems(capsys):
    own = ("data.train_data_paths=[]", "runner.only_eval=true", "runner.experiment_name=eval")
    assert train.main([*RUN, *own, *FOLDERS]) == 0
    assert "6 = 1 task × 6" in capsys.readouterr().out


def test_demonstrations_of_a_data_set_of_the_user():
    Path("mine.py").write_text(
        "import json\n"
        "def rows(data_files, repeat=1):\n"
        "    for file in data_files:\n"
        "        yield from repeat * [json.loads(line) for line in open(file, encoding='utf-8')]\n",
        encoding="utf-8",
    )
    own = ("data.custom_cls.path=mine.py", "data.custom_cls.name=rows", "data.val_data_paths=[test.jsonl]")
    assert losses("own", *own) == losses("files", "data.val_data_paths=[test.jsonl]")
    assert losses("twice", *own, "data.options={repeat: 2}") != losses("own2", *own)
