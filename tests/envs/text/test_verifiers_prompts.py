"""Which prompts functions of users and services are handed: ``data.return_raw_chat`` and ``return_full_prompt``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embodied.envs.text.calculator import CalculatorEnv
from embodied.envs.text.env import MathEnv
from embodied.envs.text.verdict import Problem
from embodied.envs.text.verifiers import make_verifier
from embodied.envs.text.verifiers.remote import Remote

from embodied import instructions
from embodied.errors import CheckpointError, ConfigError
from embodied.types import Start

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
SAVES = "import json, pathlib\ndef save(found): pathlib.Path({file!r}).open('a').write(json.dumps(found) + '\\n')\n"
FUNCTIONS = {
    "verl": "def f(solution_str, ground_truth, extra_info=None): save(extra_info); return 1",
    "trl": "def f(completions, **columns): columns.pop('answer'); save(columns); return [1.0]",
    "cosmos": "def f(to_be_evaluated, reference, prompt=None, full_prompt=None): save([prompt, full_prompt]); return 1",
}


def full_prompt(folder: Path, most: int = 64, truncation: str = "error") -> dict[str, Any]:
    """The option that ``data.return_full_prompt`` gives to a verifier."""
    (folder / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    options = {"chat_template": str(folder / "chat.jinja"), "max_prompt_tokens": most, "truncation": truncation,
               "characters": "0123456789+=<>user"}  # fmt: skip
    return {"reader": "embodied.models.causal_lm.prompt_reader", "options": options}


@pytest.fixture
def function(tmp_path: Path) -> Iterator[Callable[..., tuple[Any, Callable[[], list[Any]]]]]:
    """Writes a function, and makes a verifier of it; also gives what reads the values that the function has saved."""
    made, file = [], tmp_path / "saved.jsonl"

    def make(code: str, **options: Any) -> tuple[Any, Callable[[], list[Any]]]:
        (tmp_path / f"f{len(made)}.py").write_text(SAVES.format(file=str(file)) + code, encoding="utf-8")
        part = {"name": "custom", "path": str(tmp_path / f"f{len(made)}.py"), "function": "f", "on_error": "raise"}
        made.append(make_verifier([{**part, **options}]))
        return made[-1], lambda: [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    yield make
    for verifier in made:
        verifier.close()


@pytest.mark.parametrize(
    ("code", "raw", "both", "full"),
    [
        ("verl", {"n": 1}, {"n": 1, "full_prompts": "<user>1+2=>"}, {"n": 1, "full_prompts": "<user>1+2=>"}),
        ("trl", {"extra_info": [{"n": 1}], "prompts": ["1+2="]},
         {"extra_info": [{"n": 1}], "prompts": ["1+2="], "full_prompt": ["<user>1+2=>"]},
         {"extra_info": [{"n": 1}], "full_prompt": ["<user>1+2=>"]}),
        ("cosmos", ["1+2=", None], ["1+2=", "<user>1+2=>"], [None, "<user>1+2=>"]),
    ],
)  # fmt: skip
def test_functions_of_each_signature(function, tmp_path, code, raw, both, full):
    problem, wanted = Problem("1+2=", "3", {"extra_info": {"n": 1}}, 0), full_prompt(tmp_path)
    for options in ({}, {"full_prompt": wanted}, {"full_prompt": wanted, "prompt": False}):
        verifier, saved = function(FUNCTIONS[code], **options)
        assert verifier(problem, "3").success
    assert saved() == [raw, both, full]


def test_a_full_prompt_is_what_the_policy_reads(tmp_path):
    from embodied.models.causal_lm import build_policy
    from embodied.models.causal_lm.decoding.prompts import prompts_of

    talk = instructions.of_messages([{"role": "user", "content": "1+2="}])
    for most, truncation, shown in ((64, "error", "<user>1+2=>"), (6, "left", ">1+2=>"), (8, "right", "<user>1+")):
        remote = Remote("http://a", full_prompt=full_prompt(tmp_path, most, truncation))
        policy = build_policy(**remote._full._options)
        problem = Problem("1+2=", "3", {}, 0)
        assert json.loads(remote._body(problem, "3"))["full_prompt"] == shown
        (prompt,) = prompts_of(policy.encode_instructions([talk]))
        assert "".join(policy.tokenizer.pieces(prompt.ids)) == shown == policy.prompt_texts([talk])[0]
    sent = json.loads(Remote("http://a", prompt=False)._body(problem, "3"))
    assert sent == {"response": "3", "answer": "3", "fields": {}}


def test_with_several_turns_it_is_the_transcript(function, tmp_path):
    verifier, saved = function(FUNCTIONS["cosmos"], full_prompt=full_prompt(tmp_path))
    rows = tmp_path / "rows.py"
    rows.write_text("def rows(): return [{'prompt': '2*3=', 'answer': '6'}]", encoding="utf-8")
    env = CalculatorEnv(data=f"{rows}:rows", verifier=verifier)
    env.prepare()
    env.reset(Start(0, 0, 0))
    for response in ("<calc>2*3</calc>", "6"):
        action = np.zeros(512, np.uint8)
        instructions.write(response, action)
        result = env.step(action)
    assert result.terminated
    asked = "<user>2*3=<calc>2*3</calc><result>6</result>>"
    unknown = dict.fromkeys(set(asked) - set("0123456789+=<>user"), "<unk>")
    assert saved() == [["2*3=", asked.translate(str.maketrans(unknown))]]


NEEDS_PROMPTS = "def f(prompts, completions, **columns): return [1.0]"
NEEDS_PROMPT = "def f(to_be_evaluated, reference, prompt): return 1"
NEEDS_FULL = "def f(to_be_evaluated, reference, full_prompt): return 1"


@pytest.mark.parametrize(
    ("code", "options", "said", "fix"),
    [
        (NEEDS_PROMPTS, {"prompt": False}, r"needs prompts, and is not handed", "data.return_raw_chat=true"),
        (NEEDS_PROMPT, {"prompt": False}, r"needs prompt, and is not handed", "data.return_raw_chat=true"),
        (NEEDS_FULL, {}, r"missing a required argument: 'full_prompt'", "data.return_full_prompt=true"),
        ("def f(completions): return [1.0]", {"full_prompt": ...}, "which is handed over in full_prompt", "parameter"),
        ("def f(solution_str, ground_truth): return 1", {"full_prompt": ...}, "handed over in extra_info", "parameter"),
        (FUNCTIONS["verl"], {"full_prompt": ..., "kwargs": {"extra_info": 1}}, "handed over in extra_info", "kwargs"),
        (FUNCTIONS["verl"], {"full_prompt": {"reader": "a.b"}}, "expected reader and options", "return_full_prompt"),
    ],
)
def test_a_function_that_does_not_fit_is_refused_before_the_run(function, tmp_path, code, options, said, fix):
    given = {key: full_prompt(tmp_path) if value is ... else value for key, value in options.items()}
    with pytest.raises(ConfigError, match=said) as raised:
        function(code, **given)
    assert fix in raised.value.remedy


def test_functions_that_can_do_without_a_prompt_are_taken(function):
    for code in (*FUNCTIONS.values(), "def f(completions, prompts=None): return [float(prompts is None)]"):
        verifier, _ = function(code, prompt=False)
        assert verifier(Problem("1+2=", "3", {}, 0), "3").success
    assert function(NEEDS_PROMPT, prompt=False, kwargs={"prompt": "mine"})[0](Problem("", "3", {}, 0), "3").success


def test_extra_info_that_is_no_mapping_ends_the_run(function, tmp_path):
    verifier, _ = function(FUNCTIONS["verl"], full_prompt=full_prompt(tmp_path))
    with pytest.raises(ConfigError, match="extra_info holds str 'train', in which 'full_prompts' cannot stand"):
        verifier(Problem("1+2=", "3", {"extra_info": "train"}, 0), "3")


def test_the_tokenizer_is_read_before_the_first_verdict(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "1+2=", "answer": "3"}\n', encoding="utf-8")
    wanted = full_prompt(tmp_path)
    wanted["options"]["tokenizer_path"] = str(tmp_path / "nowhere")
    remote = {"name": "remote", "url": "http://a", "full_prompt": wanted}
    env = MathEnv(str(tmp_path / "p.jsonl"), verifier=[remote])
    with pytest.raises(CheckpointError, match="nowhere"):
        env.prepare()
