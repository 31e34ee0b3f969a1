"""Learning from conversations of several turns: an answer depends on what was said before."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from embodied import instructions, sft
from embodied.learn.origin import restore
from embodied.types import Sampling

TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}\n{% endfor %}a"
RUN = (
    "env=arithmetic", "model=causal_lm_tiny", "tracker=jsonl", "runner.device=cpu", "experiment=sft",
    "env.train.data_args={terms: [2, 2]}", "env.eval.data_args={terms: [2, 2]}", "runner.val_check_interval=-1",
    "actor.model.override_config.hidden_size=32", "actor.model.override_config.intermediate_size=64",
    "actor.model.override_config.num_hidden_layers=2", "actor.model.override_config.num_attention_heads=2",
    "actor.model.chat_template=template.jinja", "actor.model.max_new_tokens=4", "data.test_size=0",
    "sft.val_samples=0", "runner.max_epochs=1", "sft.steps_per_iteration=200", "actor.global_batch_size=8",
    "actor.micro_batch_size=8", "actor.optim.lr=0.01", "runner.experiment_name=run",
)  # fmt: skip


def talk(first: str) -> list[dict[str, str]]:
    """A name is told, and asked for in the next turn."""
    return [
        {"role": "user", "content": f"call me {first}"}, {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "who?"}, {"role": "assistant", "content": first},
    ]  # fmt: skip


def test_a_later_answer_is_learnt_from_what_was_said_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("template.jinja").write_text(TEMPLATE, encoding="utf-8")
    rows = [{"messages": talk(name)} for name in "abcd"]
    Path("talk.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    assert sft.main([*RUN, "data=talk.jsonl"]) == 0
    policy, _ = restore(next(Path("runs/run/checkpoints").iterdir()))
    prompts = [instructions.of_messages(talk(name)[:turn]) for name in "abcd" for turn in (1, 3)]
    noise = torch.zeros(len(prompts), *policy.spec.noise.shape)
    told = policy.encode_instructions(prompts)
    actions = policy.act(told, noise, Sampling(do_sample=False)).fields["actions"]
    assert [instructions.read(row[0].numpy()) for row in actions] == ["ok", "a", "ok", "b", "ok", "c", "ok", "d"]
