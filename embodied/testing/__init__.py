"""Fake envs and policies that cover every field, and checks for authors of new ones.

They drive the whole stack in tests, in seconds and without a simulator:
``env.train._target_=embodied.testing.FakeEnv``, ``actor.model._target_=embodied.testing.FakePolicy``.
:func:`check_env`, :func:`check_batch_env`, :func:`check_policy`, :func:`check_loss` and :func:`check_term` call every
method of the protocols and say what does not fit. Importing this package does not import torch, as env workers need it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from embodied.testing.batch import FakeBatchEnv
from embodied.testing.checks import check_batch_env, check_env
from embodied.testing.env import FakeEnv
from embodied.testing.text_env import FakeTextEnv

if TYPE_CHECKING:
    from embodied.algorithms.conformance.loss import check_loss
    from embodied.learn.terms.conformance.term import check_term
    from embodied.testing.decoder import DecoderPort
    from embodied.testing.flow import FlowPolicy
    from embodied.testing.policy import FakePolicy
    from embodied.testing.policy_checks import check_policy
    from embodied.testing.text_policy import FakeTextPolicy

__all__ = [
    "DecoderPort",
    "FakeBatchEnv",
    "FakeEnv",
    "FakePolicy",
    "FakeTextEnv",
    "FakeTextPolicy",
    "FlowPolicy",
    "check_batch_env",
    "check_env",
    "check_loss",
    "check_policy",
    "check_term",
]

TORCH = {
    "DecoderPort": "decoder",
    "FakePolicy": "policy",
    "FakeTextPolicy": "text_policy",
    "FlowPolicy": "flow",
    "check_loss": "embodied.algorithms.conformance.loss",
    "check_policy": "policy_checks",
    "check_term": "embodied.learn.terms.conformance.term",
}  # name → module, of this package or in full


def __getattr__(name: str) -> Any:
    if name in TORCH:
        module = TORCH[name] if "." in TORCH[name] else f"embodied.testing.{TORCH[name]}"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
