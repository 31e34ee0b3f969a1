"""Texts through the commands that users type, with the fakes: learn from answers, then from rewards."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import warm
from logged import rows_of

from embodied import sft, train
from embodied.errors import ConfigError
from embodied.evaluation import results
from embodied.evaluation.pass_at_k import majority_at
from embodied.instructions import answer_code
from embodied.schema.compose.compose import compose

HERE = Path(__file__).parents[1]
FOLDERS = ("--config-dir", str(HERE / "config"))
COMMON = (
    "env=fake_text", "model=fake_text", "tracker=jsonl", "runner.device=cpu", "env.num_workers=2",
    "env.train.total_num_envs=16", "env.eval.total_num_envs=16", "env.eval.episodes_per_task=24",
    "env.eval.video_cfg.save_video=false", "actor.optim.lr=0.3",
    "algorithm.val_sampling_params.do_sample=true",
)  # fmt: skip
TRAIN = (
    *COMMON, "runner.task_type=math", "runner.max_epochs=8", "runner.val_check_interval=8", "runner.save_interval=4",
    "algorithm.rollout_epoch=4", "algorithm.group_size=8", "actor.global_batch_size=64", "actor.micro_batch_size=32",
    "runner.logger.log_val_generations=5",
)  # fmt: skip
SFT = (
    *COMMON, "runner.max_epochs=2", "sft.steps_per_iteration=20", "sft.val_samples=8", "runner.val_check_interval=2",
    "actor.global_batch_size=16", "actor.micro_batch_size=8",
)  # fmt: skip


def write_answers(path: Path) -> None:
    rows = [{"prompt": f"#{number} {letter}", "response": 3 * letter} for number, letter in enumerate(20 * "abc")]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


@pytest.fixture(autouse=True)
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_answers(tmp_path / "answers.jsonl")


def test_rewards_of_texts_are_learnt_and_the_numbers_come_twice():
    for name in ("one", "two"):
        assert train.main([*TRAIN, f"runner.experiment_name={name}", "runner.val_before_train=true", *FOLDERS]) == 0
    rows = rows_of("runs/one")
    assert [row["step"] for row in rows] == [*range(9)]
    assert "eval/success_rate" in rows[0]
    assert "eval/episode_length_mean" not in rows[0], "an answer is no episode of control steps"
    assert rows[8]["eval/return_mean"] > rows[0]["eval/return_mean"] + 0.2
    assert max(row["train/logprob_gap"] for row in rows[1:]) < 1e-5
    assert rows == rows_of("runs/two")


def test_answers_of_an_evaluation_stand_in_a_file():
    assert train.main([*TRAIN, "runner.experiment_name=run", "runner.max_epochs=1", *FOLDERS]) == 0
    kept = [
        json.loads(line) for line in Path("runs/run/generations/000001.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert [one["episode"] for one in kept] == [0, 1, 2, 3, 4]
    held_to = json.loads(Path("runs/run/eval/000001.json").read_text(encoding="utf-8"))["protocol"]
    assert all(one["protocol"] == {"name": None, "hash": held_to["hash"]} for one in kept)
    for number, one in enumerate(kept):
        letter = "abc"[number % 3]
        assert one["prompt"] == f"#{number} {letter}"
        assert one["reward"] == pytest.approx(one["response"].count(letter) / max(len(one["response"]), 1))


def test_answers_are_learnt_in_a_run_that_comes_first():
    first = [*SFT, "data=answers.jsonl"]
    more = f"runner.first=[{','.join(json.dumps(one) for one in first)}]"
    run = [*TRAIN, "runner.experiment_name=a+b", "runner.max_epochs=1", "runner.val_check_interval=1"]
    assert train.main([*run, more, "runner.val_before_train=true", *FOLDERS]) == 0
    cloned, rows = rows_of("runs/a+b/first"), rows_of("runs/a+b")
    entropy = 0.5623  # of three letters and the end after each letter, nats
    assert cloned[-1]["sft/loss"] == pytest.approx(entropy, abs=0.02)
    assert cloned[-1]["sft/val_loss"] == pytest.approx(entropy, abs=0.02)
    assert rows[0]["eval/return_mean"] == pytest.approx(cloned[-1]["eval/return_mean"])  # the same weights, episodes
    assert rows[0]["eval/return_mean"] > 0.5
    before = Path("runs/a+b/first/metrics.jsonl").stat().st_mtime_ns
    assert train.main([*run, more, "runner.max_epochs=2", *FOLDERS]) == 0  # it goes on, and makes nothing first
    assert Path("runs/a+b/first/metrics.jsonl").stat().st_mtime_ns == before
    assert [row["step"] for row in rows_of("runs/a+b")] == [0, 1, 2]


def test_a_stop_ends_the_run_that_comes_first_too():
    first = [*SFT, "data=answers.jsonl", "runner.max_epochs=1000", "runner.val_check_interval=-1"]
    more = f"runner.first=[{','.join(json.dumps(one) for one in first)}]"
    log = Path("runs/run/first/metrics.jsonl")
    with warm.Program(["-m", "embodied.train", *TRAIN, more, "runner.experiment_name=run", *FOLDERS]) as run:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (log.is_file() and log.read_text(encoding="utf-8")):
            time.sleep(0.1)
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 128 + signal.SIGTERM
    with Path("runs/run/first/.lock").open(encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody works there any more
    assert list(Path("runs/run/first/checkpoints").glob("*/meta.json"))
    assert not Path("runs/run/metrics.jsonl").exists()


def test_a_first_run_that_fails_is_said(capsys):
    broken = f"runner.first=[{','.join(json.dumps(one) for one in (*SFT, 'data=nothing.jsonl'))}]"
    assert train.main([*TRAIN, "runner.experiment_name=run", broken, *FOLDERS]) == 2
    assert "the run that comes first ended with status 2" in capsys.readouterr().err


def test_conversations_teach_each_answer_of_the_assistant(capsys):
    said = [
        {"role": "user", "content": "#1 a"}, {"role": "assistant", "content": "aaa"},
        {"role": "user", "content": "#2 b"}, {"role": "assistant", "content": "bb"},
    ]  # fmt: skip
    Path("talk.jsonl").write_text(f"{json.dumps({'messages': said})}\n" * 4, encoding="utf-8")
    assert sft.main([*SFT, "data=talk.jsonl", "data.test_size=0", "runner.experiment_name=s", *FOLDERS]) == 0
    assert "8 to 2 prompts" in capsys.readouterr().out


def test_steps_do_not_depend_on_the_micro_batch():
    losses = []
    for size in (16, 4):
        options = [*SFT, "data=answers.jsonl", f"runner.experiment_name=m{size}", f"actor.micro_batch_size={size}"]
        assert sft.main([*options, *FOLDERS]) == 0
        losses.append([row["sft/loss"] for row in rows_of(f"runs/m{size}")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_an_env_without_texts_is_no_math():
    from embodied.parallel.group import Group
    from embodied.run.build.preflight import check

    options = ["env=fake", "model=fake", "runner.task_type=math", "runner.experiment_name=run"]
    with pytest.raises(ConfigError, match=r"runner.task_type: for texts alone"):
        check(compose(options, config_dirs=[str(HERE / "config")]), Group())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "1+1", "response": "2"}, "no column 'prompt'.*it has question, response"),
        ({"prompt": "1+1", "response": 2}, "int '2' in column 'response'"),
        ({"messages": [{"role": "robot", "content": "2"}]}, "the message"),
        ({"messages": [{"role": "user", "content": "2"}]}, "a conversation of 1 messages without one of the assistant"),
    ],
)
def test_rows_that_teach_nothing_are_refused(capsys, row, said):
    Path("bad.jsonl").write_text(f"{json.dumps(row)}\n", encoding="utf-8")
    assert sft.main([*SFT, "data=bad.jsonl", "runner.experiment_name=bad", *FOLDERS]) == 2

    assert re.search(said, capsys.readouterr().err)


def test_several_answers_to_a_problem_give_pass_at_k():
    options = ("runner.experiment_name=run", "runner.max_epochs=1", "runner.val_check_interval=1")
    of_six = (  # there are six problems
        "algorithm.val_group_size=6", "env.eval.episodes_per_task=6", "runner.logger.log_val_generations=36",
    )  # fmt: skip
    assert train.main([*TRAIN, *options, *of_six, *FOLDERS]) == 0
    (row,) = rows_of("runs/run")
    assert row["eval/episodes"] == 6 * 6
    assert row["eval/pass_at/1"] == pytest.approx(row["eval/success_rate"])
    assert row["eval/pass_at/1"] <= row["eval/pass_at/2"] <= row["eval/pass_at/4"]
    assert "eval/pass_at/8" not in row
    written = json.loads(Path("runs/run/eval/000001.json").read_text(encoding="utf-8"))
    own = [one["success"] for one in written["episodes"]]
    pairs = [  # every pair of the six answers to each problem
        own[start + i] or own[start + j] for start in range(0, len(own), 6) for i in range(6) for j in range(i)
    ]
    assert row["eval/pass_at/2"] == pytest.approx(sum(pairs) / len(pairs))
    assert written["rates"] == {name: value for name, value in row.items() if "_at/" in name}
    kept = [
        json.loads(line) for line in Path("runs/run/generations/000001.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    asked = [kept[first : first + 6] for first in range(0, 36, 6)]
    for k in (1, 2, 4):
        most = [
            majority_at([answer_code(one["response"]) for one in group], [one["success"] for one in group], k)
            for group in asked
        ]
        assert row[f"eval/maj_at/{k}"] == pytest.approx(sum(most) / 6)
    assert len({one["response"] for one in kept}) > 6


def test_several_greedy_answers_to_a_problem_are_refused(capsys):
    options = ("algorithm.val_group_size=6", "algorithm.val_sampling_params.do_sample=false", *FOLDERS)
    assert train.main([*TRAIN, *options]) == 2
    assert "all episodes of a start would be equal" in capsys.readouterr().err


def test_the_overlong_penalty_counts_tokens():
    options = ("runner.experiment_name=run", "runner.max_epochs=1", "runner.val_check_interval=-1")
    penalty = ("reward.overlong_penalty.enable=true", "reward.overlong_penalty.buffer_length=7")
    rows = []
    for name, more in (("without", ()), ("with", penalty)):
        assert train.main([*TRAIN, *options, *more, f"runner.experiment_name={name}", *FOLDERS]) == 0
        rows += rows_of(f"runs/{name}")
    assert rows[0]["rollout/tokens"] == rows[1]["rollout/tokens"]
    assert rows[0]["train/loss"] != rows[1]["train/loss"] or rows[0]["train/grad_norm"] != rows[1]["train/grad_norm"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["replicate", "fsdp2"])
@pytest.mark.parametrize("command", ["train", "sft"])
def test_two_processes_give_the_numbers_of_one(tmp_path, command, strategy):
    options = {
        "train": (*TRAIN, "runner.max_epochs=2", "runner.val_check_interval=2", "algorithm.val_group_size=2",
                  "runner.enable_dynamic_batch_size=true", "runner.max_tokens_per_mbs=40"),
        "sft": (*SFT, "data=answers.jsonl", "runner.val_check_interval=-1", "actor.global_batch_size=18"),
    }[command]  # fmt: skip
    main = {"train": train.main, "sft": sft.main}[command]
    assert main([*options, "runner.experiment_name=one", *FOLDERS]) == 0
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    more = (f"actor.fsdp_config.strategy={strategy}", "env.num_workers=1", "runner.experiment_name=two", *FOLDERS)
    subprocess.run([*launch, "-m", f"embodied.{command}", *options, *more], check=True, timeout=300)
    for one, two in zip(rows_of("runs/one"), rows_of("runs/two"), strict=True):
        assert {name: two[name] for name in one if name in two} == pytest.approx(one, rel=1e-4, abs=1e-6)
    if command == "train":
        assert len(Path("runs/two/generations/000002.jsonl").read_text(encoding="utf-8").splitlines()) == 5


def test_problems_that_are_asked_twice_are_no_more_trials():
    options = ("runner.experiment_name=run", "runner.max_epochs=1", "runner.val_check_interval=1")
    greedy = "algorithm.val_sampling_params.do_sample=false"
    widths, asked = [], []
    for name, episodes in (("once", 6), ("four", 24)):  # of six problems
        more = (f"runner.experiment_name={name}", f"env.eval.episodes_per_task={episodes}", greedy)
        assert train.main([*TRAIN, *options, *more, *FOLDERS]) == 0
        (row,) = rows_of(f"runs/{name}")
        widths.append((row["eval/success_low"], row["eval/success_high"]))
        written = json.loads(Path(f"runs/{name}/eval/000001.json").read_text(encoding="utf-8"))
        asked.append([(one["start"], one["return"]) for one in written["episodes"]])
        assert results.read(f"runs/{name}").not_run == 0, "as many as there are problems were planned"
    assert widths[0] == pytest.approx(widths[1])
    assert len(asked[0]) == 6
    assert asked[0] == asked[1], "a greedy answer does not change, so no problem is asked twice"
