"""CUDA, flash-attn and NCCL with made-up GPUs: none of this needs one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from embodied.doctor.checks import devices


class Ones:
    def __init__(self, value=64.0):
        self.value = value

    def __matmul__(self, other):
        return self

    def sum(self):
        return self.value * 64 * 64


def torch_with(gpus=0, built="12.8", free=79, peers=True, nccl=True, ones=Ones):
    """A stand-in for torch on a machine with so many GPUs; ``free`` of 80 GiB are free on each."""
    cuda = SimpleNamespace(
        is_available=lambda: gpus > 0, device_count=lambda: gpus,
        get_device_properties=lambda number: SimpleNamespace(name="H100", major=9, minor=0),
        mem_get_info=lambda number: (free * 2**30, 80 * 2**30),
        can_device_access_peer=lambda a, b: peers,
    )  # fmt: skip
    return SimpleNamespace(
        __version__="2.9", version=SimpleNamespace(cuda=built), cuda=cuda,
        ones=lambda *shape, device: ones(), distributed=SimpleNamespace(is_nccl_available=lambda: nccl),
    )  # fmt: skip


def broken():
    raise RuntimeError("CUDA error: no kernel image is available\nmore")


@pytest.mark.parametrize(
    ("torch", "wanted", "driver", "status", "said"),
    [
        (torch_with(), "auto", False, "skipped", "no GPU"),
        (torch_with(), "cuda", False, "fail", "runner.device is cuda"),
        (torch_with(built=None), "auto", True, "fail", "build for CPUs"),
        (torch_with(built=None), "cpu", True, "skipped", "runner.device is cpu"),
        (torch_with(), "auto", True, "fail", "finds none"),
        (torch_with(1), "auto", True, "ok", "H100, capability 9.0, 79.0 GiB of 80.0 GiB free"),
        (torch_with(1, free=20), "auto", True, "warn", "others hold the rest"),
        (torch_with(1, ones=broken), "auto", True, "fail", "no kernel image"),
        (torch_with(1, ones=lambda: Ones(63.0)), "auto", True, "fail", "wrong numbers"),
    ],
)
def test_cuda(monkeypatch, torch, wanted, driver, status, said):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (finding,) = devices.cuda(torch, wanted, driver)
    assert (finding.status, said in finding.found) == (status, True), finding
    assert (finding.fix != "") == (status in ("warn", "fail"))


@pytest.mark.parametrize("shown", ["", "7"])
def test_gpus_that_are_hidden(monkeypatch, shown):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    (finding,) = devices.cuda(torch_with(), "auto", True)
    assert (finding.status, f"CUDA_VISIBLE_DEVICES is '{shown}'" in finding.found) == ("fail", True)
    assert finding.fix.startswith("unset CUDA_VISIBLE_DEVICES")


def test_flash_attention(monkeypatch):
    def found(gpus, asked, installed):
        (finding,) = devices.flash_attention(torch_with(gpus), asked, installed)
        return finding

    assert found(0, False, False).status == "skipped"
    assert found(1, False, False).status == "ok"
    asked = found(1, True, False)
    assert asked.status == "fail"
    assert "pip install flash-attn" in asked.fix

    def absent(name):
        raise ImportError("undefined symbol: _ZN3c10\nmore")

    monkeypatch.setattr(devices.importlib, "import_module", absent)
    torch = torch_with(1)
    torch.bfloat16 = None
    (finding,) = devices.flash_attention(torch, False, True)
    assert finding.status == "fail"
    assert "undefined symbol: _ZN3c10" in finding.found


def test_peers(monkeypatch):
    asked = []
    monkeypatch.setattr(devices, "together", lambda count, backend: asked.append((count, backend)))
    assert [f.status for f in devices.peers(torch_with(0))] == ["skipped"]
    assert [f.status for f in devices.peers(torch_with(1))] == ["skipped"]
    assert [f.status for f in devices.peers(torch_with(2, nccl=False))] == ["fail"]
    apart, _ = devices.peers(torch_with(3, peers=False))
    assert (apart.status, "0–1, 0–2, 1–2" in apart.found) == ("warn", True)
    assert asked == [(3, "nccl")]


def test_processes_that_do_not_meet(monkeypatch, tmp_path):
    """The first that failed is named, not those that waited for it."""
    logs = [tmp_path / f"{rank}.log" for rank in range(3)]
    for rank, log in enumerate(logs):
        log.write_text(f"first\nrank {rank} said this\n", encoding="utf-8")
    finding = devices._met([None, -9, None], "nccl", logs, 40.0)
    assert finding.status == "fail"
    assert "rank 1 of 3 over nccl was killed by SIGKILL: rank 1 said this" in finding.found
    assert "did not answer within 40 s" in devices._met([None, None, None], "nccl", logs, 40.0).found
    assert devices._met([0, 0], "nccl", logs, 40.0).status == "ok"


def test_all_ranks_have_one_deadline(monkeypatch):
    """The first takes 30 s; the second has what is left of 40."""
    now, asked = [0.0], []

    def wait(limit_s=None):
        if limit_s is not None:
            asked.append(limit_s)
            now[0] += min(limit_s, 30.0)
            if limit_s < 30:
                raise devices.TimeoutExpired("rank", limit_s)
        return 0

    rank = SimpleNamespace(wait=wait, poll=lambda: None, kill=lambda: None)
    monkeypatch.setattr(devices, "Child", lambda command, **how: rank)
    monkeypatch.setattr(devices, "reap", lambda started: None)
    monkeypatch.setattr(devices, "time", SimpleNamespace(monotonic=lambda: now[0]), raising=False)
    assert devices.together(3, "nccl", 40.0).status == "fail"
    assert asked == [40.0, 10.0]


@pytest.mark.slow
def test_processes_meet_on_cpus():
    assert devices.together(2, "gloo").status == "ok"
