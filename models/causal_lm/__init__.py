"""Any causal language model of Hugging Face as a policy that answers text with text.

``build_policy`` is the ``_target_`` of ``config/model/causal_lm*.yaml``; its keyword arguments, with defaults and
meanings, are the fields of :class:`~.settings.Settings`. Importing this package imports neither torch nor transformers.

| file | what it does |
|---|---|
| ``network.py`` | loads or makes the network, and finds out whether it can be run here |
| ``tokenizer.py``, ``characters.py`` | text ↔ tokens: chat template, truncation, ends of a text |
| ``trunk.py``, ``attention.py`` | runs the network's layers on tokens laid end to end |
| ``packing.py`` | lays prompts and responses end to end for a training pass |
| ``distribution.py`` | the distribution of the next token |
| ``decoding.py``, ``lanes.py`` | generates texts in lanes, token by token |
| ``policy.py`` | what the runtime drives |
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from .settings import Settings

if TYPE_CHECKING:
    from .policy import CausalLMPolicy

__all__ = ["Settings", "build_policy"]


def build_policy(**kwargs: Any) -> CausalLMPolicy:
    """Build the policy on the CPU, from a Hugging Face folder or at random.

    Raises:
        ConfigError: a key under ``actor.model`` is unknown, has a wrong value, or contradicts the checkpoint.
        CheckpointError: the folder is missing, damaged, or of an architecture that cannot be run here.
    """
    from .build import build

    return build(Settings.from_kwargs(kwargs))


# The configuration is checked against this signature. Taking it from the dataclass keeps one list of keys.
build_policy.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(Settings).parameters.values()]
)
