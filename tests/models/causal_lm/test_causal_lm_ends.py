"""Where a text ends and what the env gets of it; conversations that go on; sizes that are given directly."""

from __future__ import annotations

import pytest
from causal_lm_texts import SIZES, TEXTS, answered, make

from embodied import instructions
from embodied.errors import ConfigError
from embodied.protocols import EngineText
from embodied.types import Sampling

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"  # fmt: skip  # noqa: E501
CHARACTERS = "0123456789+-*/=()<>?abcdefghijklmnopqrstuvwxyz. "


def said(policy, sampling):
    fields = answered(policy, sampling=sampling)
    texts = [bytes(row.tolist()).rstrip(b"\0").decode() for row in fields["actions"][:, 0]]
    return fields, texts


def test_the_env_gets_the_answer_up_to_its_stop():
    policy = make()
    free, texts = said(policy, Sampling(ignore_eos=True))
    stop = (texts[1][3:5], "never there")
    kept, with_stop = said(policy, Sampling(ignore_eos=True, stop=stop))
    cut, without = said(policy, Sampling(ignore_eos=True, stop=stop, include_stop=False))
    assert with_stop[1].endswith(stop[0])
    assert without[1] == with_stop[1][: with_stop[1].index(stop[0])]
    assert without == [text.split(stop[0])[0] for text in texts]
    for name in ("tokens", "length", "logprobs"):
        assert cut[name].tolist() == kept[name].tolist()
    length = int(kept["length"][1])
    text = EngineText(free["tokens"][1].tolist(), free["logprobs"][1].tolist())
    for include, wanted in ((True, with_stop[1]), (False, without[1])):
        fields = policy.engine_decision([text], Sampling(stop=stop, include_stop=include)).fields
        assert instructions.read(fields["actions"][0, 0].numpy()) == wanted
        assert int(fields["length"][0]) == length


def test_other_tokens_end_a_text():
    free = answered(make(), sampling=Sampling(ignore_eos=True))
    end = int(free["tokens"][1, 3])
    policy = make(end_tokens=[end, 0])
    assert policy.tokenizer.ends == (end, 0)
    found = answered(policy)
    row = free["tokens"][1].tolist()
    assert int(found["length"][1]) == min(row.index(one) for one in (end, 0) if one in row) + 1
    assert policy.tokenizer.responses(["1"], 9)[0][-1] == end
    with pytest.raises(ConfigError, match=r"set rollout\.eos to ids below that"):
        make(end_tokens=99_999)


def test_a_conversation_goes_on_within_its_last_message(tmp_path):
    (tmp_path / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    asked = [{"role": "user", "content": "1+2"}]
    begun = instructions.of_messages([*asked, {"role": "assistant", "content": "it is"}])
    keys = {"chat_template": str(tmp_path / "chat.jinja"), "characters": CHARACTERS, "max_prompt_tokens": 200}
    shown = {}
    for goes_on in (False, True):
        tokenizer = make(continue_final_message=goes_on, **keys).tokenizer
        shown[goes_on] = [tokenizer.decode(tokenizer.prompt(text)) for text in (begun, instructions.of_messages(asked))]
    assert shown[False] == ["<user>1+2</user><assistant>it is</assistant><assistant>", "<user>1+2</user><assistant>"]
    assert shown[True] == ["<user>1+2</user><assistant>it is", shown[False][1]]


def test_the_width_may_be_given_directly():
    policy = make(sizes={**SIZES, "hidden_size": 32}, hidden_size=64)
    assert policy.network.config.hidden_size == 64
    assert len(TEXTS) == len(answered(policy)["length"])
