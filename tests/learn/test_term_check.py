"""A term of the user's that would train wrongly is refused before the first rollout, with the contract."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied import sft, train
from embodied.algorithms.kl import Coefficient
from embodied.algorithms.metrics import sum_and_count
from embodied.errors import ConfigError, EmbodiedError, UnknownNameError
from embodied.learn.step.objective import COMPUTED, Objective
from embodied.learn.terms.conformance.records import make_case, usual_setup
from embodied.learn.terms.term import Forward, Need, OptimizerBatch, Setup, Share
from embodied.observe.metrics import Metric
from embodied.report import series
from embodied.report.reading import read
from embodied.runtime.pool import pool
from embodied.schema import AlgorithmConfig
from embodied.testing import FakePolicy, FakeTextPolicy, FlowPolicy, check_term

HERE = Path(__file__).parents[1]
SQUARES = Metric("train/squares", "mean squared change of a log-prob", "nats²", "lower")


@dataclass(frozen=True)
class Right:
    """``weight · Σ w · (lp − lp_old)²``; what is wrong about it is one of the functions below."""

    weight: float = 0.5
    wrong: str = ""
    metrics: ClassVar[tuple[Any, ...]] = (SQUARES,)
    needs: ClassVar[frozenset[Need]] = frozenset()

    def weights(self, batch: OptimizerBatch) -> Tensor:
        return batch.weights

    def carries_gradient(self, batch: OptimizerBatch, weights: Tensor) -> Tensor:
        return torch.ones(len(batch), dtype=torch.bool)

    def share(self, seen: Forward, weights: Tensor) -> Any:
        if self.wrong:
            return globals()[self.wrong](self, seen, weights)
        squares = (seen.new - seen.old) ** 2
        measured = {SQUARES.name: sum_and_count(squares, seen.batch.mask)}
        return Share(self.weight * (squares * weights).sum(), measured)


def squares(seen: Forward) -> Tensor:
    return (seen.new - seen.old) ** 2


def a_tensor(term, seen, weights):
    return (squares(seen) * weights).sum()


def each_element(term, seen, weights):
    return Share(squares(seen) * weights)


def detached(term, seen, weights):
    return Share((squares(seen) * weights).sum().detach())


def half_detached(term, seen, weights):
    return Share(((seen.new - seen.old) * (seen.new - seen.old).detach() * weights).sum())


def of_the_mean(term, seen, weights):
    return Share(squares(seen).mean())


def everywhere(term, seen, weights):
    return Share((squares(seen).mean(dim=1) * weights.sum(dim=1)).sum() + ((seen.result.logprobs**2).sum() * 1e-2))


def endless(term, seen, weights):
    return Share((squares(seen) / (seen.new - seen.old).abs() * weights).sum())


def steep(term, seen, weights):
    return Share(((squares(seen)).sqrt() * weights).sum())


def nothing(term, seen, weights):
    return Share((0.0 * seen.new * weights).sum())


def in_place(term, seen, weights):
    seen.batch.advantages.mul_(0.5)
    return Share((squares(seen) * weights).sum())


def undeclared(term, seen, weights):
    return Share((squares(seen) * weights).sum(), {"train/other": sum_and_count(seen.new, seen.batch.mask)})


def one_number(term, seen, weights):
    return Share((squares(seen) * weights).sum(), {SQUARES.name: squares(seen).mean().detach()})


def with_gradient(term, seen, weights):
    return Share((squares(seen) * weights).sum(), largest={SQUARES.name: squares(seen).amax()})


def measures_all(term, seen, weights):
    values = seen.result.logprobs.detach().double()
    return Share((squares(seen) * weights).sum(), {SQUARES.name: torch.stack([values.sum(), weights.sum().double()])})


def reads_the_reference(term, seen, weights):
    return Share(((seen.new - seen.reference.logprobs) * weights).sum())


def draws(term, seen, weights):
    return Share((squares(seen) * weights * torch.rand(weights.shape)).sum())


def noisy(term, seen, weights):
    random.random(), np.random.rand()
    return Share((squares(seen) * weights * (0.5 + torch.rand(weights.shape))).sum())


def test_a_right_term_passes():
    check_term(Right())
    check_term(Right(wrong="noisy"))
    check_term(Surrogate(wrong="half_detached"))


@dataclass(frozen=True)
class Surrogate(Right):
    surrogate: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("a_tensor", "gives a Tensor, expected a Share"),
        ("each_element", r"gives a loss float32 \[4, 12\] with a gradient, expected float32 \[\]"),
        ("detached", "gives a loss without gradient"),
        ("half_detached", r"has the slope .* by its values and .* by its gradient(.|\n)*surrogate = True"),
        ("of_the_mean", "for all records at once and .* for one after the other"),
        ("everywhere", "changes the loss with values of actions that were not executed"),
        ("endless", "gives the loss nan"),
        ("steep", "has a gradient that is not finite"),
        ("nothing", "has a gradient of 0 everywhere"),
        ("in_place", r"changes batch.advantages in place"),
        ("undeclared", "measures train/other, which it does not declare"),
        ("one_number", r"gives train/squares in means as float32 \[\], expected a detached \[2\]"),
        ("with_gradient", r"gives train/squares in largest as float32 \[\] with a gradient"),
        ("measures_all", "changes train/squares with values of actions that were not executed"),
        (
            "reads_the_reference",
            r"raises AttributeError: 'NoneType'.*test_term_check.py, line \d+(.|\n)*named in needs",
        ),
    ],
)
def test_a_wrong_term_is_refused_with_what_was_expected(wrong, message):
    with pytest.raises(ConfigError, match=message):
        check_term(Right(wrong=wrong), name="algorithm.terms.mine")


@dataclass(frozen=True)
class WrongWeights(Right):
    kind: str = "double"

    def weights(self, batch: OptimizerBatch) -> Tensor:
        weights = batch.weights
        return {"double": weights.double(), "sum": weights.sum(), "endless": weights / 0, "unmasked": weights * 0 + 1}[
            self.kind
        ]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("double", r"gives weights float64 \[4, 12\], expected float32 \[4, …\]"),
        ("sum", r"gives weights float32 \[\]"),
        ("endless", "gives weights that are not finite"),
    ],
)
def test_wrong_weights_are_refused(kind, message):
    with pytest.raises(ConfigError, match=message):
        check_term(WrongWeights(kind=kind))


@dataclass(frozen=True)
class LeavesOut(Right):
    """Says of records with an advantage of 0 that they have no gradient, or gives numbers."""

    kind: str = "advantages"

    def carries_gradient(self, batch: OptimizerBatch, weights: Tensor) -> Tensor:
        return batch.advantages.any(dim=1) if self.kind == "advantages" else weights


@pytest.mark.parametrize(
    ("kind", "message"),
    [("advantages", r"for which carries_gradient\(\) is False"), ("weights", r"gives carries_gradient\(\) float32")],
)
def test_records_that_are_left_out_have_no_gradient(kind, message):
    with pytest.raises(ConfigError, match=message):
        check_term(LeavesOut(kind=kind))


def test_the_run_s_generators_stay_as_they_are():
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    check_term(Right(wrong="noisy"))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (random.getstate(), np.random.get_state()[1].tolist())


@pytest.mark.parametrize("spec", [FakePolicy(value_head=True).spec, FlowPolicy().spec, FakeTextPolicy().spec])
@pytest.mark.parametrize("loss", ["ppo", "gspo", "tis", "cispo"])
def test_the_terms_of_the_repository_keep_the_contract(spec, loss):
    level = "action_level" if spec.elements.action_axis is not None else "token_level"
    algorithm = AlgorithmConfig(
        adv_type="gae" if "value" in spec.decision else "grpo", kl_beta=0.1, positive_nll_coef=0.1, loss_type=loss,
        entropy_bonus=0.1 if spec.entropy else 0.0, logprob_type=level, off_policy_masking_delta=0.01,
        entropy_type=level, unbiased_kl_estimate=True,
    )  # fmt: skip
    made = Setup(spec, algorithm, 16, Coefficient(0.5))
    terms = [term for kind in COMPUTED if (term := kind.make(made)) is not None]
    assert len(terms) >= 3
    for term in terms:
        check_term(term, made, type(term).__name__)


def test_what_a_term_does_not_need_it_does_not_get():
    made = usual_setup()
    case = make_case(made, frozenset(), 0.1, torch.device("cpu"), None)
    assert (case.reference, case.batch.value_targets, case.batch.proximal) == (None, None, None)
    assert "distribution" not in case.leaves
    every = make_case(made, frozenset(Need), 0.1, torch.device("cpu"), None)
    assert every.reference is not None
    assert every.reference.distribution is not None
    assert every.batch.proximal is not None


# -- by dotted path ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NeedsOption(Right):
    """Takes a key of ``algorithm``, the setup, and an option without default."""

    kl_beta: float = -1.0
    setup: Setup | None = None
    strength: float = field(kw_only=True)

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise ValueError(f"strength is {self.strength}")


@dataclass(frozen=True)
class OfTheReference(Right):
    needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE})

    def share(self, seen: Forward, weights: Tensor) -> Any:
        assert seen.reference is not None
        return Share(((seen.new - seen.reference.logprobs.flatten(1)) ** 2 * weights).sum())


@dataclass(frozen=True)
class Known(Right):
    metrics: ClassVar[tuple[Any, ...]] = (Metric("train/loss", "mine"),)


@dataclass(frozen=True)
class NoRow(Right):
    metrics: ClassVar[tuple[Any, ...]] = ("train/squares",)


@dataclass(frozen=True)
class OtherGroup(Right):
    metrics: ClassVar[tuple[Any, ...]] = (Metric("mine/squares", "mine"),)


@dataclass(frozen=True)
class NoMeaning(Right):
    metrics: ClassVar[tuple[Any, ...]] = (Metric("train/squares", ""),)


@dataclass(frozen=True)
class Collides(Right):
    """Measures what a term of the repository measures, by its name."""

    metrics: ClassVar[tuple[Any, ...]] = ("train/entropy",)


@dataclass(frozen=True)
class NoShare:
    metrics: ClassVar[tuple[Any, ...]] = ()

    def weights(self, batch: OptimizerBatch) -> Tensor:
        return batch.weights


def block(kind: type, **options: Any) -> dict[str, Any]:
    return {"_target_": f"test_term_check.{kind.__name__}", **options}


def objective(terms: dict[str, dict[str, Any]], **algorithm: Any) -> Objective:
    return Objective(Setup(FakePolicy().spec, AlgorithmConfig(terms=terms, **algorithm), 10, Coefficient(0.5)))


def test_a_term_gets_its_options_keys_of_algorithm_and_the_setup():
    made = objective({"mine": block(NeedsOption, strength=2.0, weight=0.25)}, kl_beta=0.125)
    term = made.terms[-1]
    assert isinstance(term, NeedsOption)
    assert (term.strength, term.weight, term.kl_beta) == (2.0, 0.25, 0.125)
    assert term.setup is not None
    assert made.rows == [SQUARES]


def test_the_shares_of_several_terms_of_one_class_are_all_added():
    one = objective({"a": block(Right)})
    two = objective({"a": block(Right, weight=1.0), "b": block(Quiet, weight=3.0), "c": block(Quiet)})
    assert len(two.terms) == len(one.terms) + 2
    shares = [Share(torch.tensor(float(2**place))) for place in range(len(two.terms))]
    assert two.total(shares).item() == 2 ** len(two.terms) - 1


@dataclass(frozen=True)
class Quiet(Right):
    metrics: ClassVar[tuple[Any, ...]] = ()

    def share(self, seen: Forward, weights: Tensor) -> Any:
        return replace(super().share(seen, weights), means={})


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"m": block(Right, wieght=1)}, "unknown option of the term test_term_check.Right 'wieght'. Did you mean"),
        ({"m": block(NeedsOption)}, r"needs the option strength(.|\n)*set algorithm.terms.m.strength=…"),
        ({"m": block(NeedsOption, strength=-1)}, "refuses its options: strength is -1"),
        ({"m": block(NoShare)}, "is no term: it has no needs, carries_gradient, share"),
        ({"m": {"_target_": "no_such.Term"}}, r"algorithm.terms.m._target_: cannot import 'no_such.Term'"),
        ({"m": block(OfTheReference)}, r"needs the reference policy(.|\n)*set algorithm.kl_beta"),
        ({"m": block(Known)}, "algorithm.terms.m measures train/loss, which is a metric of every run"),
        ({"m": block(NoRow)}, r"measures 'train/squares', which has no row(.|\n)*Metric\("),
        ({"m": block(OtherGroup)}, "a term's metrics are train/"),
        ({"m": block(NoMeaning)}, "does not say what it means"),
        ({"m": block(Collides)}, "algorithm.terms.m measures train/entropy, and so does EntropyTerm"),
        ({"m": block(Right), "n": block(Right)}, "algorithm.terms.n measures train/squares, and so does algorithm.te"),
    ],
)
def test_what_is_no_term_or_measures_what_others_do_is_refused(terms, message):
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        objective(terms)


RUN = (
    "env=fake", "model=fake", "tracker=jsonl", "runner.device=cpu", "runner.max_epochs=2", "runner.save_interval=1",
    "runner.val_check_interval=-1", "algorithm.rollout_epoch=4", "env.train.max_episode_steps=10", "env.num_workers=1",
    "env.train.reward_mode=dense", "runner.experiment_name=run", "algorithm.update_epoch=2", "algorithm.kl_beta=0.1",
    "--config-dir", str(HERE / "config"),
)  # fmt: skip
MINE = "algorithm.terms.mine._target_=test_term_check."


def rows(name: str = "run") -> list[dict[str, float]]:
    return [json.loads(line) for line in Path("runs", name, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_tmp_path")
def test_a_run_trains_with_the_term_logs_its_metric_and_goes_on():
    assert train.main([*RUN, MINE + "Right", "algorithm.terms.mine.weight=3"]) == 0
    mine = rows()
    assert all(row["train/squares"] > 0 for row in mine)
    kept = json.loads(Path("runs/run/own_metrics.json").read_text(encoding="utf-8"))
    assert kept == {"train/squares": "mean squared change of a log-prob, nats²; lower is better"}
    shown = series.custom_meanings([read("runs/run")])
    assert series.meaning("train/squares", shown) == kept["train/squares"]
    assert train.main([*RUN, "runner.experiment_name=without"]) == 0
    without = rows("without")
    assert not Path("runs/without/own_metrics.json").exists()
    assert without[0]["train/loss"] != mine[0]["train/loss"]
    more = ["runner.max_epochs=3", MINE + "Right", "algorithm.terms.mine.weight=3"]
    assert train.main([*RUN, *more]) == 0
    assert train.main([*RUN, *more, "runner.experiment_name=whole"]) == 0
    assert rows()[2]["train/squares"] == rows("whole")[2]["train/squares"]


@pytest.mark.usefixtures("in_tmp_path")
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([MINE + "Right", "algorithm.terms.mine.wrong=of_the_mean"], "algorithm.terms.mine gives the loss as"),
        ([MINE + "Right", "algorithm.terms.mine.wrong=undeclared"], "measures train/other, which it does not declare"),
        ([MINE + "Collides"], "and so does EntropyTerm"),
        (["algorithm.terms.mine.weight=1"], "algorithm.terms.mine._target_ is missing"),
        (["algorithm.terms.mine._target_=Right"], "algorithm.terms.mine._target_ is Right, expected the dotted path"),
    ],
)
def test_a_wrong_term_ends_a_run_before_any_worker(monkeypatch, capsys, overrides, message):
    def start(*args: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(pool.Pool, "_start", start)
    assert train.main([*RUN, *overrides]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.usefixtures("in_tmp_path")
def test_a_run_of_before_there_were_terms_goes_on_without_and_not_with_one(capsys):
    assert train.main([*RUN, "runner.max_epochs=1"]) == 0
    saved = Path("runs/run/config.yaml")
    text = saved.read_text(encoding="utf-8")
    assert text.count("  terms: {}\n") == 1
    saved.write_text(text.replace("  terms: {}\n", ""), encoding="utf-8")
    assert train.main([*RUN, MINE + "Right"]) == 2
    assert "algorithm.terms: '(not set)' there" in capsys.readouterr().err
    assert train.main(list(RUN)) == 0
    assert [row["step"] for row in rows()] == [1, 2]


@pytest.mark.usefixtures("in_tmp_path")
def test_supervised_training_takes_no_further_terms(capsys):
    options = ["env=fake", "model=fake", "data=demos", MINE + "Right", "--config-dir", str(HERE / "config")]
    assert sft.main(options) == 2
    assert "algorithm.terms has mine, and supervised training has one term" in capsys.readouterr().err


@pytest.mark.usefixtures("in_tmp_path")
def test_a_term_of_the_reference_waits_while_the_value_head_warms_up():
    keys = ["algorithm=ppo", "algorithm.kl_beta=0.1", "algorithm.critic_warmup_steps=1", "runner.max_epochs=1"]
    assert train.main([*RUN, *keys, MINE + "OfTheReference"]) == 0


@dataclass(frozen=True)
class Remembers(Right):
    gamma: float = field(init=False, default=0.0)  # a key of the algorithm, too


def test_a_field_that_is_no_option_is_not_set():
    assert objective({"m": block(Remembers)}).terms[-1].gamma == 0.0
    with pytest.raises(EmbodiedError, match="gamma"):
        objective({"m": block(Remembers) | {"gamma": 0.5}})
