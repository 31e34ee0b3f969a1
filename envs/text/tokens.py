"""Leaves out prompts that have too many tokens, before a run begins.

The policy's tokenizer counts them, in processes of their own: neither the launcher nor an env worker imports it. What
was found is kept with the survey of the file, so that it is counted once.

    rows ─▶ survey (bytes) ─▶ prompts, 512 at a time ─▶ processes with the tokenizer ─▶ numbers of rows that stay
"""

from __future__ import annotations

import importlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from typing import Any

from embodied.errors import ConfigError

from ..shared.arguments import check_range

AT_ONCE = 512  # prompts of one request
FILES = "_files"
"""Behind the name of a counter: the function beside it that is called with ``options``, too, and gives the paths of the
files that the counts depend on. A counter without one depends on its options alone."""
_KEY = "env.train.token_limit"


@dataclass(frozen=True)
class TokenLimit:
    """The most tokens that a prompt may have, with the function that counts them.

    Args:
        most: tokens.
        counter: dotted path of a function that is called with ``options`` and gives a function from prompts, as an
            observation holds them, to their numbers of tokens. See :data:`FILES`.
        options: JSON.
        workers: processes that count.
    """

    most: int
    counter: str
    options: str
    workers: int = 1

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TokenLimit:
        """Makes it from the configuration's mapping. Raises :class:`ConfigError` if something is missing, unknown or
        impossible."""
        known = ("most", "counter", "options", "workers")
        if not {"most", "counter"} <= set(values) <= set(known):
            raise ConfigError(f"{_KEY} has {', '.join(values)}, expected {', '.join(known)}", f"correct {_KEY}")
        check_range(f"{_KEY}.most", values["most"], 1, 1 << 30)
        check_range(f"{_KEY}.workers", values.get("workers", 1), 1, 1024)
        options = json.dumps(dict(values.get("options") or {}), sort_keys=True, default=str)
        return cls(values["most"], str(values["counter"]), options, values.get("workers", 1))

    @property
    def identity(self) -> list[Any]:
        """Values on which the counts depend, for a cache key: the number of workers does not count, the state of the
        tokenizer's files does.

        Raises:
            ConfigError: the counter cannot be imported.
        """
        files = _function(self.counter, FILES, lambda **_: [])(**json.loads(self.options))
        states = [(file.name, file.stat()) for file in files]
        return [self.most, self.counter, self.options, [(name, s.st_size, s.st_mtime_ns) for name, s in states]]

    def lengths(self, prompts: Iterable[str]) -> Iterator[int]:
        """Yields the number of tokens of each prompt, in order. At any time only a few hundred prompts are in memory.

        Raises:
            EmbodiedError: the tokenizer cannot be made, or cannot make tokens of a prompt, or its process was killed.
        """
        left, waiting = iter(prompts), deque[Future[list[int]]]()
        with ProcessPoolExecutor(self.workers, get_context("spawn")) as pool:
            try:
                while True:
                    while len(waiting) < 2 * self.workers and (some := list(islice(left, AT_ONCE))):
                        waiting.append(pool.submit(_count, self.counter, self.options, some))
                    if not waiting:
                        return
                    yield from waiting.popleft().result()
            except BrokenProcessPool as error:
                raise ConfigError(
                    f"a process that counted tokens with {self.counter} was killed, or died",
                    "lower data.filter_overlong_prompts_workers if memory ran out, or set "
                    "data.filter_overlong_prompts=false",
                ) from error


def _count(counter: str, options: str, prompts: list[str]) -> list[int]:
    """Counts in a process of its own."""
    return _made(counter, options)(prompts)


@lru_cache(maxsize=1)
def _made(counter: str, options: str) -> Callable[[Sequence[str]], list[int]]:
    """Makes the tokenizer of a process that counts, once."""
    try:
        return _function(counter)(**json.loads(options))
    except (TypeError, ValueError) as error:
        raise _unusable(counter, error) from error


def _function(counter: str, ending: str = "", default: Callable[..., Any] | None = None) -> Callable[..., Any]:
    module, _, name = counter.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name + ending, default)
    except (ImportError, ValueError) as error:
        raise _unusable(counter, error) from error
    if found is None:
        raise _unusable(counter, f"{module} has no '{name}'")
    return found


def _unusable(counter: str, why: object) -> ConfigError:
    return ConfigError(f"{_KEY}.counter: {counter} cannot be used: {why}", "set data.filter_overlong_prompts=false")
