"""A fake env and a fake policy that cover every field, and checks for authors of new ones.

They drive the whole stack in tests, in seconds and without a simulator:
``env.train._target_=embodied.testing.FakeEnv``, ``actor.model._target_=embodied.testing.FakePolicy``.
:func:`check_env`, :func:`check_batch_env` and :func:`check_policy` call every method of the protocols and say what does
not fit. Importing this package does not import torch, since env workers import it.
"""

from typing import TYPE_CHECKING, Any

from embodied.testing.batch import FakeBatchEnv
from embodied.testing.checks import check_batch_env, check_env
from embodied.testing.env import FakeEnv

if TYPE_CHECKING:
    from embodied.testing.policy import FakePolicy, check_policy

__all__ = ["FakeBatchEnv", "FakeEnv", "FakePolicy", "check_batch_env", "check_env", "check_policy"]


def __getattr__(name: str) -> Any:
    if name in ("FakePolicy", "check_policy"):
        from embodied.testing import policy

        return getattr(policy, name)
    raise AttributeError(f"module {__name__} has no attribute {name!r}")
