"""Under which protocols the evaluations on a page were made, and what is said where there are several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from embodied.evaluation.comparison_text import protocol_of
from embodied.evaluation.results import WrittenEvaluation
from embodied.report.reading import Run


def note(evaluations: Iterable[tuple[str, WrittenEvaluation]]) -> str:
    """Warns in a sentence unless all evaluations are known to be made under the same protocol; else empty.

    Args:
        evaluations: with the name that each has on the page.
    """
    of_hash: dict[str | None, list[tuple[str, WrittenEvaluation]]] = {}
    for name, one in evaluations:
        of_hash.setdefault(one.protocol.get("hash"), []).append((name, one))
    if len(of_hash) < 2:
        return ""
    said = "; ".join(
        f"{protocol_of(own[0][1])} of {_listed([*dict.fromkeys(name for name, _ in own)])}" for own in of_hash.values()
    )
    if len(of_hash) == 2 and None in of_hash:
        return f"Whether these evaluations are of one protocol is not known: {said}"
    return f"DIFFERENT PROTOCOLS: {said}. Success is a result under its protocol: a difference may be the protocol's"


def of_runs(runs: Sequence[Run]) -> str:
    """Warns in a sentence unless all evaluations of ``runs`` are known to be made under the same protocol;
    else empty."""
    return note(_named(runs))


def _named(runs: Sequence[Run]) -> Iterator[tuple[str, WrittenEvaluation]]:
    for run in runs:
        mixed = len({one.protocol.get("hash") for one in run.evaluations.values()}) > 1
        for iteration, one in sorted(run.evaluations.items()):
            after = f"after {iteration} iterations"
            yield after if len(runs) == 1 else f"{run.name} {after}" if mixed else run.name, one


def _listed(names: Sequence[str], most: int = 5) -> str:
    more = [f"{len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more])
