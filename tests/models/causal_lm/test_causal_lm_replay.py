"""The decoding step as a CUDA graph, as far as it can be checked without a GPU.

In the place of a graph stands a tape: it records the operators of one call with the tensors that they read and wrote,
and replays them on these tensors alone. Whatever the step would leave to Python (a branch, a tensor that is replaced, a
number that is read back) would then be missing in a replay.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from causal_lm_texts import ARCHITECTURES, TEXTS, N, decoded, draws, make
from embodied.models.shared import replay
from embodied.models.shared.replay import WARM_UP, Replayed
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from embodied.types import Sampling

FROM_HOST, TO_HOST = "aten.lift_fresh.default", "aten._local_scalar_dense.default"
PENALISED = Sampling(temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.3, min_new_tokens=4)


class Tape(TorchDispatchMode):
    """Operators of one call, with what they read and wrote."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert str(func) not in (FROM_HOST, TO_HOST), "a graph neither copies from the host nor reads back"
        found = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, found))
        return found

    def replay(self) -> None:
        for func, args, kwargs, found in self.calls:
            inputs = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(found), tree_leaves(again), strict=True):
                if (
                    isinstance(old, Tensor) and old.untyped_storage().data_ptr() not in inputs
                ):  # else a view, or in place
                    old.copy_(new)


class Taped:
    """Stands for :mod:`embodied.models.shared.replay`'s three functions that need a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.replays = 0
        self.state: Callable[[], list[Tensor]] = list
        monkeypatch.setattr(replay, "beside", lambda device, function: function())
        monkeypatch.setattr(replay, "new_pool", lambda: "pool")
        monkeypatch.setattr(replay, "capture", self.capture)

    def capture(self, function: Callable[[], Tensor], pool: Any) -> tuple[Any, Tensor]:
        """A GPU runs nothing while it captures. A tape has to, so the state is put back."""
        before = [tensor.clone() for tensor in self.state()]
        with Tape() as tape:
            result = function()
        for tensor, value in zip(self.state(), before, strict=True):
            tensor.copy_(value)
        run = tape.replay

        def counted() -> None:
            self.replays += 1
            run()

        tape.replay = counted  # type: ignore[method-assign]
        return tape, result


class Decodes:
    """A policy whose decodings replay their steps."""

    def __init__(self, policy: Any, taped: Taped) -> None:
        self._policy, self._taped = policy, taped
        self.encode_instructions = policy.encode_instructions

    def decoding(self, lanes: int) -> Any:
        made = self._policy.decoding(lanes, False)
        assert not made._replays, "on a CPU the step stays as it is"
        made._replays = True
        self._taped.state = made._state
        return made


@pytest.fixture
def taped(monkeypatch) -> Taped:
    return Taped(monkeypatch)


@pytest.mark.parametrize("sampling", [Sampling(ignore_eos=True), PENALISED, Sampling(do_sample=False)])
@pytest.mark.parametrize("keys", [{}, {"value_head": True, "value_type": "token_level"}])
def test_replayed_steps_give_the_bits_of_those_that_are_not(taped, sampling, keys):
    policy, noise = make(**keys), draws(len(TEXTS))
    if policy.value_head is not None:
        torch.nn.init.normal_(policy.value_head.weight)
    wanted, _ = decoded(policy, noise, sampling, 3, range(6), 2)
    found, decoding = decoded(Decodes(policy, taped), noise, sampling, 3, range(6), 2)
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name
    assert taped.replays > WARM_UP, "most steps were replays"
    assert 1 <= decoding._graphs.captures < taped.replays


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("sampling", [Sampling(), PENALISED, Sampling(do_sample=False)])
def test_a_step_needs_nothing_that_lies_elsewhere(monkeypatch, kind, sampling):
    """On a device that has shapes and no numbers: a tensor of the host, or a number that is read back, is an error."""
    monkeypatch.setattr(torch, "autocast", lambda *args, **keys: nullcontext())  # which this device has not
    policy = make(kind, value_head=True, value_type="token_level").to("meta")
    decoding = policy.decoding(4)
    decoding.begin(sampling)
    heads = [layer.self_attn for layer in policy.network.model.layers]
    width = policy.network.config.num_key_value_heads if hasattr(policy.network.config, "num_key_value_heads") else 4
    like = torch.zeros(1, width, 1, heads[0].head_dim, device="meta")
    decoding._cache.reserve([(like, like)] * len(heads), 60)
    with torch.inference_mode():
        for span in (0, 32):
            token = decoding._advance(span)
            assert (token.device.type, token.shape, token.dtype) == ("meta", (16,), torch.int64)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        decoding._ended(token)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_architecture_can_be_captured(taped, kind):
    policy, noise = make(kind), draws(len(TEXTS))
    wanted, _ = decoded(policy, noise, Sampling(ignore_eos=True), 6, range(6), 6)
    found, _ = decoded(Decodes(policy, taped), noise, Sampling(ignore_eos=True), 6, range(6), 6)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert taped.replays > 0


def test_a_cache_that_grows_ends_the_graphs(taped):
    """A later prompt needs more places: keys and values then lie elsewhere."""
    policy = make(max_prompt_tokens=200)
    texts = ["1+2=", "2+3=", "12+" * 40, "3+4="]
    noise, free = draws(4), Sampling(ignore_eos=True)
    wanted, _ = decoded(policy, noise, free, 2, range(4), 1, texts)
    found, decoding = decoded(Decodes(policy, taped), noise, free, 2, range(4), 1, texts)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())
    assert decoding._graphs.captures >= 2


def test_spans_are_powers_of_two_so_that_graphs_are_few(taped):
    policy = make(max_prompt_tokens=400, max_new_tokens=N)
    decoding = Decodes(policy, taped).decoding(4)
    decoding.begin(Sampling(ignore_eos=True))
    spans = set()
    for size in (10, 40, 60, 100, 130, 250):
        decoding.admit([0], policy.encode_instructions(["1" * size]), draws(1))
        while not decoding.step():
            spans.add((decoding._span(), decoding._cache.capacity))
        decoding.take([0])
    assert all(span in (0, 32, 64, 128, 256, capacity) for span, capacity in spans)
    assert {32, 64, 128, 256} <= {span for span, _ in spans}


def test_a_state_that_moves_is_captured_anew_and_keys_have_graphs_of_their_own(taped):
    state, calls = [torch.zeros(2)], []

    def add(key: int) -> Tensor:
        calls.append(key)
        state[0] += key
        return state[0] * 2

    taped.state = lambda: state
    replayed = Replayed(add, lambda: state, torch.device("cpu"))
    found = [replayed(key)[0].item() for key in (1, 1, 1, 1, 5, 5, 5, 5, 1)]
    assert found == [2.0, 4.0, 6.0, 8.0, 18.0, 28.0, 38.0, 48.0, 50.0]
    assert calls == [1, 1, 1, 5, 5, 5], "two calls to warm up and one that is captured, of each key"
    assert replayed.captures == 2
    state[0] = state[0].clone()
    assert [replayed(1)[0].item() for _ in range(4)] == [52.0, 54.0, 56.0, 58.0]
    assert replayed.captures == 3


def test_the_tape_notices_what_a_graph_would_not_do(taped):
    """That the tests above can fail."""
    state = [torch.zeros(1)]
    taped.state = lambda: state

    def replaces(key: int) -> Tensor:
        held["value"] = held["value"] + 1  # a new tensor, where a graph needs the old one
        return held["value"] * 1

    held = {"value": torch.zeros(1)}
    replayed = Replayed(replaces, lambda: state, torch.device("cpu"))
    assert [replayed(0).item() for _ in range(6)] != [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    reads = Replayed(lambda key: state[0] + float(state[0]), lambda: state, torch.device("cpu"))
    reads(0), reads(0)
    with pytest.raises(AssertionError, match="neither copies from the host nor reads back"):
        reads(0)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@needs_gpu
@pytest.mark.parametrize("sampling", [Sampling(ignore_eos=True), PENALISED])
def test_graphs_on_a_gpu_give_the_tokens_of_steps_without(sampling):
    policy, noise = make().to("cuda"), draws(len(TEXTS)).to("cuda")
    wanted, _ = decoded(policy, noise, sampling, 3, range(6), 2)

    class Graphs:
        encode_instructions = staticmethod(policy.encode_instructions)

        @staticmethod
        def decoding(lanes: int) -> Any:
            return policy.decoding(lanes, False)

    found, decoding = decoded(Graphs, noise, sampling, 3, range(6), 2)
    assert decoding._graphs.captures > 0
    assert torch.equal(found["tokens"], wanted["tokens"])
    torch.testing.assert_close(found["logprobs"], wanted["logprobs"], rtol=0, atol=1e-4)
