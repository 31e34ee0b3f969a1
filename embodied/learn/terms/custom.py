"""User-defined terms: each a dataclass that ``algorithm.terms`` names by its dotted path.

Its fields are its options. A field with the name of a key of ``algorithm`` gets that key's value, and a field ``setup``
the :class:`embodied.learn.terms.term.Setup`. ``docs/how_to/add_a_loss.md`` has an example.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

from embodied.algorithms.options import construct
from embodied.errors import ConfigError
from embodied.learn.terms.term import Need, Setup, Term
from embodied.lib.targets import load_target

KEY = "algorithm.terms"
METHODS, ATTRIBUTES = ("weights", "carries_gradient", "share"), ("needs", "metrics")
WRITE = "write it like the example of docs/how_to/add_a_loss.md"


def make_terms(setup: Setup) -> dict[str, Term]:
    """Makes the terms of ``algorithm.terms``: key → term, in their order.

    Raises:
        UnknownNameError: an option is no field of its class.
        ConfigError: a class that is no term, a value that it refuses, or a need that the run does not meet.
    """
    return {f"{KEY}.{name}": _make(f"{KEY}.{name}", block, setup) for name, block in setup.algorithm.terms.items()}


def _make(key: str, block: Mapping[str, Any], setup: Setup) -> Term:
    target, options = str(block["_target_"]), {name: block[name] for name in block if name != "_target_"}
    kind = load_target(target, f"{key}._target_")
    check_members(kind, f"{key}._target_ {target}")
    if not (is_dataclass(kind) and isinstance(kind, type)):
        raise ConfigError(f"{key}._target_ {target} is no term: a dataclass whose fields are its options", WRITE)
    term: Term = construct(kind, f"the term {target}", key, {**dict(setup.algorithm), "setup": setup}, options)
    check_needs(term, key, setup)
    return term


def check_members(term: Any, name: str) -> None:
    """Checks that an object has all members of a term. Raises ConfigError."""
    lacking = [member for member in ATTRIBUTES if not hasattr(term, member)]
    lacking += [member for member in METHODS if not callable(getattr(term, member, None))]
    if lacking:
        raise ConfigError(f"{name} is no term: it has no {', '.join(lacking)}", WRITE)


def check_needs(term: Term, name: str, setup: Setup) -> None:
    """Refuses needs that the policy or the run does not meet. Raises ConfigError."""
    needs, algorithm = term.needs, setup.algorithm
    if not isinstance(needs, frozenset) or not all(isinstance(need, Need) for need in needs):
        raise ConfigError(
            f"{name} has the needs {needs!r}, expected a frozenset of members of embodied.learn.terms.term.Need",
            "write needs: ClassVar[frozenset[Need]] = frozenset({Need.REFERENCE}), or leave needs out",
        )
    if Need.DISTRIBUTION in needs and not setup.spec.distribution:
        raise ConfigError(f"{name} needs the distribution, and the policy gives none", "choose another model or term")
    if Need.REFERENCE in needs and not algorithm.kl_beta:
        raise ConfigError(
            f"{name} needs the reference policy, and algorithm.kl_beta is 0: there is none",
            "set algorithm.kl_beta above 0; one as small as 1e-9 leaves the rest of the loss as it is",
        )
    if Need.VALUES in needs and algorithm.adv_type != "gae":
        raise ConfigError(
            f"{name} needs values, and algorithm.adv_type {algorithm.adv_type} has none", "set algorithm.adv_type=gae"
        )
