"""Training passes of packed texts: the same numbers as padded, and as one by one."""

from __future__ import annotations

import pytest
import torch
from causal_lm_texts import ARCHITECTURES, N, answered, make, reference, sequences
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from embodied.learn.step.meters.live_bytes import LiveBytes
from embodied.types import Sampling


def records_of(policy, length: int | None = None) -> dict[str, Tensor]:
    """Texts of uneven length, two with one prompt."""
    records = answered(policy, sampling=Sampling(ignore_eos=True))
    lengths = torch.tensor([3, N, 1, 7, 5, 2], dtype=torch.int32)
    return {**records, "length": lengths if length is None else torch.full_like(lengths, length)}


def weights_of(count: int) -> Tensor:
    return torch.randn(count, N, generator=torch.Generator().manual_seed(3))


def gradient(policy) -> Tensor:
    found = [p.grad.flatten().clone() for p in policy.parameters() if p.grad is not None]
    policy.zero_grad()
    return torch.cat(found)


def apart(got: Tensor, wanted: Tensor) -> float:
    return ((got.double() - wanted.double()).norm() / wanted.double().norm()).item()


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_packed_padded_and_one_by_one_give_one_loss_and_one_gradient(kind):
    policy = make(kind, {"initializer_range": 0.1})
    records = records_of(policy)
    weights = weights_of(6)
    packed = (policy.evaluate(records, Sampling()).logprobs * weights).sum()
    packed.backward()
    packed_gradient = gradient(policy)

    single = torch.zeros(())
    for row in range(6):
        one = policy.evaluate({name: value[[row]] for name, value in records.items()}, Sampling())
        loss = (one.logprobs[0] * weights[row]).sum()
        loss.backward()
        single += loss.detach()
    single_gradient = gradient(policy)

    network = reference(policy)
    padded = padded_loss(network, records, weights)
    padded.backward()
    own = dict(network.named_parameters())
    names = [name.removeprefix("network.") for name, _ in policy.named_parameters()]
    padded_gradient = torch.cat([own[name].grad.flatten() for name in names])

    for loss, found in ((single, single_gradient), (padded.detach(), padded_gradient)):
        assert abs(loss.item() - packed.item()) <= 1e-6 * abs(packed.item())
        assert apart(found, packed_gradient) <= 1e-6


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("value_type", ["chunk_level", "token_level"])
def test_texts_in_rows_have_the_loss_and_the_gradient_of_packed_ones(kind, value_type, monkeypatch):
    found, computed = [], []
    sampling, weights = Sampling(repetition_penalty=1.2), weights_of(6)
    for packs in (True, False):
        keys = {"sequence_packing": packs, "value_head": True, "value_type": value_type}
        policy = make(kind, {"initializer_range": 0.1}, **keys)
        torch.nn.init.constant_(policy.value_head.weight, 0.1)  # else it is 0
        hidden = policy.trunk.hidden
        monkeypatch.setattr(
            policy.trunk, "hidden", lambda ids, *rest, own=hidden: computed.append(ids) or own(ids, *rest)
        )
        torch.manual_seed(0)
        records = records_of(policy)
        computed.clear()
        made = policy.evaluate(records, sampling, distribution=True)
        loss = (made.logprobs * weights).sum() + made.value.sum() + made.entropy.mean()
        loss.backward()
        sizes = records["prompt_length"] + records["length"] - 1
        fewer = int(sizes.sum()) - int(records["prompt_length"][3])  # its prompt is that of text 0
        assert [len(ids) for ids in computed] == [fewer if packs else 6 * int(sizes.max())]
        found.append((loss.detach(), made.distribution.detach(), made.value.detach(), gradient(policy)))
    for packed, padded in zip(*found, strict=True):
        assert apart(padded, packed) <= 1e-6


def padded_loss(network, records: dict[str, Tensor], weights: Tensor) -> Tensor:
    """The weighted sum of log-probs by transformers, from a batch that is padded on the right."""
    rows = [torch.cat(parts) for parts in sequences(records)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    logp = network(ids, attention_mask=mask).logits.log_softmax(-1)
    total = torch.zeros(())
    for row, (prompt, response) in enumerate(sequences(records)):
        places = torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1)
        total = total + (logp[row, places, response] * weights[row, : len(response)]).sum()
    return total


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("adapters", [{}, {"is_lora": True, "lora_rank": 4, "lora_init_weights": False}])
def test_recomputed_layers_keep_less_and_change_no_bit(kind, adapters):
    """Nor are they recomputed, or anything dropped out, while the policy acts."""
    found, kept, sizes = [], [], {"num_hidden_layers": 4}
    if "layer_types" in ARCHITECTURES[kind]:
        sizes["layer_types"] = 2 * ARCHITECTURES[kind]["layer_types"]
    for on in (False, True):
        policy = make(kind, sizes, gradient_checkpointing=on, **adapters)
        records, weights = records_of(policy), weights_of(6)
        with (live := LiveBytes()):
            before = live.restart()
            logprobs = policy.evaluate(records, Sampling()).logprobs
            kept.append(live.now - before)
        (logprobs * weights).sum().backward()
        found.append([logprobs.detach(), records["logprobs"], gradient(policy)])
    assert all(map(torch.equal, *found))
    assert kept[1] < 0.7 * kept[0]


def test_what_stands_behind_the_end_of_a_text_changes_nothing():
    policy = make()
    records = records_of(policy)
    other = {**records, "tokens": records["tokens"].clone(), "prompt_ids": records["prompt_ids"].clone()}
    for row in range(6):
        other["tokens"][row, int(records["length"][row]) :] = 7
        other["prompt_ids"][row, int(records["prompt_length"][row]) :] = 9
    for sampling in (Sampling(), Sampling(repetition_penalty=1.5)):
        first, second = policy.evaluate(records, sampling), policy.evaluate(other, sampling)
        assert torch.equal(first.logprobs, second.logprobs)
        assert torch.equal(first.entropy, second.entropy)


def test_equal_prompts_take_part_once():
    """By the tokens that the layers see."""
    policy = make()
    records = records_of(policy)
    seen = []
    policy.network.model.layers[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    policy.evaluate(records, Sampling())
    prompts = {tuple(prompt.tolist()) for prompt, _ in sequences(records)}
    assert len(prompts) == 5
    assert seen == [sum(map(len, prompts)) + int(records["length"].sum()) - 6]


def test_a_vocabulary_in_parts_gives_the_same(monkeypatch):
    policy = make()
    records, weights = records_of(policy), weights_of(6)

    def passed() -> tuple[Tensor, Tensor]:
        result = policy.evaluate(records, Sampling(temperature=0.7, repetition_penalty=1.2))
        (result.logprobs * weights + result.entropy).sum().backward()
        return result.logprobs.detach(), gradient(policy)

    whole = passed()
    monkeypatch.setattr("embodied.models.causal_lm.evaluating.LOGITS_AT_ONCE", 4 * policy.trunk.vocabulary)
    parts = passed()
    assert torch.allclose(whole[0], parts[0], atol=1e-6)
    assert apart(parts[1], whole[1]) <= 1e-6


def test_recomputed_layers_give_the_same_gradient():
    found = []
    for recomputed in (False, True):
        policy = make(gradient_checkpointing=recomputed)
        policy.train()
        calls = []
        policy.network.model.norm.register_forward_hook(lambda *_, calls=calls: calls.append("norm"))
        attention = policy.network.model.layers[0].self_attn
        attention.register_forward_hook(lambda *_, calls=calls: calls.append("attention"))
        records = records_of(policy)
        calls.clear()
        policy.evaluate(records, Sampling()).logprobs.sum().backward()
        found.append(gradient(policy))
        assert calls.count("attention") == (2 if recomputed else 1)
    assert torch.equal(*found)


def test_entropy_and_distribution_fit_each_other():
    policy = make()
    records = records_of(policy)
    result = policy.evaluate(records, Sampling(top_p=0.8), distribution=True)
    assert torch.allclose(result.distribution.exp().sum(-1), torch.ones(6, N), atol=1e-5)
    entropy = -(result.distribution.exp() * result.distribution).sum(-1)
    assert torch.allclose(entropy, result.entropy, atol=1e-4)
    assert result.entropy[0, 3:].eq(0).all()
    assert result.entropy[0, :3].gt(0).any()


def test_the_value_is_that_of_the_prompt():
    policy = make(value_head=True)
    with torch.no_grad():
        policy.value_head.weight.normal_(generator=torch.Generator().manual_seed(0))
    records = answered(policy)
    value = policy.evaluate(records, Sampling()).value
    assert value.shape == records["value"].shape == (6, 1)
    assert torch.allclose(value, records["value"], atol=1e-5)
    assert value[0] == value[3]  # one prompt
    assert value[0] != value[1]
    assert {name for name, p in policy.named_parameters() if name.startswith("value_head")} == {
        "value_head.weight", "value_head.bias",
    }  # fmt: skip


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bits(precision):
    """Frozen weights are in 16 bits, adapters in 32, and acting and training agree as far as 16 bits can."""
    policy = make(precision=precision, is_lora=True, lora_init_weights=False)
    dtypes = {p.dtype for p in policy.parameters() if not p.requires_grad}
    assert dtypes == {torch.bfloat16 if precision == "bf16" else torch.float16}
    assert {p.dtype for p in policy.parameters() if p.requires_grad} == {torch.float32}
    records = answered(policy)
    result = policy.evaluate(records, Sampling())
    assert (result.logprobs - records["logprobs"]).abs().max() < 0.2
    result.logprobs.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.requires_grad)


def test_flops_are_those_of_the_products_that_are_made():
    policy = make()
    records = {name: value[:1] for name, value in records_of(policy, 9).items()}
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        policy.evaluate(records, Sampling())
    counted = counter.get_flop_counts()["Global"]
    products = sum(number for kind, number in counted.items() if "attention" not in str(kind))
    tokens = int(records["prompt_length"][0]) + 9 - 1
    pairs = policy._work.pair * tokens * (tokens + 1) / 2
    arrays = {name: value.numpy() for name, value in records.items()}
    assert policy.flops(arrays, training=False).tolist() == [products + pairs]
    assert policy.flops(arrays, training=True).tolist() == [3 * (products + pairs)]
