"""A policy loss of the user's that would train wrongly is refused before the first rollout, with the contract."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from pickle import PicklingError
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied import train
from embodied.algorithms.conformance.loss import check_loss
from embodied.algorithms.importance import log_ratio
from embodied.algorithms.policy_loss import Anchor, PolicyLoss, make_loss, names
from embodied.errors import ConfigError
from embodied.runtime.pool import pool
from embodied.testing import check_loss as public

KEYS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}


def right(logprobs: Tensor, old: Tensor, advantages: Tensor) -> PolicyLoss:
    ratio = log_ratio(logprobs, old).exp()
    return PolicyLoss(-ratio * advantages, ratio.detach(), torch.zeros_like(ratio, dtype=torch.bool))


@dataclass
class Loss:
    """Calls a function of this module."""

    function: str = "right"
    anchor: ClassVar[Anchor] = Anchor.ACTING

    def __call__(self, logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
        return globals()[self.function](logprobs, old, advantages)


def per_token(change: Any) -> Any:
    def loss(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
        found = right(logprobs, old, advantages)
        return found._replace(per_token=change(found.per_token))

    return loss


def in_place(which: str) -> Any:
    def loss(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
        found = right(logprobs, old, advantages)
        {"logprobs": logprobs.detach(), "old": old, "advantages": advantages}[which].mul_(0.5)
        return found

    return loss


def normalised(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
    return right(logprobs, old, (advantages - advantages.mean()) / (advantages.std() + 1e-6))


def gradient_of_others(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
    found, sum_of_all = right(logprobs, old, advantages), logprobs.sum()
    return found._replace(per_token=found.per_token + (sum_of_all - sum_of_all.detach()))


def by_row(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
    ratio = (logprobs - old).mean(dim=1, keepdim=True).exp().expand_as(logprobs)
    return PolicyLoss(-ratio * advantages, ratio.detach(), torch.zeros_like(ratio, dtype=torch.bool))


def by_row_sum(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
    ratio = (logprobs - old).sum(dim=1, keepdim=True).exp().expand_as(logprobs)
    return PolicyLoss(-ratio * advantages, ratio.detach(), torch.zeros_like(ratio, dtype=torch.bool))


def root(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
    return per_token(lambda loss: loss + (logprobs - old).abs().sqrt())(logprobs, old, advantages)


def of_numpy(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
    found = right(logprobs, old, advantages)
    return PolicyLoss(found.per_token.detach().numpy(), found.ratio, found.clipped)


def quadratic(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
    """No gradient where the ratio is 1."""
    ratio = log_ratio(logprobs, old).exp()
    return PolicyLoss((ratio - 1) ** 2 * advantages, ratio.detach(), torch.zeros_like(ratio, dtype=torch.bool))


def own_line(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
    return logprobs @ old


@torch.jit.script
def compiled(logprobs: Tensor, old: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ratio = (logprobs - old).exp()
    return -ratio * advantages, ratio.detach(), ratio > 2


def of_torchscript(*given: Tensor) -> Any:
    return PolicyLoss(*compiled(*given))


def within_64_bits(*given: Tensor) -> Any:
    found = right(*(tensor.double() for tensor in given))
    return PolicyLoss(found.per_token.float(), found.ratio.float(), found.clipped)


def by_index(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
    found, out = right(logprobs, old, advantages), torch.zeros_like(logprobs)
    counts = advantages > 0
    out[counts] = found.per_token[counts]
    return found._replace(per_token=out, clipped=~counts)


def only(counts: Any) -> Any:
    """A loss whose gradient is left out of all elements but some."""

    def loss(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
        found = right(logprobs, old, advantages)
        kept = counts(logprobs.detach(), found.ratio, advantages)
        return found._replace(per_token=torch.where(kept, found.per_token, 0.0 * logprobs), clipped=~kept)

    return loss


def noisy(noise: Any) -> Any:
    return lambda *given: per_token(lambda x: x * noise(x))(*given)


OWN = torch.Generator().manual_seed(0)
GOOD: dict[str, Any] = {
    "a function of TorchScript": of_torchscript,
    "64 bits within": within_64_bits,
    "16 bits within": lambda *t: right(*(x.bfloat16().float() for x in t)),
    "a mask as index": by_index,
    "only large advantages": only(lambda logprobs, ratio, advantages: advantages.abs() > 1.5),
    "only rare tokens": only(lambda logprobs, ratio, advantages: logprobs < -3),
    "only likely tokens": only(lambda logprobs, ratio, advantages: logprobs > -0.05),
    "only far ratios": only(lambda logprobs, ratio, advantages: (ratio - 1).abs() > 0.5),
    "elements left out at random": noisy(lambda x: torch.rand_like(x) < 0.7),
    "noise of numpy": noisy(lambda x: torch.from_numpy(np.random.rand(*x.shape)).float()),
    "noise of a generator of its own": noisy(lambda x: torch.rand(x.shape, generator=OWN)),
}


def constant(logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
    return right(logprobs, old, advantages)._replace(per_token=-advantages + 0 * logprobs)


def _after(found: PolicyLoss) -> PolicyLoss:
    found.per_token.sum().backward()
    return found


def _raises(said: str) -> Any:
    raise ValueError(said)


BAD: dict[str, tuple[Any, str, str]] = {
    "a plain tensor": (lambda *t: right(*t).per_token, r"gives a Tensor, expected PolicyLoss", "PolicyLoss"),
    "a tuple": (lambda *t: tuple(right(*t)), r"gives a tuple, expected PolicyLoss", r"PolicyLoss(*result)"),
    "a tuple of a result and metrics": (lambda *t: (right(*t), {}), r"gives a tuple", "clipped) alone, each [N, M]"),
    "not finite at a ratio of 2": (
        lambda lp, old, a: per_token(lambda x: x - torch.log(1.2 - (lp - old).exp()))(lp, old, a),
        r"not finite at ratios between 0\.14 and 7\.39", "logarithm",
    ),
    "a mean of noise": (
        per_token(lambda x: (torch.rand_like(x) * x).mean().expand_as(x)), "when other records", "first axis",
    ),
    "it went backward": (lambda *t: _after(right(*t)), "that cannot be differentiated", ".backward()"),
    "sparse": (per_token(Tensor.to_sparse), "per_token as torch.sparse_coo on cpu", "to_sparse"),
    "elsewhere": (per_token(lambda x: x.to("meta")), "on meta, expected a dense tensor on cpu", "logprobs.device"),
    "it raises lines": (lambda *t: _raises("one\n  two"), r"raises ValueError: one two \(", "mend that line"),
    "nothing": (lambda *t: None, r"gives a NoneType", "PolicyLoss"),
    "a number": (lambda *t: 0.5, r"gives a float", "PolicyLoss"),
    "a table": (lambda *t: right(*t)._asdict(), r"gives a dict", "PolicyLoss"),
    "the mean": (per_token(Tensor.mean), r"per_token of shape \[\], expected \[4, 6\]", "leave out .mean()"),
    "the sum": (per_token(Tensor.sum), r"per_token of shape \[\], expected \[4, 6\]", "loss_agg_func"),
    "a mean a record": (per_token(lambda x: x.mean(1)), r"shape \[4\], expected \[4, 6\]", "loss_agg_func"),
    "a mean that keeps its axis": (per_token(lambda x: x.mean(1, keepdim=True)), r"shape \[4, 1\]", "loss_agg_func"),
    "a mean over records": (per_token(lambda x: x.mean(0, keepdim=True)), r"shape \[1, 6\]", "loss_agg_func"),
    "an axis more": (per_token(lambda x: x[None]), r"shape \[1, 4, 6\]", "loss_agg_func"),
    "the mean, spread": (per_token(lambda x: x.mean().expand_as(x)), "another loss when other records", "first axis"),
    "records mixed": (normalised, "another loss when other records are in the batch", "normalize_advantages"),
    "a gradient of others": (gradient_of_others, "another loss when other records are in the batch", "first axis"),
    "a mean over a row": (by_row, "number of elements behind a record", "leave out means over elements"),
    "detached": (per_token(Tensor.detach), "per_token without gradient", ".detach()"),
    "numpy": (of_numpy, "gives a ndarray as per_token", "torch alone"),
    "a list": (per_token(lambda x: x.tolist()), "gives a list as per_token", "torch alone"),
    "float64": (per_token(Tensor.double), "per_token as float64, expected float32", "to(torch.float32)"),
    "16 bits": (per_token(Tensor.bfloat16), "per_token as bfloat16", "to(torch.float32)"),
    "a constant": (constant, "does not depend on logprobs", "from logprobs"),
    "NaN": (lambda *t: per_token(lambda x: x / (x - x))(*t), "24 of 24 numbers that are not finite", "quotient"),
    "NaN at a ratio of 1": (
        lambda lp, old, a: per_token(lambda x: x + 0 * torch.log(lp - old))(lp, old, a), "all ratios are 1", "log",
    ),
    "a gradient that is NaN at a ratio of 1": (root, "a gradient that is not finite where all ratios are 1", "root"),
    "a ratio with a gradient": (
        lambda lp, old, a: right(lp, old, a)._replace(ratio=(lp - old).exp()), "a ratio with a gradient", "detach",
    ),
    "one ratio": (
        lambda *t: right(*t)._replace(ratio=right(*t).ratio.mean()), r"ratio of shape \[\], expected \[4, 6\]", "mean",
    ),
    "no ratio": (lambda *t: right(*t)._replace(ratio=1.0), "gives a float as ratio", "torch"),
    "clipped as numbers": (
        lambda *t: right(*t)._replace(clipped=right(*t).ratio), "clipped as float32, expected bool", "torch.bool",
    ),
    "logprobs changed": (in_place("logprobs"), "changes its input logprobs in place", "clone"),
    "old changed": (in_place("old"), "changes its input old in place", "clone"),
    "advantages changed": (in_place("advantages"), "changes its input advantages in place", "clone"),
    "it raises": (own_line, r"raises RuntimeError: .*test_loss_check\.py, line \d+: `return logprobs @ old`", "line"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_would_train_wrongly_is_refused(monkeypatch, case):
    function, message, fix = BAD[case]
    monkeypatch.setitem(globals(), "tried", function)
    with pytest.raises(ConfigError, match=message) as raised:
        check_loss(Loss("tried"), name="algorithm.loss_type my.Loss")
    assert raised.value.message.startswith("algorithm.loss_type my.Loss ")
    assert fix in raised.value.remedy
    assert "docs/how_to/add_a_loss.md" in raised.value.remedy


@pytest.mark.parametrize("function", ["right", "by_row_sum", "quadratic"])
@pytest.mark.parametrize("elements", [1, 2, 7, 5000])
def test_what_is_right_passes(function, elements):
    check_loss(Loss(function), elements)


@pytest.mark.parametrize("case", GOOD)
@pytest.mark.parametrize("elements", [6, 56])
def test_what_is_unusual_and_right_passes(monkeypatch, case, elements):
    monkeypatch.setitem(globals(), "tried", GOOD[case])
    check_loss(Loss("tried"), elements)


@dataclass
class Fades(Loss):
    """It grows with each call, from 0."""

    calls: int = 0

    def __call__(self, *given: Tensor) -> Any:
        self.calls += 1
        return per_token(lambda x: x * min(1.0, (self.calls - 1) / 10))(*given)


@dataclass
class FadesInItsClass(Loss):
    calls: ClassVar[int] = 0

    def __call__(self, *given: Tensor) -> Any:
        FadesInItsClass.calls += 1
        return per_token(lambda x: x * min(1.0, FadesInItsClass.calls / 10))(*given)


@dataclass
class NoCopy(Loss):
    def __deepcopy__(self, memo: Any) -> Any:
        raise PicklingError("no")


class Learned(torch.nn.Module):
    anchor = Anchor.ACTING

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, *given: Tensor) -> Any:
        return per_token(lambda x: x * self.weight)(*given)


@dataclass
class WithDefaults(Loss):
    """More parameters, which have defaults."""

    def __call__(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, scale: float = 1.0, **more: Any
    ) -> Any:
        return right(logprobs, old_logprobs, advantages)


@pytest.mark.parametrize("kind", [Fades, FadesInItsClass, NoCopy, Learned, WithDefaults])
@pytest.mark.parametrize("elements", [1, 6, 56])
def test_a_loss_with_a_state_passes(kind, elements):
    check_loss(kind(), elements)


@dataclass
class ByKeyword(Loss):
    def __call__(self, *, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor) -> Any:
        return right(logprobs, old_logprobs, advantages)


@dataclass
class InAnotherOrder(Loss):
    def __call__(self, advantages: Tensor, logprobs: Tensor, old_logprobs: Tensor) -> Any:
        return right(logprobs, old_logprobs, advantages)


@pytest.mark.parametrize(
    ("kind", "message"),
    [(ByKeyword, "takes logprobs, old_logprobs, advantages by keyword alone"),
     (InAnotherOrder, "has advantages as parameter 1")],
)  # fmt: skip
def test_tensors_are_given_in_the_order_of_the_protocol(kind, message):
    """A loss that takes advantages for log-probs would train on numbers that mean something else."""
    with pytest.raises(ConfigError, match=message) as raised:
        check_loss(kind())
    assert "def __call__(self, logprobs, old_logprobs, advantages)" in raised.value.remedy


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("clips", [(0.2, 0.28), (3e-4, 4e-4)])
@pytest.mark.parametrize("elements", [1, 6, 56])
def test_every_shipped_loss_passes(name, clips, elements):
    public(make_loss(name, {**KEYS, "clip_ratio_low": clips[0], "clip_ratio_high": clips[1]}), elements)


@dataclass
class Proximal(Loss):
    anchor: ClassVar[Anchor] = Anchor.PROXIMAL
    given: Any = None

    def importance(self, proximal: Tensor, acting: Tensor) -> Any:
        return self.given(log_ratio(proximal, acting).exp())


@pytest.mark.parametrize(
    ("given", "message"),
    [(Tensor.mean, r"importance\(\) of shape \[\]"), (lambda x: 1.0, "gives a float as importance"),
     (lambda x: x / 0, "numbers that are not finite"), (Tensor.double, "as float64"),
     (lambda x: x.nothing, "raises AttributeError")],
)  # fmt: skip
def test_importance_weights_are_looked_at(given, message):
    check_loss(Proximal("right", given=lambda x: x))
    with pytest.raises(ConfigError, match=message):
        check_loss(Proximal("right", given=given))


@dataclass
class NoImportance(Loss):
    anchor: ClassVar[Anchor] = Anchor.PROXIMAL


@dataclass
class NoAnchor(Loss):
    anchor: ClassVar[Any] = "acting"


def test_an_anchor_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="no method importance"):
        check_loss(NoImportance())
    with pytest.raises(ConfigError, match="has the anchor 'acting'"):
        check_loss(NoAnchor())


@dataclass
class Draws(Loss):
    calls: list[int] = field(default_factory=list)

    def __call__(self, logprobs: Tensor, old: Tensor, advantages: Tensor) -> Any:
        self.calls.append(1)
        torch.rand(3), np.random.rand(3), random.random()
        return right(logprobs, old, advantages)


def test_nothing_of_the_run_is_touched():
    loss = Draws()
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    wanted = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    check_loss(loss)
    assert (torch.rand(1), np.random.rand(), random.random()) == wanted
    assert loss.calls == []


@dataclass
class Options:
    """An option without default, and what is wrong with another."""

    strength: float
    other: int = 0
    anchor: ClassVar[Anchor] = Anchor.ACTING

    def __post_init__(self) -> None:
        {0: None}[self.other]


def test_options_that_are_missing_or_refused_are_named():
    with pytest.raises(ConfigError, match="needs the option strength, which has no default") as raised:
        make_loss(f"{__name__}.Options", KEYS)
    assert raised.value.remedy == "set algorithm.loss.strength=…"
    message = r"refuses its options: 3 \(KeyError; test_loss_check\.py, line \d+: `\{0: None\}\[self\.other\]`\)"
    with pytest.raises(ConfigError, match=message):
        make_loss(f"{__name__}.Options", KEYS, {"strength": 1.0, "other": 3})


CONFIGS = str(Path(__file__).parents[1] / "config")
RUN = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.experiment_name=run",
    "runner.max_epochs=1", "env.train.total_num_envs=2", "env.eval.total_num_envs=2", "algorithm.group_size=2",
)  # fmt: skip


@pytest.mark.parametrize("more", [(), ("runner.dry_run=true",)])
def test_a_run_ends_before_its_first_worker(tmp_path, monkeypatch, capsys, more):
    def started(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a worker was about to start")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pool.Pool, "__init__", started)
    (tmp_path / "broadcast.py").write_text(MEAN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert train.main([*RUN, *more, "algorithm.loss_type=broadcast.Loss", "--config-dir", CONFIGS]) == 2
    said = "".join(capsys.readouterr())
    assert "algorithm.loss_type broadcast.Loss gives per_token of shape []" in said
    assert "Traceback" not in said


MEAN = """
from dataclasses import dataclass
from typing import ClassVar
from embodied.algorithms.losses import reinforce
from embodied.algorithms.policy_loss import Anchor

@dataclass(frozen=True)
class Loss(reinforce.Loss):
    anchor: ClassVar[Anchor] = Anchor.ACTING

    def __call__(self, logprobs, old_logprobs, advantages):
        found = super().__call__(logprobs, old_logprobs, advantages)
        return found._replace(per_token=found.per_token.mean())
"""
