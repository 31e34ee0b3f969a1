"""Values that say nothing: a key that has one keeps its default, as if it were left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.schema.links import at

SAY_NOTHING: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            "runner.seed", "runner.max_steps", "runner.max_tokens_per_mbs", "data.test_size", "actor.sequence_packing",
            "algorithm.positive_nll_coef", "algorithm.aipo_rho", "algorithm.val_sampling_params.top_p",
            "actor.lr_sched.lr_decay_style", "actor.offload_grad", "actor.tokenizer.use_fast", "data.return_raw_chat",
            "data.enable_dataset_cache", "rollout.validate_weight",
        ),
        (None,),
    ),
    "data.num_workers": (0,),  # elsewhere: no processes of their own
}  # fmt: skip
"""Key → these values of it. Null says nothing of all keys that have it as a value of their own, too."""


def silent(mapping: Mapping[str, Any]) -> list[str]:
    """Returns the keys that say nothing in what was given. Others may refer to them: ``${…}`` is not resolved yet."""
    found = []
    for key, values in SAY_NOTHING.items():
        value = at(mapping, key)
        if not isinstance(value, bool) and value in values:
            found.append(key)
    return found
