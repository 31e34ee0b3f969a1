"""A function in a file of the user."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable, Mapping
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any

from embodied.errors import ConfigError, did_you_mean

from ..failures import VerifierFailed
from ..verdict import Problem, Verdict
from .full_prompt import FullPrompts
from .guarded import described
from .signatures import FULL_PROMPT, PROMPT, Arguments, accepted, arguments, score, signature_of

KEYS = "reward.custom_reward_function"
"""Section whose keys say path and function where no list of verifiers does."""


class Custom:
    """Verifier that calls the user's reward function in the signature of verl, TRL or Cosmos-RL (:mod:`.signatures`).

    The file is imported at once, also in the launching process, so that what is wrong with it is said before the run
    begins. It is called in a helper process of each env, with a time limit; what it keeps in variables is kept until
    the helper has to be replaced.

    Args:
        path: the file, from the folder where the run was started.
        function: its name.
        kwargs: further arguments by name.
        signature: verl, trl or cosmos; None: told apart by the names of the parameters.
        answer_key: name under which a function of TRL's signature gets the answer; the other columns have their own.
        success_at: score from which on a response is right. "acc" in the mapping of a verl function goes before it.
        prompt: hand over the prompt as the data has it, to a function of TRL's or Cosmos-RL's signature
            (``data.return_raw_chat``).
        full_prompt: hand over the prompt as the policy reads it, too: arguments of
            :class:`~.full_prompt.FullPrompts`.

    Raises:
        ConfigError: there is no such file or function, it cannot be imported, its signature does not fit, it needs a
            prompt that is not handed over, or has no parameter for one that is.
    """

    bounded = False

    def __init__(
        self, path: str, function: str = "compute_score", kwargs: Mapping[str, Any] | None = None,
        signature: str | None = None, answer_key: str = "answer", success_at: float = 1.0,
        prompt: bool = True, full_prompt: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._where = f"{path}: {function}"
        self._call = _function(path, function)
        self._kwargs, self._answer_key, self._success_at = dict(kwargs or {}), answer_key, success_at
        self._prompt, self._full = prompt, FullPrompts.of(full_prompt)
        self._signature = signature_of(self._call, signature, self._where)
        self._check_kwargs()
        self._check_prompts()
        if self._signature != "trl":
            self._bound(Problem("", "", {}, 0), "", "", None if self._full is None else "")

    def load(self) -> None:
        """Reads the tokenizer for full prompts, if they are handed over. The file has been imported."""
        if self._full is not None:
            self._full.load()

    def __call__(self, problem: Problem, response: str) -> Verdict:
        """Raises :class:`VerifierFailed` if the function raises or gives no finite number, and :class:`ConfigError` if
        it needs a column that the data does not have."""
        columns = f"; the columns are: {', '.join(problem.fields) or 'none'}"
        full = None if self._full is None else self._full(problem)
        positional, named = self._bound(problem, response, columns, full)
        try:
            value = self._call(*positional, **named)
        except Exception as error:
            raise VerifierFailed(f"{self._where} raised {described(error)}") from error
        try:
            found = score(self._signature, value)
        except VerifierFailed as failure:
            raise VerifierFailed(f"{self._where}: {failure.why}") from None
        right = found.reward >= self._success_at if found.right is None else found.right
        return Verdict(found.reward, right, found.answer)

    def _bound(self, problem: Problem, response: str, columns: str, full: str | None) -> Arguments:
        positional, offered = arguments(self._signature, problem, response, self._answer_key, self._prompt, full)
        named = accepted(self._call, {**offered, **self._kwargs})
        try:
            inspect.signature(self._call).bind(*positional, **named)
        except TypeError as error:
            raise ConfigError(
                f"{self._where}{inspect.signature(self._call)} cannot be called as {self._signature} does: "
                f"{error}{columns}",
                "give the parameter a default, pass it in kwargs, or set answer_key to its name if it is the answer; "
                "full_prompt is handed over with data.return_full_prompt=true",
            ) from None
        return positional, named

    def _check_prompts(self) -> None:
        """Refuses a function that needs a prompt which it does not get, or gets one that it cannot take."""
        parameters, name = inspect.signature(self._call).parameters, PROMPT.get(self._signature, "")
        needs = name in parameters and name not in self._kwargs and parameters[name].default is Parameter.empty
        if needs and not self._prompt:
            raise ConfigError(
                f"{self._where}{inspect.signature(self._call)} needs {name}, and is not handed the prompt "
                "(data.return_raw_chat is false)",
                f"set data.return_raw_chat=true, or give {name} a default",
            )
        full = FULL_PROMPT[self._signature]
        if self._full is not None and (full in self._kwargs or not accepted(self._call, {full: ""})):
            raise ConfigError(
                f"{self._where}{inspect.signature(self._call)} cannot take the full prompt "
                f"(data.return_full_prompt is true), which is handed over in {full}",
                f"give it a parameter {full}, which kwargs do not set, or leave data.return_full_prompt out",
            )

    def _check_kwargs(self) -> None:
        unknown = sorted(set(self._kwargs) - set(accepted(self._call, self._kwargs)))
        if unknown:
            raise ConfigError(
                f"{self._where}{inspect.signature(self._call)} has no parameter {' and no '.join(unknown)}",
                "remove it from kwargs, or add the parameter",
            )


def _function(path: str, name: str) -> Callable[..., Any]:
    file = Path(path).expanduser()
    if not file.is_file():
        raise ConfigError(
            f"there is no file '{path}' (looked for {file.absolute()})",
            f"set path ({KEYS}.path) to the file of the reward function",
        )
    found = getattr(_module(file.resolve()), name, None)
    if not callable(found):
        known = [key for key, value in vars(_module(file.resolve())).items() if inspect.isfunction(value)]
        raise ConfigError(
            f"{path} has no function '{name}'.{did_you_mean(name, known)}",
            f"set function ({KEYS}.name) to one of: {', '.join(known) or 'none, the file has no function'}",
        )
    try:
        inspect.signature(found)
    except ValueError as error:
        raise ConfigError(f"{path}: {name}: {error}", "wrap it in a function of Python") from error
    if inspect.iscoroutinefunction(found):
        raise ConfigError(f"{path}: {name} is an async function", "wrap it: def f(...): return asyncio.run(g(...))")
    return found


@functools.cache
def _module(file: Path) -> ModuleType:
    """The file as a module, imported once in a process."""
    name = f"_reward_{file.stem}_{zlib.crc32(str(file).encode()):08x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file} is no Python file", f"set path ({KEYS}.path) to a file whose name ends in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(
            f"{file} cannot be imported: {described(error)}", f"run it alone to see more: python {file}"
        ) from error
    return module
