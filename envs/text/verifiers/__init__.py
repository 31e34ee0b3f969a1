"""Verifiers: they judge the response to a problem. :func:`make_verifier` makes one of its options.

| name | judges |
|---|---|
| `boxed` | the last ``\\boxed{…}``, compared within its kind (:mod:`.answers`) |
| `gsm8k` | the number after ``####``, else the last number |
| `math` | the same, and what the package math-verify finds equal |
| `exact` | the whole response |
| `integer_after` | the integer after the last separator |
| `choice` | the letter of a choice, or its letters |
| `format` | whether a regular expression matches, e.g. think and answer tags |
| `reasoning_gym` | what the scorer of a reasoning-gym task says |
| `custom` | what a function in a file of the user says (signatures of verl, TRL and Cosmos-RL) |
| `remote` | what a service says over HTTP |
| `zero` | nothing: each response is wrong and worth 0, for measuring and debugging |

A penalty for long responses is not among them. A verifier sees text, and length is counted in tokens: that is the
learner's ``reward.overlong_penalty``.
"""

from .make import make_verifier
from .weighted import Weighted

__all__ = ["Weighted", "make_verifier"]
