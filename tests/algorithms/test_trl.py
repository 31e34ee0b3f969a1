"""Loss and gradients are those of TRL's ``GRPOTrainer`` on one batch of texts of uneven length.

TRL's trainer is the real one; only the log-probs that its forward pass would compute are given. What means the same:

| TRL, ``GRPOConfig`` | ours, ``algorithm`` |
|---|---|
| ``loss_type=grpo`` | ``loss_type=ppo``, ``loss_agg_func=seq-mean-token-mean`` |
| ``loss_type=bnpo`` or ``dapo``, a step of one micro-batch | ``loss_type=ppo``, ``loss_agg_func=token-mean`` |
| ``loss_type=dr_grpo`` | ``loss_type=ppo``, ``loss_agg_func=seq-mean-token-sum-norm`` |
| ``max_completion_length`` of ``dr_grpo`` | ``unbiased_loss_max_tokens``; null = the policy's ``max_new_tokens`` |
| ``importance_sampling_level=sequence`` | ``loss_type=gspo``, with any of these ``loss_agg_func`` |
| ``loss_type=cispo`` | ``loss_type=cispo``, ``loss_agg_func=token-mean`` |
| ``epsilon``, ``epsilon_high`` | ``clip_ratio_low``, ``clip_ratio_high`` |
| ``epsilon_high`` of ``cispo``, the largest weight | ``clip_ratio_high`` 1 less, ``clip_ratio_low=0.999`` |
| ``delta``, at least ``1 + epsilon_high`` | ``clip_ratio_c`` |
| ``beta`` | ``kl_beta`` with ``kl_penalty_type=low_var_kl`` |
| ``use_bias_correction_kl``, true unless it is set | ``unbiased_kl_estimate``, false unless it is set |
| ``off_policy_mask_threshold`` | ``off_policy_masking_delta`` |

Several micro-batches give ours the same loss as one. TRL's ``dapo`` and ``cispo`` do, too; its ``bnpo`` takes the mean
of each micro-batch's own mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from embodied.algorithms.aggregation import sequence_means
from embodied.algorithms.kl import Coefficient
from embodied.algorithms.layout import Counts
from embodied.learn.step.objective import Objective
from embodied.learn.terms.term import Need, OptimizerBatch, Setup
from embodied.schema import AlgorithmConfig
from embodied.testing import FakeTextPolicy
from embodied.types import Evaluation

trl = pytest.importorskip("trl", reason="compares with TRL's GRPOTrainer: pip install trl")

LONGEST = 12  # tokens
LENGTHS = torch.tensor([12, 1, 7, 3, 12, 5, 9, 2])
ADVANTAGES = torch.tensor([1.2, -0.4, -1.1, 0.0, 0.7, 1.5, -0.9, 0.6])
DRIFTS = torch.tensor([0.3, 0.6, 0.7, 0.1, -0.5, 0.4, -0.15, -0.2])  # mean of lp − lp_old over each answer
BETA = 0.3


@dataclass(frozen=True)
class Texts:
    """Eight answers. Numbers beyond an answer's end are random: nobody may read them."""

    new: Tensor  # log-probs, float32 [8, LONGEST], and so the next two
    old: Tensor
    reference: Tensor
    advantages: Tensor  # float32 [8]

    @property
    def mask(self) -> Tensor:
        return torch.arange(LONGEST) < LENGTHS[:, None]


@pytest.fixture(scope="module")
def texts() -> Texts:
    random = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    old, change = -1.5 + 0.5 * drawn(8, LONGEST), 0.6 * drawn(8, LONGEST)
    mean = torch.stack([row[:length].mean() for row, length in zip(change, LENGTHS, strict=True)])
    new = old + change + (DRIFTS - mean)[:, None]
    found = Texts(new, old, new + 0.8 * drawn(8, LONGEST), ADVANTAGES)
    ratio = (found.new - found.old).exp()
    for signed in (found.mask & (ADVANTAGES > 0)[:, None], found.mask & (ADVANTAGES < 0)[:, None]):
        assert (ratio[signed] > 2.1).any(), "beyond every upper bound of the tests"
        assert (ratio[signed] < 0.7).any()
    return found


# -- TRL ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the smallest size. The trainer cannot be made without one, and it computes nothing."""
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        vocab_size=4, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, eos_token_id=1,
        pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    letters = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2, "b": 3}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    return folder


class Theirs:
    """TRL's loss. Keyword arguments are fields of ``GRPOConfig``."""

    def __init__(self, model: Path, scratch: Path, **settings: Any) -> None:
        from datasets import Dataset

        config = trl.GRPOConfig(
            output_dir=str(scratch), use_cpu=True, bf16=False, report_to="none", num_generations=8,
            per_device_train_batch_size=8, **{"max_completion_length": LONGEST, **settings},
        )  # fmt: skip
        self.trainer = trl.GRPOTrainer(
            model=str(model), reward_funcs=lambda completions, **_: [0.0] * len(completions), args=config,
            train_dataset=Dataset.from_list([{"prompt": "a"}]),
        )  # fmt: skip
        self.trainer.current_gradient_accumulation_steps = 1  # of the step in progress
        self.trainer.model.train()

    def __call__(self, texts: Texts, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
        """Loss [] and its gradient by the new log-probs [8, LONGEST]."""
        new = texts.new.clone().requires_grad_()
        entropies = torch.zeros_like(texts.new)
        monkeypatch.setattr(self.trainer, "_get_per_token_logps_and_entropies", lambda *_, **__: (new, entropies, None))
        prompt = torch.full((8, 1), 2)
        inputs = {
            "prompt_ids": prompt, "prompt_mask": torch.ones_like(prompt),
            "completion_ids": torch.full((8, LONGEST), 3), "completion_mask": texts.mask.long(),
            "advantages": texts.advantages, "num_items_in_batch": texts.mask.sum(),
            "old_per_token_logps": texts.old, "ref_per_token_logps": texts.reference,
        }  # fmt: skip
        loss = self.trainer._compute_loss(self.trainer.model, inputs)
        loss.backward()
        return loss.detach(), new.grad


# -- ours --------------------------------------------------------------------------------------------------------------


def ours(texts: Texts, parts: int = 1, **settings: Any) -> tuple[Tensor, Tensor]:
    """Loss [] and its gradient by the new log-probs [8, LONGEST].

    Args:
        parts: micro-batches, of as many texts each.
        settings: keys of ``algorithm``.
    """
    algorithm = AlgorithmConfig(**settings)
    objective = Objective(Setup(FakeTextPolicy(LONGEST).spec, algorithm, 1, Coefficient(algorithm.kl_beta)))
    whole = _optimizer_batch(objective, texts)
    new = texts.new.clone().requires_grad_()
    total = torch.zeros(())
    for part in torch.arange(8).chunk(parts):
        records, result = {"logprobs": texts.old[part]}, Evaluation(new[part], torch.zeros_like(new[part]))
        found = objective.shares(
            whole.part(part, torch.device("cpu")), records, result, Evaluation(texts.reference[part])
        )
        loss = objective.total(found)
        loss.backward()
        total += loss.detach()
    assert new.grad is not None
    return total, new.grad


def _optimizer_batch(objective: Objective, texts: Texts) -> OptimizerBatch:
    counts = Counts(torch.ones(8, dtype=torch.long), LENGTHS)
    batch = SimpleNamespace(
        counts=counts, sequence_ids=torch.arange(8), advantages=texts.advantages[:, None],
        positive=texts.advantages > 0, value_targets=None, proximal=None, shared=None,
    )  # fmt: skip
    whole = objective.optimizer_batch(batch, torch.arange(8))  # type: ignore[arg-type]
    if Need.DRIFT not in objective.needs:
        return whole
    sums = objective.log_ratio_sums(Evaluation(texts.new), {"logprobs": texts.old}, counts)
    return replace(whole, drift=sequence_means(sums, whole.mask, whole.sequence_ids))


# -- both --------------------------------------------------------------------------------------------------------------

THEIR_CLIP, OUR_CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}, {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}
TOKEN_MEAN, SEQUENCE_MEAN, NORM = "token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"
LOSSES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "grpo": ({"loss_type": "grpo"}, {"loss_type": "ppo", "loss_agg_func": SEQUENCE_MEAN}),
    "bnpo": ({"loss_type": "bnpo"}, {"loss_type": "ppo", "loss_agg_func": TOKEN_MEAN}),
    "dapo": ({"loss_type": "dapo"}, {"loss_type": "ppo", "loss_agg_func": TOKEN_MEAN}),
    "dr_grpo": ({"loss_type": "dr_grpo"}, {"loss_type": "ppo", "loss_agg_func": NORM}),
    "gspo": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        {"loss_type": "gspo", "loss_agg_func": SEQUENCE_MEAN},
    ),
    "gspo by tokens": (
        {"loss_type": "dapo", "importance_sampling_level": "sequence"},
        {"loss_type": "gspo", "loss_agg_func": TOKEN_MEAN},
    ),
    "cispo": (
        {"loss_type": "cispo", "epsilon_high": 2.0},
        {"loss_type": "cispo", "loss_agg_func": TOKEN_MEAN, "clip_ratio_high": 1.0, "clip_ratio_low": 0.999},
    ),
}  # fmt: skip
UNCORRECTED = {"beta": BETA, "use_bias_correction_kl": False}
EXTRAS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "alone": ({}, {}),
    "KL": (UNCORRECTED, {"kl_beta": BETA}),
    "dual clip": ({"delta": 1.5}, {"clip_ratio_c": 1.5}),
    "KL, dual clip": ({**UNCORRECTED, "delta": 1.5}, {"kl_beta": BETA, "clip_ratio_c": 1.5}),
    "off-policy mask": ({"off_policy_mask_threshold": 0.1}, {"off_policy_masking_delta": 0.1}),
    "unbiased KL": ({"beta": BETA}, {"kl_beta": BETA, "unbiased_kl_estimate": True}),
}
WITHOUT = {
    "cispo": ("dual clip", "KL, dual clip"),  # neither side has one there
    "gspo": ("unbiased KL",),  # TRL's ratio is the sequence's there, ours the token's
    "gspo by tokens": ("unbiased KL",),
}
CASES = [(loss, extra) for loss in LOSSES for extra in EXTRAS if extra not in WITHOUT.get(loss, ())]


def settings_of(loss: str, extra: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of ``GRPOConfig`` and keys of ``algorithm`` that mean the same."""
    (their_loss, our_loss), (their_extra, our_extra) = LOSSES[loss], EXTRAS[extra]
    return {**THEIR_CLIP, **their_loss, **their_extra}, {**OUR_CLIP, **our_loss, **our_extra}


def assert_equal(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    """Loss and gradient differ by 1e-5 at most: of the loss, and of the largest gradient."""
    (loss, gradient), (their_loss, their_gradient) = found, expected
    largest = their_gradient.abs().max().item()
    assert largest > 1e-3
    torch.testing.assert_close(loss, their_loss, rtol=1e-5, atol=0.0)
    torch.testing.assert_close(gradient, their_gradient, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize(("loss", "extra"), CASES)
def test_loss_and_gradients_are_those_of_trl(texts, model_folder, tmp_path, monkeypatch, loss, extra):
    theirs, own = settings_of(loss, extra)
    expected = Theirs(model_folder, tmp_path, **theirs)(texts, monkeypatch)
    assert (expected[1][~texts.mask] == 0).all(), "TRL's own mask"
    for parts in (1, 4):
        assert_equal(ours(texts, parts, **own), expected)


def test_each_extra_changes_the_loss(texts):
    """So that none of the cases above is a case twice."""
    for loss in LOSSES:
        found = {extra: ours(texts, **settings_of(loss, extra)[1])[1] for own, extra in CASES if own == loss}
        for extra, gradient in found.items():
            others = [other for name, other in found.items() if name != extra]
            assert not any(torch.allclose(gradient, other) for other in others), (loss, extra)


def test_a_dual_clip_below_the_upper_clip_means_another_thing(texts, model_folder, tmp_path, monkeypatch):
    """TRL bounds the ratio of good answers by ``delta``, too; ours bounds that of bad ones alone."""
    theirs, own = settings_of("grpo", "alone")
    expected, _ = Theirs(model_folder, tmp_path, **theirs, delta=1.1)(texts, monkeypatch)
    found, _ = ours(texts, **own, clip_ratio_c=1.1)
    assert abs(found - expected) > 1e-3


def test_the_constant_of_dr_grpo_is_the_longest_answer(texts, model_folder, tmp_path, monkeypatch):
    theirs, own = settings_of("dr_grpo", "alone")
    made = Theirs(model_folder, tmp_path, **theirs, max_completion_length=2 * LONGEST)
    assert_equal(ours(texts, **own, unbiased_loss_max_tokens=2 * LONGEST), made(texts, monkeypatch))
