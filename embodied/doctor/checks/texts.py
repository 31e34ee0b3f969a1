"""Demonstrated answers, looked at whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from embodied import schema
from embodied.doctor.findings import Finding, of_error
from embodied.errors import EmbodiedError
from embodied.rows.hub import Part
from embodied.run.build.demonstrations import reader_of


def look(data: schema.DataConfig, path: str) -> Iterator[Finding]:
    """Checks a file or data set of demonstrated prompt-answer pairs; yields findings."""
    name = f"demonstrated answers {path}"
    try:
        found = reader_of(data).read([path], Part.of(data.train_subset, data.train_split, data.train_revision))
    except EmbodiedError as error:
        yield of_error(name, error)
        return
    lengths = [len(one.response) for one in found]
    yield Finding(name, "ok", f"{len(found):,} answers of {min(lengths):,} to {max(lengths):,} characters")
    counted = Counter((one.instruction, one.response) for one in found)
    if copies := len(found) - len(counted):
        fix = "remove the copies: one may be learned from while the other is held out for validation"
        yield Finding(f"{name}: duplicates", "warn", f"{copies:,} rows are copies of others", fix)
