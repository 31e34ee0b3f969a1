"""Versions of Python, of the kernel, and of packages, against what this package asks for."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Callable, Iterator, Sequence

from packaging.requirements import Requirement

from embodied.doctor.findings import Finding

DISTRIBUTION = "embodied-rl"
NOT_FOR_RUNS = ("dev",)


def versions(
    requires: Sequence[str] | None = None, version: Callable[[str], str] = importlib.metadata.version,
    system: str = sys.platform,
) -> Iterator[Finding]:  # fmt: skip
    """Checks installed versions against the requirements of this package.

    Args:
        requires: these; None = those of the installed distribution.
        version: the version of an installed distribution; raises PackageNotFoundError.
    """
    yield _system(system)
    if requires is None:
        try:
            requires = importlib.metadata.requires(DISTRIBUTION) or ()
        except importlib.metadata.PackageNotFoundError:
            yield Finding("packages", "skipped", f"{DISTRIBUTION} is not installed, so nobody says what it asks for")
            return
    installed, absent = 0, set()
    for requirement in map(Requirement, requires):
        extra = _extra(requirement)
        if extra in NOT_FOR_RUNS or (requirement.marker and not requirement.marker.evaluate({"extra": extra})):
            continue
        try:
            found = version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            if not extra:
                yield _wrong(requirement, "is not installed")
            absent.add(extra)
            continue
        installed += 1
        if not requirement.specifier.contains(found, prereleases=True):
            yield _wrong(requirement, f"{found} is installed")
    more = ", ".join(sorted(filter(None, absent)))
    lacking = f"; not complete, and needed only for what they name: {more}" if more else ""
    yield Finding("packages", "ok", f"{installed} looked at{lacking}")


def _system(system: str) -> Finding:
    python = platform.python_version()
    if system != "linux":
        fix = "run on Linux, e.g. in WSL 2 or a container"
        return Finding("system", "fail", f"{system}: env workers need Linux (memfd, eventfd, pidfd)", fix)
    return Finding("system", "ok", f"Linux {platform.release()}, Python {python} ({sys.executable})")


def _extra(requirement: Requirement) -> str:
    """The extra that a requirement belongs to; empty for those that are always needed."""
    _, found, rest = str(requirement.marker or "").partition("extra == ")
    return rest.strip("'\" ").split("'")[0].split('"')[0] if found else ""


def _wrong(requirement: Requirement, said: str) -> Finding:
    wanted = f"{requirement.name}{requirement.specifier}"
    extra = _extra(requirement)
    return Finding(
        f"package {requirement.name}", "warn" if extra else "fail",
        f"{said}, and {DISTRIBUTION}{f'[{extra}]' if extra else ''} asks for {wanted}", f"pip install '{wanted}'",
    )  # fmt: skip
