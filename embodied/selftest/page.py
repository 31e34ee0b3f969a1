"""Shows what a self-test found: a page that needs no script and no network, and lines while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from embodied.selftest.measured import Measured
from embodied.selftest.running import Result

TEMPLATE = "page.html"
SHOWN = ("memory", "throughput")  # parts whose figures stand in the terminal, too


def html(plain: Mapping[str, Any]) -> str:
    """Renders the self-test's HTML page from the JSON object of :func:`embodied.selftest.record.as_plain`."""
    from jinja2 import Environment, StrictUndefined  # torch brings it along

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["number"] = number
    template = (files("embodied.selftest") / TEMPLATE).read_text(encoding="utf-8")
    return environment.from_string(template).render(plain)


def number(value: float | int | str) -> str:
    """Formats a number for a person.

    >>> number(0.000123456), number(1234567), number("osmesa")
    ('0.0001235', '1,234,567', 'osmesa')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else value


def line(result: Result) -> list[str]:
    """Formats the result of a part: a line for it, and one for each measurement that does not hold or that is a figure
    to be read."""
    counted = sum(bool(one.allowed) for one in result.measured)
    said = result.reason or f"{counted} compared"
    found = [f"{result.status:8} {result.name:12} {result.seconds:7.1f} s  {said}"]
    for one in result.measured:
        if not one.holds or one.skipped or result.name in SHOWN:
            found.append(f"{'':31}{'' if one.holds else 'WRONG '}{measured(one)}")
    if result.left:
        found.append(f"{'':31}{result.left} processes that it had left behind were ended")
    if result.status == "failed":
        found.append(f"{'':31}alone: {result.command}")
    return found


def measured(measurement: Measured) -> str:
    """Formats a measurement as text."""
    text = f"{measurement.what}: {number(measurement.found)}{f' {measurement.unit}' if measurement.unit else ''}"
    return f"{text} (allowed: {measurement.allowed})" if measurement.allowed else text
