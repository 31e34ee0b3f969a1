"""Decoding in lanes: the tokens are those of transformers, and no batching changes them."""

from __future__ import annotations

import pytest
import torch
from causal_lm_texts import (
    ARCHITECTURES,
    ENV,
    TEXTS,
    N,
    answered,
    decoded,
    draws,
    expected_logprobs,
    make,
    reference,
    sequences,
)
from embodied.models.causal_lm.settings import Settings
from embodied.models.causal_lm.text.tokenizer import TextTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from embodied.errors import ConfigError
from embodied.testing import check_policy
from embodied.types import Sampling

LIKELIEST = Sampling(do_sample=False)
PENALISED = Sampling(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.3, min_new_tokens=4)


@pytest.fixture(scope="module")
def policy():
    return make()


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_greedy_tokens_are_those_that_transformers_generates_from_left_padded_prompts(kind):
    policy = make(kind)
    records = answered(policy, sampling=LIKELIEST)
    prompts = [prompt for prompt, _ in sequences(records)]
    longest, eos = max(map(len, prompts)), policy.tokenizer.ends[0]
    ids, mask = torch.zeros(len(prompts), longest, dtype=torch.long), torch.zeros(len(prompts), longest).long()
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :], mask[row, longest - len(prompt) :] = prompt, 1
    wanted = reference(policy).generate(
        ids, attention_mask=mask, do_sample=False, max_new_tokens=N, eos_token_id=eos, pad_token_id=0
    )[:, longest:]
    for row, (_, response) in enumerate(sequences(records)):
        assert response.tolist() == wanted[row, : len(response)].tolist()
        assert len(response) == N or response[-1] == eos


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("sampling", [Sampling(), PENALISED], ids=["plain", "penalised"])
def test_log_probs_are_those_of_transformers_logits_and_processors(kind, sampling):
    policy = make(kind)
    records, network = answered(policy, sampling=sampling), reference(policy)
    eos = policy.tokenizer.ends[0]
    with torch.no_grad():
        evaluated = policy.evaluate(records, sampling)
        for row, (prompt, response) in enumerate(sequences(records)):
            wanted = expected_logprobs(network, prompt, response, sampling, eos)
            for got in (records["logprobs"][row], evaluated.logprobs[row]):
                assert torch.allclose(got[: len(response)], wanted, atol=2e-5)
                assert not got[len(response) :].any()
    assert (records["logprobs"] - evaluated.logprobs).abs().max() <= 1e-4


@pytest.mark.parametrize("sampling", [Sampling(), PENALISED, LIKELIEST], ids=["plain", "penalised", "likeliest"])
@pytest.mark.parametrize(
    ("lanes", "order", "together"),
    [
        (1, (0, 1, 2, 3, 4, 5), 1),
        (2, (0, 1, 2, 3, 4, 5), 2),
        (3, (5, 4, 3, 2, 1, 0), 1),
        (4, (3, 0, 5, 1, 4, 2), 3),
        (7, (4, 0, 1, 2, 3, 5), 6),
    ],
)
def test_lanes_order_and_neighbours_change_no_bit(policy, sampling, lanes, order, together):
    noise = draws(len(TEXTS))
    wanted, _ = decoded(policy, noise, sampling, 6, range(6), 6)
    found, _ = decoded(policy, noise, sampling, lanes, order, together)
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
    assert len({tuple(row) for row in wanted["tokens"].tolist()}) > 4  # they are not all alike


def test_a_longer_neighbour_changes_no_bit():
    """It makes the lanes grow, and all of them look at more places: between 193 and 383, four heads that share a key
    would be added up in another order."""
    policy = make(sizes={"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}, max_prompt_tokens=400)
    texts = ["1+2=", "3*4=" * 35, "5-6=?" * 30]
    noise = draws(4)
    wanted, _ = decoded(policy, noise, Sampling(), 4, range(3), 3, texts)
    found, decoding = decoded(policy, noise, Sampling(), 4, (0, 1, 3, 2), 2, [*texts, "12+" * 80])
    assert 240 < decoding._cache.keys[0].shape[2] < 384
    for name, value in wanted.items():
        assert torch.equal(found[name][:3], value), name


def test_equal_prompts_are_computed_once_also_one_after_the_other(policy):
    texts = ["1+2="] * 5 + ["3+4=="]
    noise = draws(6)
    found, decoding = decoded(policy, noise, Sampling(min_new_tokens=6), 3, range(6), 2, texts)
    assert decoding.prefilled == len("1+2=") + len("3+4==")
    alone = [decoded(policy, noise[[row]], Sampling(min_new_tokens=6), 2, [0], 1, [texts[row]])[0] for row in range(6)]
    assert torch.equal(found["tokens"], torch.cat([one["tokens"] for one in alone]))
    assert torch.equal(found["logprobs"], torch.cat([one["logprobs"] for one in alone]))


def test_a_lane_that_takes_another_prompt_no_longer_serves_the_one_before(policy):
    decoding, noise = policy.decoding(2), draws(2)
    decoding.begin(LIKELIEST)

    def run(lane: int, text: str) -> list[int]:
        decoding.admit([lane], policy.encode_instructions([text]), noise[:1])
        while not decoding.step():
            pass
        return decoding.take([lane]).fields["tokens"][0].tolist()

    first = run(0, "1+2=")
    run(0, "98-7=")
    assert run(1, "1+2=") == first
    assert decoding.prefilled == 2 * len("1+2=") + len("98-7=")
    # both lanes at once: lane 1 takes what lane 0 holds while lane 0 takes what lane 1 holds
    decoding.admit([0, 1], policy.encode_instructions(["1+2=", "98-7="]), noise)
    whole: set[int] = set()
    while len(whole) < 2:
        whole.update(decoding.step())
    assert decoding.take([0]).fields["tokens"][0].tolist() == first
    assert decoding.prefilled == 2 * len("1+2=") + len("98-7=")


def test_a_lane_that_is_freed_can_be_admitted_again(policy):
    decoding, noise = policy.decoding(2), draws(2)
    wanted, _ = decoded(policy, noise, Sampling(), 2, range(2), 2, TEXTS[:2])
    decoding.begin(Sampling())
    decoding.admit([0, 1], policy.encode_instructions(["5*5=", TEXTS[0]]), noise[[0, 0]])
    decoding.step()
    decoding.free(0)
    decoding.admit([0], policy.encode_instructions([TEXTS[1]]), noise[[1]])
    whole: set[int] = set()
    while len(whole) < 2:
        whole.update(decoding.step())
    assert decoding.step() == []
    assert torch.equal(decoding.take([1, 0]).fields["tokens"], wanted["tokens"])


def test_begin_takes_the_present_weights(policy):
    own = make()
    decoding = own.decoding(2)

    def tokens() -> list[list[int]]:
        decoding.begin(LIKELIEST)
        decoding.admit([0, 1], own.encode_instructions(TEXTS[:2]), draws(2))
        whole: set[int] = set()
        while len(whole) < 2:
            whole.update(decoding.step())
        return decoding.take([0, 1]).fields["tokens"].tolist()

    before = tokens()
    with torch.no_grad():
        own.network.lm_head.weight.copy_(own.network.lm_head.weight.roll(1, dims=0))
    after = tokens()
    assert before != after
    assert after == answered(own, TEXTS[:2], LIKELIEST)["tokens"].tolist()


def test_a_text_ends_with_the_token_that_completes_a_stop(policy):
    free = answered(policy, sampling=Sampling(ignore_eos=True))
    text = policy.tokenizer.decode(free["tokens"][1].tolist())
    stop = (text[3:5], "never there")
    found = answered(policy, sampling=Sampling(ignore_eos=True, stop=stop))
    length = int(found["length"][1])
    assert found["tokens"][1, :length].tolist() == free["tokens"][1, :length].tolist()
    ended = policy.tokenizer.decode(found["tokens"][1, :length].tolist())
    assert ended.endswith(stop[0])
    assert stop[0] not in ended[:-1]
    assert bytes(found["actions"][1, 0].tolist()).rstrip(b"\0").decode() == ended
    with pytest.raises(ConfigError, match="empty text"):
        answered(policy, sampling=Sampling(stop=("",)))


WORDS = ("</s>", "<|tool|>", "<unk>", "▁", "▁Q", "▁Foo", ":", "a")


@pytest.fixture
def of_words():
    """A tokenizer in the manner of SentencePiece: a text loses the blank before its first word."""
    made = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["</s>", "<|tool|>"])
    return TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>"), Settings(), [0])


def test_a_blank_before_a_word_may_complete_a_stop(of_words):
    before, completed = [WORDS.index("▁Q"), WORDS.index(":")], WORDS.index("▁Foo")
    assert of_words.decode([*before, completed]) == "Q: Foo"
    assert not of_words.completes(before, (": ",))
    assert of_words.completes([*before, completed], (": ",))
    assert [WORDS[i] for i, may in enumerate(of_words.may_complete((": ",))) if may] == ["▁", "▁Q", "▁Foo"]
    assert [WORDS[i] for i, may in enumerate(of_words.may_complete(("Q:",))) if may] == [":"]


@pytest.fixture
def of_bytes():
    """A tokenizer of single bytes: a character has up to four tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({"</s>": 0, **{sign: 1 + i for i, sign in enumerate(alphabet)}}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["</s>"])
    return TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>"), Settings(), [0])


@pytest.mark.parametrize(
    ("text", "stop"),
    [("so: the end", ("the end", "x")), ("so: the end", ("x", "the end")), ("a stop of many tokens", ("many tokens",)),
     ("… 🙂🙃🙂", ("🙂🙃🙂",)), ("ein Ende: ü", ("ü", "never there")), ("one", ("one", "e"))],
)  # fmt: skip
def test_a_stop_of_several_tokens_is_completed_by_its_last(of_bytes, text, stop):
    """Whichever of several it is, and however long the others are."""
    tokens = of_bytes.responses([text], 99)[0][:-1]
    assert of_bytes.decode(tokens) == text
    found = [of_bytes.completes(tokens[:end], stop) for end in range(1, len(tokens) + 1)]
    assert found == [False] * (len(tokens) - 1) + [True]
    assert of_bytes.may_complete(stop)[tokens[-1]]


@pytest.mark.parametrize(
    ("stop", "said"),
    [(("b", "d"), "a"), (("d", "b"), "a"), (("d", "never"), "abc"), (("never",), "abcdabcd"), (("cd", "bcd"), "a"),
     (("cda", "d"), "ab"), ((), "abcdabcd")],
)  # fmt: skip
def test_an_answer_goes_up_to_the_first_of_several_stops(of_bytes, stop, said):
    """That which begins first in the text, in whatever order they are given."""
    tokens = of_bytes.responses(["abcdabcd"], 99)[0]
    assert of_bytes.answer(tokens, Sampling(stop=stop, include_stop=False)) == said
    assert of_bytes.answer(tokens, Sampling(stop=stop)) == "abcdabcd"


def test_pieces_show_how_a_text_was_cut(of_words):
    tokens = [WORDS.index(word) for word in ("▁Foo", "a", ":", "▁Q", "</s>")]
    assert of_words.pieces(tokens) == [" Foo", "a", ":", " Q", "</s>"]
    assert of_words.pieces([]) == []


def test_a_special_token_that_no_text_shows_is_no_stop(of_words):
    with pytest.raises(ConfigError, match=r"special token '<\|tool\|>'.*never shows") as raised:
        of_words.may_complete(("a", "<|tool|>"))
    assert "add its id 1 to eos_token_id" in raised.value.remedy
    of_words.may_complete(("a", "</s>"))  # ends a text in any case


def test_ends_and_limits():
    policy = make(sizes={"initializer_range": 0.02})  # nearly even: the end comes soon
    with torch.no_grad():
        policy.network.lm_head.weight[policy.tokenizer.ends[0]] = policy.network.lm_head.weight.mean(0)
    texts, noise = ["1+2="] * 40, draws(40)
    told = policy.encode_instructions(texts)

    def lengths(**keys: object) -> torch.Tensor:
        return policy.act(told, noise, Sampling(top_k=8, **keys)).fields["length"]

    eos = policy.tokenizer.ends[0]
    assert lengths(max_new_tokens=5).max() == 5
    assert lengths(ignore_eos=True).tolist() == [N] * 40
    fields = policy.act(told, noise, Sampling(temperature=3.0)).fields
    early = fields["length"] < N
    assert early.any()
    assert all(row[size - 1] == eos for row, size in zip(fields["tokens"][early], fields["length"][early], strict=True))
    assert policy.act(told, noise, Sampling(temperature=3.0, min_new_tokens=7)).fields["length"].min() >= 7
    shown = [bytes(row[0].tolist()).rstrip(b"\0").decode() for row in fields["actions"]]
    assert not any("<eos>" in text for text in shown)


@pytest.mark.parametrize("keys", [{}, {"value_head": True}, {"is_lora": True, "lora_init_weights": False}])
def test_the_conformance_check_passes(keys):
    check_policy(make(**keys), ENV)


def test_act_answers_more_texts_than_it_has_lanes(policy, monkeypatch):
    wanted = answered(policy)
    monkeypatch.setattr("embodied.models.causal_lm.policy.MOST_LANES", 2)
    found = answered(policy)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
