"""What is wrong with a configuration on this machine: all of it, and what the run's folder holds.

The rules are those of the run (:func:`embodied.schema.rules`, :class:`embodied.run.build.preflight.Rules`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from embodied import schema
from embodied.doctor.findings import Finding, of_error
from embodied.errors import ConfigError, EmbodiedError, broken
from embodied.parallel.group import Group
from embodied.run.build import preflight
from embodied.run.folder.folder import RunFolder
from embodied.run.placement.roles import placed
from embodied.run.placement.table import to_start
from embodied.schema.compose.compose import Composed, compose_unchecked

NAME = "configuration"


def configuration(overrides: Sequence[str], folders: Sequence[str], command: str = "train") -> Iterator[Finding]:
    """Composes and checks a configuration as a command does; in a process of its own.

    Args:
        folders: those with more group files.
        command: ``train``, ``eval``, ``sft`` or ``demos``.
    """
    try:
        composed = compose_unchecked(overrides, command, folders)
    except EmbodiedError as error:
        yield of_error(NAME, error)
        return
    wrong = errors(composed, preflight.Rules(composed, processes_of(composed.config)))
    for one in wrong:
        yield of_error(NAME, one)
    if not wrong:
        yield Finding(NAME, "ok", "nothing stands against it: " + (" ".join(overrides) or "the default job"))


def processes_of(config: schema.Config) -> Group:
    """Returns the processes of a run that is started as this command was: with those that torchrun has started, or with
    those that a command by itself plans or starts.

    Raises:
        ConfigError: what has started this command does not say what it has started.
    """
    started = to_start(config, Group.from_environment())
    try:
        return started if started.table is not None else placed(config, started)
    except ConfigError:  # the rules say it
        return started


def errors(composed: Composed, rules: preflight.Rules) -> list[EmbodiedError]:
    """Lists all errors for which a run would be refused; empty if none."""
    path = Path(composed.config.runner.logger.log_path)
    return broken(chain(schema.rules(composed.config), rules, [lambda: RunFolder.look(path, rules.composed.resolved)]))
