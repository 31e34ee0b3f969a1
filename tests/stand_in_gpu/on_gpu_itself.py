"""The stand-in itself: that it computes as a CPU does, and refuses what a GPU refuses."""

from __future__ import annotations

import pytest
import torch
from device import FROM_HOST, TO_HOST, WAITS, OnDevice, WrongDevice
from torch import nn


def test_numbers_are_those_of_the_cpu_and_stay_there(gpu):
    x = torch.zeros(3, 4, device="cuda")
    x[0] = 1
    x[1:].add_(3)
    assert isinstance(x, OnDevice)
    assert x.device == torch.device("cuda", 0)
    assert x.cpu().tolist() == [[1.0] * 4, [3.0] * 4, [3.0] * 4]
    assert x.sum().item() == 28.0
    y = torch.tensor([1.0, 2.0], device="cuda")
    assert torch.as_tensor([1, 2], device="cuda").device == y.device
    assert y.is_cuda


def test_backward_optimizer_and_autocast(gpu):
    found = {}
    for name in ("cpu", "cuda"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.GELU(), nn.Linear(4, 1)).to(name)
        assert {p.device.type for p in net.parameters()} == {name}
        optimizer = torch.optim.AdamW(net.parameters(), 0.1)
        x = torch.ones(5, 4).to(name)
        net(x).sum().backward()
        optimizer.step()
        found[name] = [p.detach().cpu() for p in net.parameters()]
    assert all(map(torch.equal, found["cpu"], found["cuda"]))
    with torch.autocast("cuda", torch.bfloat16):
        assert net(x).dtype == torch.bfloat16
    net(x).float().sum().backward()
    q = torch.randn(1, 2, 3, 8, device="cuda", requires_grad=True)
    nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
    assert q.grad.is_cuda


def test_what_a_gpu_refuses(gpu):
    x = torch.zeros(3, device="cuda")
    for wrong in (
        lambda: x + torch.ones(3),
        lambda: torch.cat([x, torch.ones(3)]),
        lambda: torch.stack([x[0], torch.tensor(1.0)]),
        lambda: x @ torch.ones(3, 2),
        lambda: torch.ones(3)[x.long()],
        lambda: torch.randn(3, device="cuda", generator=torch.Generator()),
        lambda: nn.functional.embedding(torch.zeros(2, dtype=torch.long), x[:, None]),
    ):
        with pytest.raises((WrongDevice, RuntimeError)):
            wrong()
    with pytest.raises(TypeError, match="cuda"):
        x.numpy()
    assert (x + torch.tensor(1.0)).tolist() == [1.0] * 3
    assert (x * 2 + 1).tolist() == [1.0] * 3


def test_what_is_counted(gpu):
    x = torch.arange(3.0, device="cuda")
    for kind, done in (
        (WAITS, lambda: bool(x.sum() > 0)),
        (WAITS, lambda: x.sum().item()),
        (WAITS, lambda: x.nonzero()),
        (WAITS, lambda: x[x > 0]),
        (WAITS, lambda: torch.equal(x, x)),
        (WAITS, lambda: x.masked_select(x > 0)),
        (WAITS, lambda: x.unique()),
        (WAITS, lambda: torch.repeat_interleave(x, x.long())),
        (WAITS, lambda: torch.cuda.synchronize()),
        (TO_HOST, lambda: x.cpu()),
        (TO_HOST, lambda: x.tolist()),
        (FROM_HOST, lambda: torch.zeros(2).to("cuda")),
        (FROM_HOST, lambda: torch.tensor([1], device="cuda")),
        (FROM_HOST, lambda: x[torch.tensor([0])]),
        (FROM_HOST, lambda: x[[0, 1]]),
        (FROM_HOST, lambda: x.__setitem__(1, 3.0)),
    ):
        gpu.seen.clear()
        done()
        assert dict(gpu.seen) == {(kind, "elsewhere"): 1}
        gpu.seen.clear()
        with torch.inference_mode():
            done()
        assert dict(gpu.seen) == {(kind, "elsewhere"): 1}
    gpu.seen.clear()
    x[x > 1] = 0

    torch.where(x > 0, x, 0.0).clamp(min=0)
    assert not gpu.seen


def test_graphs(gpu):
    state, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        state += 1
        result = state * 2
    assert state.tolist() == [0.0, 0.0], "a capture runs nothing"
    graph.replay()
    graph.replay()
    assert (state.tolist(), result.tolist()) == ([2.0, 2.0], [4.0, 4.0])
    for wrong in (
        lambda: state.sum().item(),
        lambda: state + torch.ones(2).to("cuda"),
        lambda: state + torch.tensor(1.0),
        lambda: state[state > 0],
    ):
        with pytest.raises(WrongDevice, match="in a graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            wrong()
