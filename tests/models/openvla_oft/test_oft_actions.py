"""Action tokens, statistics and grippers against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from embodied.models.openvla_oft.tokens.action_tokenizer import ActionTokenizer, Range, gripper_from_env, gripper_to_env

from embodied.errors import CheckpointError

LLAMA = ActionTokenizer(32000)

# digitize counts the edges −1 + 2i/255 that are ≤ the action: −1 → 1, +1 → 256, 0 (between edges 127 and 128) → 128.
ENCODED = [(-1.0, 31999), (-5.0, 31999), (1.0, 31744), (7.0, 31744), (0.0, 31872), (0.999, 31745), (-0.999, 31999)]


@pytest.mark.parametrize(("action", "token"), ENCODED)
def test_encode(action: float, token: int) -> None:
    assert LLAMA.encode(np.array([action])) == [token]
    assert LLAMA.encode(torch.tensor([action])).tolist() == [token]


# Bin i has the centre −1 + (2i + 1)/255; id 31999 is bin 0; both 31745 and 31744 are bin 254.
DECODED = [(31999, -1 + 1 / 255), (31998, -1 + 3 / 255), (31872, 0.0), (31745, 1 - 1 / 255), (31744, 1 - 1 / 255)]


@pytest.mark.parametrize(("token", "action"), DECODED)
def test_decode(token: int, action: float) -> None:
    assert LLAMA.decode(np.array([token]))[0] == pytest.approx(action, abs=1e-12)
    assert LLAMA.decode(torch.tensor([token], dtype=torch.int32)).item() == pytest.approx(action, abs=1e-12)


def test_higher_ids_mean_lower_actions() -> None:
    decoded = LLAMA.decode(np.arange(31745, 32000))
    assert np.all(np.diff(decoded) == pytest.approx(-2 / 255))
    assert LLAMA.decode(31744) == LLAMA.decode(31745)


def test_text_tokens_decode_to_the_top_bin() -> None:
    """As in the original code, whose argmax runs over the whole vocabulary."""
    assert LLAMA.decode(np.array([5]))[0] == pytest.approx(1 - 1 / 255)


@pytest.mark.parametrize("vocab", [1024, 32000])
def test_centres_encode_to_themselves_in_numpy_and_torch(vocab: int) -> None:
    tokenizer = ActionTokenizer(vocab)
    ids = np.arange(vocab - 255, vocab)
    assert (tokenizer.encode(tokenizer.decode(ids)) == ids).all()
    actions = np.random.default_rng(0).uniform(-1.2, 1.2, 5000)
    assert (tokenizer.encode(torch.tensor(actions)).numpy() == tokenizer.encode(actions)).all()


def test_unnormalize_with_mask() -> None:
    """0.5·(x + 1)·(q99 − q01 + 1e-8) + q01 where masked in."""
    ranges = Range(low=(-1.0, 0.0, -1.0), high=(2.0, 0.5, 2.0), mask=(True, True, False))
    got = ranges.unnormalize(torch.tensor([[-1.0, 0.0, 0.7], [1.0, 1.0, -0.3]], dtype=torch.float64))
    want = torch.tensor([[-1.0, 0.25, 0.7], [2.0, 0.5, -0.3]], dtype=torch.float64)
    torch.testing.assert_close(got, want, atol=2e-8, rtol=0)


def test_normalize_is_the_inverse_and_clips() -> None:
    ranges = Range(low=(-1.0, 0.0), high=(2.0, 0.5), mask=(True, True))
    values = torch.tensor([[0.5, 0.125], [3.0, -1.0]], dtype=torch.float64)
    want = torch.tensor([[0.0, -0.5], [1.0, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(ranges.normalize(values), want, atol=1e-7, rtol=0)


def test_a_constant_dimension_stays_finite() -> None:
    ranges = Range(low=(0.3,), high=(0.3,), mask=(True,))
    assert torch.isfinite(ranges.normalize(torch.tensor([[0.3], [0.4]]).double())).all()


def test_statistics_without_a_mask_normalise_everything() -> None:
    assert Range.from_statistics({"q01": [0, 1], "q99": [1, 2]}, "action").mask == (True, True)


@pytest.mark.parametrize(("kind", "low", "high"), [("bounds_q99", "q01", "q99"), ("bounds", "min", "max")])
def test_a_range_that_is_upside_down_is_refused(kind: str, low: str, high: str) -> None:
    """It would turn the sign of an action."""
    with pytest.raises(CheckpointError, match=rf"action {low}\[1\] is 2, above {high}\[1\], 1"):
        Range.from_statistics({low: [0, 2], high: [1, 1]}, "action", kind)
    assert Range.from_statistics({low: [0, 2], high: [1, 1], "mask": [True, False]}, "action", kind).low == (0, 2)


# Data: 0 closed, 1 open. LIBERO's env: −1 opens, +1 closes. Bridge: +1 opens, −1 closes.
GRIPPERS = [
    ("libero", 0.1, 1.0),
    ("libero", 0.9, -1.0),
    ("bridge", 0.1, -1.0),
    ("bridge", 0.9, 1.0),
    ("none", 0.1, 0.1),
]


@pytest.mark.parametrize(("setup", "data", "env"), GRIPPERS)
def test_gripper(setup: str, data: float, env: float) -> None:
    action = torch.tensor([[0.1, 0.2, data]])
    assert gripper_to_env(action, setup).tolist()[0] == pytest.approx([0.1, 0.2, env])


@pytest.mark.parametrize(("setup", "ends"), [("libero", [1.0, 0.0, -1.0]), ("bridge", [-1.0, -1.0, 1.0])])
def test_a_gripper_at_exactly_half(setup: str, ends: list[float]) -> None:
    """Bridge: 0.5 closes, as ``>`` has it in the original. LIBERO: it is the sign of 0, which moves nothing."""
    half = torch.tensor(0.5)
    around = torch.stack([torch.nextafter(half, torch.tensor(0.0)), half, torch.nextafter(half, torch.tensor(1.0))])
    assert gripper_to_env(around.unsqueeze(1), setup)[:, 0].tolist() == ends


@pytest.mark.parametrize("setup", ["libero", "bridge", "none"])
def test_gripper_there_and_back(setup: str) -> None:
    actions = torch.tensor([[0.5, -1.0], [0.5, 1.0]])
    assert torch.equal(gripper_to_env(gripper_from_env(actions, setup), setup), actions)
