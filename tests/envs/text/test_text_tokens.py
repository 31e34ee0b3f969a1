"""Prompts of too many tokens are left out before a run, counted by the policy's tokenizer in other processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from embodied.envs.text import problems, tokens
from embodied.envs.text.env import MathEnv
from embodied.envs.text.tokens import TokenLimit

from embodied.errors import CheckpointError, ConfigError
from embodied.schema.compose.compose import compose
from embodied.types import Start

COUNTER = "prompt_lengths.prompt_counter"  # beside this file; the processes start in a moment
OF_MODELS = "embodied.models.causal_lm.prompt_counter"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "embodied" / "text"


def write(path: Path, lengths: list[int]) -> str:
    path.write_text("".join(json.dumps({"prompt": "7" * n, "answer": n}) + "\n" for n in lengths), encoding="utf-8")
    return str(path)


def limit(most: int, workers: int = 1, **options: Any) -> dict[str, Any]:
    return {"most": most, "counter": COUNTER, "options": options, "workers": workers}


def env(data: str, token_limit: dict[str, Any], **options: Any) -> MathEnv:
    problems._open_file.cache_clear()  # as in another process
    return MathEnv(data, filter_overlong_prompts=True, token_limit=token_limit, **options)


def kept(made: MathEnv) -> list[int]:
    return [made._sources[0].problem(number, 0).number for number in range(len(made._sources[0]))]


def test_prompts_with_more_tokens_are_left_out_counted_and_said(tmp_path, monkeypatch):
    lengths = [1, 8, 9, 3, 70, 8, 12] * 200  # several requests, of two processes
    data = write(tmp_path / "some.jsonl", lengths)
    made = env(data, limit(8, workers=2), max_prompt_bytes=64)
    assert kept(made) == [number for number, length in enumerate(lengths) if length <= 8]
    assert made.skipped_problems == 600
    notes = made.prepare().extra["problems of some.jsonl"]
    assert "200 of 1,400 rows skipped, with a prompt of more than 64 bytes" in notes
    assert "400 of 1,400 rows skipped, with a prompt of more than 8 tokens; the first is row 2" in notes
    made.reset(Start(0, 2, 0))
    monkeypatch.setattr(TokenLimit, "lengths", lambda *_: pytest.fail("the tokens were counted again"))
    assert kept(env(data, limit(8, workers=1), max_prompt_bytes=64)) == kept(made)


def test_the_counter_counts_what_the_policy_is_given(tmp_path):
    pytest.importorskip("torch")
    from embodied.models.causal_lm import build_policy, prompt_counter

    template = tmp_path / "chat.jinja"
    template.write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ add_generation_prompt }}", encoding="utf-8"
    )
    for options in ({}, {"chat_template": str(template)}, {"chat_template": str(template), "system_prompt": "be"}):
        counted = prompt_counter(**options)(["7", "12345", "1+1"])
        policy = build_policy(**options)
        assert counted == policy.encode_instructions(["7", "12345", "1+1"])["prompt_length"].tolist()
    shown = prompt_counter(chat_template=str(template))(["7"])[0]
    assert (
        shown - prompt_counter(chat_template=str(template), add_generation_prompt=False)(["7"])[0] == -1
    )  # False, True


def test_what_the_result_depends_on(tmp_path):
    (tmp_path / "tokenizer.json").write_text("1", encoding="utf-8")
    of = {"options": {"model_path": str(tmp_path), "chat": "auto"}, "most": 8, "counter": OF_MODELS}
    before = TokenLimit.of(of).identity
    assert TokenLimit.of({**of, "workers": 5}).identity == before
    assert TokenLimit.of({**of, "most": 9}).identity != before
    (tmp_path / "model.safetensors").write_text("weights do not count", encoding="utf-8")
    assert TokenLimit.of(of).identity == before
    (tmp_path / "tokenizer.json").write_text("12", encoding="utf-8")
    assert TokenLimit.of(of).identity != before


def test_files_are_looked_for_where_options_name_them(tmp_path, monkeypatch):
    def identity(**options: str) -> list[Any]:
        return TokenLimit.of({"options": options, "most": 8, "counter": OF_MODELS}).identity

    made = [
        tmp_path / "tok" / "tokenizer.json",
        tmp_path / "tok" / "a.gguf",
        tmp_path / "some_weights" / "in" / "b.gguf",
    ]
    for file in made:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("1", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    asked = [
        {"model_path": "~/tok"},
        {"tokenizer_path": "~/tok", "gguf_file": "a.gguf"},
        {"model_path": "package:some_weights"},
    ]
    before = [identity(**options) for options in asked]
    for file, changed in zip(made, ([True, True, False], [True, True, False], [False, False, True]), strict=True):
        file.write_text("another", encoding="utf-8")
        now = [identity(**options) for options in asked]
        assert [one != two for one, two in zip(before, now, strict=True)] == changed
        before = now
    long = "You are a careful assistant. " * 400
    assert (
        identity(system_prompt=long)[-1]
        == identity(model_path=long)[-1]
        == identity(model_path="package:a.b")[-1]
        == []
    )
    assert identity(system_prompt="~/tok")[-1] == []


def test_few_prompts_are_in_memory(monkeypatch):
    monkeypatch.setattr(tokens, "AT_ONCE", 4)
    taken: list[int] = []

    def prompts():
        for number in range(400):
            taken.append(number)
            yield "7" * number

    lengths = TokenLimit.of(limit(8)).lengths(prompts())
    assert [next(lengths) for _ in range(3)] == [1, 1, 2]  # nothing still has a token to begin with
    assert len(taken) <= 12
    assert list(lengths) == list(range(3, 400))


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"most": 0, "counter": COUNTER}, ConfigError, "token_limit.most is 0"),
        ({"counter": COUNTER}, ConfigError, "token_limit has counter, expected most, counter"),
        ({"most": 8, "counter": COUNTER, "odd": 1}, ConfigError, "expected most, counter"),
        ({"most": 8, "counter": "embodied.models.nothing.count"}, ConfigError, "nothing.count cannot be used"),
        ({"most": 8, "counter": "prompt_lengths.count"}, ConfigError, "prompt_lengths has no 'count'"),
        (limit(8, odd=1), ConfigError, "prompt_counter cannot be used: .*unexpected keyword argument 'odd'"),
        ({"most": 8, "counter": "prompt_lengths.killed"}, ConfigError, "prompt_lengths.killed was killed"),
        (limit(8, folder="/no/such/folder"), CheckpointError, "no folder /no/such/folder"),
    ],
)
def test_counters_that_cannot_count(tmp_path, given, error, said):
    with pytest.raises(error, match=said):
        env(write(tmp_path / "some.jsonl", [3]), given)


def test_the_key_of_the_data_asks_the_policys_tokenizer(tmp_path):
    data = write(tmp_path / "some.jsonl", [1, 8, 9, 20, 3, 7, 2])
    keys = ["env=math", "model=causal_lm_tiny", f"data={data}", "data.max_prompt_length=8", "data.test_size=2"]
    config = compose([*keys, "data.filter_overlong_prompts=true", "data.filter_overlong_prompts_workers=3"]).config
    assert config.env.train.model_extra["token_limit"]["workers"] == 3
    found = {}
    for side in ("train", "eval"):
        own = getattr(config.env, side).model_extra
        part = {name: own[name] for name in ("part", "test_size")}
        found[side] = kept(env(own["data"][0], own["token_limit"], **part))
    assert (len(found["train"]), len(found["eval"])) == (3, 2)
    assert sorted(found["train"] + found["eval"]) == [0, 1, 4, 5, 6]
    without = compose(keys).config.env.train.model_extra
    assert without["token_limit"] is None


def test_a_model_that_counts_no_tokens_is_asked_for_bytes_alone(tmp_path):
    here = str(Path(__file__).parents[2] / "config")
    data = write(tmp_path / "some.jsonl", [1, 2])
    made = compose(
        ["env=math", "model=fake_text", f"data={data}", "data.filter_overlong_prompts=true"], "train", [here]
    )
    own = made.config.env.train.model_extra
    assert own["filter_overlong_prompts"]
    assert own["token_limit"] is None
