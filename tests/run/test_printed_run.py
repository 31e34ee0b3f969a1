"""What a run shows and names for those who look into it: ``rollout.print_outputs``, ``rollout.detokenize``,
``data.return_full_prompt`` and ``env.group_name``."""

from __future__ import annotations

import json
from ast import literal_eval
from pathlib import Path

from logged import rows_of
from test_math_run import SIZES
from test_reward_model_run import FOLDERS, RUN

from embodied import train

NAMED = ("rollout.print_outputs=true", "env.group_name=EnvGroup")
SAME = ("train/", "rollout/return", "rollout/success")


def test_answers_are_printed_and_nothing_else_changes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ("reward.use_reward_model=false", "runner.max_epochs=1", "algorithm.rollout_epoch=1")
    found = []
    for name, more in (("plain", ()), ("printed", NAMED)):
        assert train.main([*RUN, *options, *more, f"runner.experiment_name={name}", *FOLDERS]) == 0
        shown = capsys.readouterr().out
        assert shown.count("\nanswer: ") == (16 if more else 0)
        assert ("episode 3, return " in shown) == bool(more)
        logs = {log.name for log in Path(f"runs/{name}/logs").glob("*-0?.log")}
        assert logs == {f"{'EnvGroup' if more else 'worker'}-0{number}.log" for number in range(2)}
        found.append([{key: row[key] for key in row if key.startswith(SAME)} for row in rows_of(f"runs/{name}")])
    assert found[0] == found[1]
    assert found[0][-1]


TOKENS = (
    *SIZES, "experiment=math_quickstart", "runner.first=[]", "runner.max_epochs=1", "runner.val_check_interval=1",
    "runner.save_interval=-1", "algorithm.group_size=2", "actor.global_batch_size=4", "actor.micro_batch_size=4",
    "env.train.total_num_envs=4", "env.eval.total_num_envs=2", "env.eval.episodes_per_task=2", "runner.num_threads=1",
    "algorithm.rollout_epoch=1", "rollout.print_outputs=true", "runner.logger.log_val_generations=2",
    "data.return_full_prompt=true", "rollout.detokenize=true", "reward.custom_reward_function.path=rewards.py",
    "data.return_raw_chat=false",
)  # fmt: skip
REWARDS = """
def compute_score(solution_str, ground_truth, extra_info):
    return float(extra_info["full_prompts"].startswith("<eos>") and extra_info["full_prompts"].endswith("="))
"""


def test_prompts_as_the_policy_reads_them_and_tokens_are_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("rewards.py").write_text(REWARDS, encoding="utf-8")
    Path("chat.jinja").write_text("{{ eos_token }}{{ messages[0].content }}", encoding="utf-8")
    assert train.main([*TOKENS, "data.chat_template=chat.jinja", "runner.experiment_name=run"]) == 0
    printed = capsys.readouterr().out.split("\nepisode ")[1:]
    assert len(printed) == 4
    for lines in (one.splitlines() for one in printed):
        shown = dict(line.split(": ", 1) for line in lines[1:5])
        prompt, answer = literal_eval(shown["prompt"]), literal_eval(shown["answer"])
        assert literal_eval(shown["full prompt"]) == f"<eos>{prompt}"
        assert lines[0].endswith("return 1"), "the function has read the full prompt"
        pieces = [literal_eval(piece) for piece in shown["tokens"].split(" ")[::2]]
        assert "".join(piece for piece in pieces if piece not in ("<eos>", "<unk>", "<pad>")) == answer
    for line in Path("runs/run/generations/000001.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        assert found["full_prompt"] == f"<eos>{found['prompt']}"
        assert len(found["tokens"]) == len(found["logprobs"]) > 0
        assert all(-20 < logprob <= 0 for logprob in found["logprobs"])
