"""``python -m embodied.tools.doctor [COMMAND] [GROUP=NAME …] [KEY=VALUE …] [--json]``: what is wrong with this machine.

Takes the same overrides as ``embodied.train``, or as COMMAND (``eval``, ``sft``, ``demos``). Without any it checks the
machine and every simulator that is installed; with them also what that configuration needs. With ``data=PATH`` it reads
that data set whole, and with nothing else that alone; ``--every=N`` decodes the pictures of one step in N. It says
everything that it finds, each with its fix, and changes nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence

from embodied.cli import piped
from embodied.doctor.checks import configuration, data_sets, devices, machine, simulators, sizes, versions
from embodied.doctor.findings import Finding, of_error, once
from embodied.doctor.report import as_json, show
from embodied.doctor.running import Check, run_all
from embodied.errors import ConfigError, EmbodiedError, printed
from embodied.observe.terminal.console import NullConsole, make_console
from embodied.run.arguments import parse_argv
from embodied.schema.compose.compose import Composed, compose_unchecked

GPU_LIMIT_S = 120.0  # importing torch, starting CUDA, and the time that GPUs have to meet (devices.PEERS_S)
COMMANDS = ("train", "eval", "sft", "demos")
CPU_S = {"GPUs": 1.5, "simulator": 5.0, configuration.NAME: 8.0, sizes.NAME: 9.0}  # measured


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 if something fails, or 2 for arguments that are no overrides."""
    given = list(sys.argv[1:] if argv is None else argv)
    command = given.pop(0) if given and given[0] in COMMANDS else None
    as_machine = "--json" in given
    began = time.monotonic()
    try:
        every, given = sampled([word for word in given if word != "--json"])
        overrides, folders, _ = parse_argv(given, "tools.doctor")
    except EmbodiedError as error:
        print(printed(error), file=sys.stderr)
        return 2
    found: list[Finding] = []
    composed: Composed | None = None
    if overrides or command:
        try:
            command, composed = _composed(overrides, command, folders)
        except EmbodiedError as error:
            found.append(of_error(configuration.NAME, error))
    only_data = command == "sft" and composed is not None and data_sets.only_data(overrides)
    planned = [] if only_data else [*plan(composed, overrides, folders, command or "train")]
    console = NullConsole() if as_machine or not sys.stdout.isatty() else make_console()
    with console.progress("checking", len(planned), brief=True) as bar:
        found += run_all(planned, lambda name: bar.advance(1))
    if composed is not None:
        found += data_sets.look(composed.config, overrides, every, make_console(sys.stderr).progress)
    found = once(found)
    seconds = time.monotonic() - began
    if as_machine:
        print(as_json(found, seconds))
    else:
        show(found, seconds, sys.stdout)
    return int(any(finding.status == "fail" for finding in found))


def _composed(overrides: Sequence[str], command: str | None, folders: Sequence[str]) -> tuple[str, Composed]:
    """The command and its configuration: that of ``sft`` where data of robots are given and no command."""
    if command is None and any(word.startswith(("data=", "data.train_data_paths=")) for word in overrides):
        composed = compose_unchecked(overrides, "sft", folders)
        if data_sets.are_demonstrations(composed.config, overrides):
            return "sft", composed
    return command or "train", compose_unchecked(overrides, command or "train", folders)


def sampled(words: Sequence[str]) -> tuple[int, list[str]]:
    """Takes the number N of ``--every=N`` out of a command line's words; returns it and the others. Raises
    :class:`ConfigError`."""
    every, rest = 1, []
    for word in words:
        option, _, number = word.partition("=")
        if option != "--every":
            rest.append(word)
        elif not number.isdecimal() or not int(number):
            raise ConfigError(f"{word} is no number of steps", "write --every=10 to decode pictures of one step in 10")
        else:
            every = int(number)
    return every, rest


def plan(
    composed: Composed | None, overrides: Sequence[str], folders: Sequence[str], command: str = "train"
) -> Iterator[Check]:
    """Yields the doctor's checks: those of the machine, of the simulators, and of a configuration if there is one.

    Args:
        command: that the configuration is of.
    """
    config = None if composed is None else composed.config
    model = {} if config is None else config.actor.model.model_extra or {}
    flash = model.get("attn_implementation") == "flash_attention_2"
    yield Check("versions", versions.versions)
    yield Check("memory", machine.memory)
    yield Check("shared memory", machine.shared_memory)
    yield Check("open files", machine.open_files)
    yield Check("disk", machine.disk, () if config is None else (config.runner.logger.log_path,))
    yield Check("stale workers", machine.stale_workers)
    device = "auto" if config is None else config.runner.device
    yield Check("GPUs", devices.devices, (device, flash), apart=True, limit_s=GPU_LIMIT_S, cpu_s=CPU_S["GPUs"])
    known, broken = simulators.simulators(folders)
    yield Check(simulators.GROUPS, iter, (broken,))
    python, wanted = None, list[str]()
    if config is not None:
        python, wanted = config.env.python, list(dict.fromkeys((config.env.train.target, config.env.eval.target)))
    for target in filter(simulators.has_needs, wanted):
        if python is not None:
            yield Check(target, simulators.elsewhere, (target, python))
        else:
            needed = (target, list(overrides), list(folders), True, command)
            yield Check(target, simulators.simulator, needed, apart=True, cpu_s=CPU_S["simulator"])
    for target, name in known.items():
        if target not in wanted:
            arguments = (target, [f"env={name}"], list(folders), False)
            yield Check(
                target, simulators.simulator, arguments, apart=True, advisory=config is not None,
                cpu_s=CPU_S["simulator"],
            )  # fmt: skip
    if config is not None:
        more = (list(overrides), list(folders), command)
        looked = configuration.configuration
        yield Check(configuration.NAME, looked, more, apart=True, cpu_s=CPU_S[configuration.NAME])
        yield Check(sizes.NAME, sizes.sizes, more, apart=True, cpu_s=CPU_S[sizes.NAME])


if __name__ == "__main__":
    sys.exit(piped(main))
