"""Finds the longest prompt of a run, for counting the memory of passes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from embodied.data.texts.text import DemonstratedAnswer
from embodied.errors import SpecMismatchError
from embodied.instructions import FIELD
from embodied.protocols import KnowsPrompts, Policy
from embodied.run.build.demonstrations import Demonstrated
from embodied.run.build.given import ConfiguredEnv, Sides
from embodied.run.build.shares import only_evaluates
from embodied.runtime.plan import EVAL_SEEDS
from embodied.schema import Config
from embodied.types import Start

MOST = 256  # prompts that are looked at
FILLER = "0"  # one token in nearly every vocabulary; seldom a part of a longer one


def longest(config: Config, sides: Sides, demonstrations: Demonstrated, policy: Policy) -> str:
    """Returns the longest instruction that the policy is given, for counting memory: of robots the longest task; of
    texts the longest of some prompts, where they are known before the run, else one as long as the policy takes."""
    supervised = config.runner.task.supervised
    side = sides.eval if only_evaluates(config) and not supervised else sides.train
    shown = (one.instruction for one in demonstrations.train if isinstance(one, DemonstratedAnswer))
    known = shown if supervised else _asked(side)
    return side.kind.longest_prompt(side.spec.tasks, known, partial(_most, side, policy))


def _asked(side: ConfiguredEnv) -> Iterator[str]:
    """Prompts of starts, evenly over all of them. Of several turns the first prompt says little."""
    if side.max_steps > 1 or not isinstance(side.env, KnowsPrompts):
        return
    seeds, each = EVAL_SEEDS if side.name == "eval" else 0, max(1, MOST // len(side.spec.tasks))
    for task, count in enumerate(side.spec.num_init_states[:MOST]):
        for number in range(0, count, -(-count // each)):
            yield side.env.prompt(Start(task, number, seeds + number))


def _most(side: ConfiguredEnv, policy: Policy) -> str:
    """The longest filler that an observation can hold and the policy takes."""
    field = side.spec.obs.get(FIELD)
    low, high = 0, field.shape[0] if field is not None else 0  # characters that fit, and that may
    while low < high:
        middle = (low + high + 1) // 2
        try:
            policy.encode_instructions([FILLER * middle])
            low = middle
        except SpecMismatchError:
            high = middle - 1
    return FILLER * low
