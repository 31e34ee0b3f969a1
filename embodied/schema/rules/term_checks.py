"""Checks the terms that a user adds to the loss."""

from __future__ import annotations

from embodied.errors import ConfigError
from embodied.schema.keys.config import Config


def check_terms(config: Config) -> None:
    """Refuses terms without a class, and terms where there is no loss to add them to. Raises ConfigError."""
    terms = config.algorithm.terms
    if terms and config.runner.task.supervised:
        raise ConfigError(
            f"algorithm.terms has {', '.join(terms)}, and supervised training has one term: that of the demonstrations",
            "leave algorithm.terms out",
        )
    for name, block in terms.items():
        if "." not in str(block.get("_target_", "")):
            shown = f"is {block['_target_']}" if "_target_" in block else "is missing"
            raise ConfigError(
                f"algorithm.terms.{name}._target_ {shown}, expected the dotted path of a term of yours",
                f"set algorithm.terms.{name}._target_=my_package.my_terms.MyTerm (docs/how_to/add_a_loss.md)",
            )
