"""A calculator as a tool, in several turns.

    prompt      48*37=
    response    <calc>48*37</calc>                  a call: the episode goes on, without reward
    prompt      48*37=<calc>48*37</calc><result>1776</result>
    response    ;1776                               no call: verified, and the episode ends

What the calculator says is part of the next observation and of no response, so it carries no gradient. What follows a
call in its response is dropped: set ``stop`` of the sampling to ``</calc>``, and it is not even generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embodied import instructions
from embodied.errors import ConfigError
from embodied.types import StepResult

from ..shared.arguments import check_name, check_range
from .arithmetic import SEPARATOR, SPLITS, check_seed, check_terms, draw_in_split, generator
from .env import paths_of
from .expression import MAX_DIGITS, BadExpression, calculate
from .problems import Selection, open_sources
from .reading import Prompt, Reading, text_of
from .slot import TextEnv

INTEGER_AFTER = ({"name": "integer_after", "separator": SEPARATOR},)
NUMBERS = "embodied.envs.text.calculator:Numbers"
MOST_TURNS = 64
MOST_NUMBERS = 8  # numbers of a problem
OPERATIONS = ("+", "-", "*")
OPEN, CLOSE = "<calc>", "</calc>"
_NUMBERS, _STYLE = 2, 3  # numbers of random streams


class CalculatorEnv(TextEnv):
    """A text env in which the model may call a calculator: ``<calc>17*23</calc>``.

    The first call of a response is evaluated (:mod:`embodied.envs.text.expression`). The next observation is the
    transcript so far: prompt, response up to the call, and ``<result>391</result>``. A conversation gets a message of
    the role assistant and one of the role tool. What cannot be evaluated gives an error to read:
    ``<result>error: division by zero</result>``.

    A response without a call is verified and ends the episode. The last response of ``max_turns`` does so too, and one
    whose transcript does not fit into an observation.

    Args:
        max_turns: responses of an episode at most; also its control steps.
        results: false = every call gets an empty result, ``<result></result>``: for runs that show what the calculator
            is worth.
        data, verifier, data_args, prompt_key, answer_key, system_prompt, chat, template, max_prompt_bytes,
            max_response_bytes: as those of :class:`embodied.envs.text.env.MathEnv`. ``max_prompt_bytes`` is of the
            whole transcript. By default the problems are those of :class:`Numbers`.
    """

    def __init__(
        self,
        max_turns: int = 4,
        results: bool = True,
        data: str | list[str] = NUMBERS,
        verifier: Any = INTEGER_AFTER,
        data_args: Mapping[str, Any] | None = None,
        prompt_key: str = "prompt",
        answer_key: str | None = "answer",
        system_prompt: str | None = None,
        chat: bool = False,
        template: str | None = None,
        max_prompt_bytes: int = 1024,
        max_response_bytes: int = 512,
    ) -> None:
        check_range("env.train.max_turns", max_turns, 1, MOST_TURNS)
        reading = Reading(
            prompt_key, answer_key, system_prompt=system_prompt, chat=chat, template=template,
            max_prompt_bytes=max_prompt_bytes,
        )  # fmt: skip
        sources = open_sources(paths_of(data), data_args or {}, reading, Selection(), None)
        super().__init__(sources, verifier, max_prompt_bytes, max_response_bytes, max_turns)
        self._max_turns, self._max_bytes, self._results = max_turns, max_prompt_bytes, results

    def step(self, action: np.ndarray) -> StepResult:
        response, turn = instructions.read(action), self._progress.turn + 1
        before, opened, rest = response.partition(OPEN)
        expression, closed, _ = rest.partition(CLOSE)
        if not opened or not closed or turn >= self._max_turns:
            return self._judge(response)
        call = f"{before}{OPEN}{expression}{CLOSE}"
        prompt = continued(self._progress.prompt, call, answered(expression, self._results))
        if len(text_of(prompt).encode(errors="replace")) > self._max_bytes:
            return self._judge(response)
        self._progress = replace(self._progress, prompt=prompt, turn=turn, response=response)
        return StepResult(0.0, terminated=False, success=False)


def answered(expression: str, results: bool = True) -> str:
    """Makes the calculator's reply to an expression; nothing but an empty result without ``results``."""
    if not results:
        return "<result></result>"
    try:
        return f"<result>{calculate(expression)}</result>"
    except BadExpression as error:
        return f"<result>error: {error}</result>"


def continued(prompt: Prompt, response: str, result: str) -> Prompt:
    """Appends a response and the calculator's reply to the prompt."""
    if isinstance(prompt, str):
        return f"{prompt}{response}{result}"
    return (*prompt, {"role": "assistant", "content": response}, {"role": "tool", "content": result})


class Numbers:
    """A custom data set of sums and products of numbers too long for mental arithmetic.

    A problem is a function of ``(seed, number)``. Evaluations have problems of their own, as with
    :class:`embodied.envs.text.arithmetic.Chains`.

    Args:
        digits: fewest and most digits of a number.
        terms: fewest and most numbers of a problem. All operations of one problem are the same.
        operations: of ``+``, ``-`` and ``*``, those that occur.
        count: problems.
        seed: other seeds give other problems.
        split: train, eval, or auto.

    >>> Numbers(digits=[3, 4])[0]
    {'prompt': '4957*3497=', 'answer': '17334629'}
    """

    def __init__(
        self,
        digits: Sequence[int] = (3, 4),
        terms: Sequence[int] = (2, 2),
        operations: Sequence[str] = ("+", "*"),
        count: int = 100_000,
        seed: int = 0,
        split: str = "auto",
    ) -> None:
        check_terms("digits", digits, 1, 12)
        check_terms("terms", terms, 2, MOST_NUMBERS)
        _check_size(digits[1] * terms[1], operations)
        check_range("env.train.data_args.count", count, 1, 2**31 - 1)
        check_seed(seed)
        check_name("split", split, SPLITS, "env.train.data_args.split")
        if not operations:
            raise ConfigError("env.train.data_args.operations is empty", "set env.train.data_args.operations=['+','*']")
        for operation in operations:
            check_name("operation", operation, OPERATIONS, "env.train.data_args.operations")
        self._digits, self._terms, self._operations = tuple(digits), tuple(terms), tuple(operations)
        self._count, self._seed, self._split = count, seed, split

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, str]:
        prompt, answer = draw_in_split(self._split, (self._seed, number, _NUMBERS), self._draw)
        return {"prompt": prompt, "answer": answer}

    def _draw(self, random: np.random.Generator) -> tuple[str, str]:
        operation = self._operations[random.integers(len(self._operations))]
        count = random.integers(self._terms[0], self._terms[1] + 1)
        lengths = random.integers(self._digits[0], self._digits[1] + 1, count).tolist()
        expression = operation.join(str(random.integers(10 ** (n - 1), 10**n)) for n in lengths)
        return f"{expression}=", calculate(expression)

    def for_evaluation(self) -> Numbers:
        """The problems of evaluation starts."""
        if self._split != "auto":
            return self
        return Numbers(self._digits, self._terms, self._operations, self._count, self._seed, "eval")


def _check_size(digits: int, operations: Sequence[str]) -> None:
    if "*" in operations and digits > MAX_DIGITS:
        raise ConfigError(
            f"products of env.train.data_args have up to {digits} digits, and the calculator has {MAX_DIGITS}",
            "lower env.train.data_args.digits or env.train.data_args.terms",
        )


def demonstrations(
    count: int = 10_000, seed: int = 0, call_share: float = 0.5, results: bool = True, **options: Any
) -> list[dict[str, str]]:  # fmt: skip
    """Makes demonstrations for supervised learning: rows of prompt and response, of training problems alone.

    A problem that is solved with a call gives two rows: the call, and the answer after its result. One that is solved
    without gives one row, with the right answer, which a small model can only guess at. So a model that is cloned from
    both kinds calls about as often as ``call_share`` says, and is right mostly when it does. With a share of 1 each
    problem is solved in one way, and there is no way to choose.

    Args:
        count: problems.
        call_share: of the problems, from 0 to 1.
        results: of the calls; false = empty, as those of an env with ``results=false``.
        options: of :class:`Numbers`.
    """
    numbers = Numbers(count=count, seed=seed, split="train", **options)
    rows = []
    for number in range(count):
        prompt, answer = numbers[number]["prompt"], f"{SEPARATOR}{numbers[number]['answer']}"
        if generator(seed, number, _STYLE).random() < call_share:
            call = f"{OPEN}{prompt.removesuffix('=')}{CLOSE}"
            rows.append({"prompt": prompt, "response": call})
            prompt = str(continued(prompt, call, answered(prompt.removesuffix("="), results)))
        rows.append({"prompt": prompt, "response": answer})
    return rows
