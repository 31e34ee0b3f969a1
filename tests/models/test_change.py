"""How far answers move: what of two policies is compared, and under which condition the second one answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from embodied.models.shared.change import change
from torch import Tensor

from embodied.protocols import Examples
from embodied.testing import FakeEnv, FakePolicy

SPEC = FakeEnv().spec
COUNT = 5  # two calls: one is full, one is not
OBS = {
    name: np.random.default_rng(0).integers(0, 9, (COUNT, *field.shape)).astype(field.dtype)
    for name, field in SPEC.obs.items()
}
EXAMPLES = Examples(obs=OBS, instructions=[SPEC.tasks[row % 2] for row in range(COUNT)])
CPU = torch.device("cpu")


class Scaled(FakePolicy):
    """Its logits may be scaled for a while; it keeps the names of the fields that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.bind(SPEC)
        self.given: set[str] = set()

    def act(self, obs: Any, *args: Any) -> Any:
        self.given |= {*obs}
        return super().act(obs, *args)

    def evaluate(self, records: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        self.given |= {*records}
        return super().evaluate(records, *args, **kwargs)

    @contextmanager
    def turned(self) -> Iterator[None]:
        self.head.weight.data.neg_()
        yield
        self.head.weight.data.neg_()


def test_a_policy_is_compared_with_itself_as_it_is_inside_a_context():
    policy = Scaled()
    same, other = change(policy, policy, EXAMPLES, CPU), change(policy, policy, EXAMPLES, CPU, policy.turned)
    assert (same.logprob_largest, same.action_largest, same.observations) == (0, 0, COUNT)
    assert other.logprob_mean > 0.1
    assert other.action_mean > 0.1
    assert change(policy, policy, EXAMPLES, CPU) == same, "outside of it the policy is as it was"


@pytest.mark.parametrize("others", [True, False])
def test_both_get_the_fields_of_observations_and_decisions_and_no_others(others):
    policy, other = Scaled(), Scaled()
    change(policy, other, EXAMPLES, CPU)
    told = policy.encode_instructions(SPEC.tasks[:1])
    assert (other if others else policy).given == {*SPEC.obs, *policy.spec.decision, *told}
