"""Success under each perturbation, paired with the unperturbed episodes of the same starts.

Files in ``<run>/eval/``: ``robustness.json`` with every number and episode, ``robustness.md`` with the table, and
``robustness.png`` with the picture, of the last evaluation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from embodied.observe.statistics import paired, wilson
from embodied.perturbations import Condition
from embodied.types import EpisodeResult

NAME = "robustness"


@dataclass(frozen=True)
class Robustness:
    """Success under one condition, with 95 % intervals: Wilson's, and Tango's of the paired difference."""

    kind: str
    strength: str
    perturbation: Mapping[str, Any]  # arguments of the perturbation that differ from their defaults
    successes: int
    episodes: int
    success_rate: float
    low: float
    high: float
    lost: int  # starts that were solved unperturbed, and not under the condition
    gained: int  # the other way round
    difference: float  # difference of the success rates, perturbed − unperturbed
    difference_low: float
    difference_high: float


ByCondition = Mapping[Condition, Sequence[EpisodeResult]]
"""Perturbed episodes; conditions stand in the order in which they come first."""


def split(results: Sequence[EpisodeResult]) -> tuple[list[EpisodeResult], ByCondition]:
    """Splits results into episodes without and with perturbation, the latter by condition. Starts that could not be run
    both ways have no perturbed episodes."""
    plain = [result for result in results if result.episode.perturbed is None]
    ran = {result.episode.episode_id for result in plain if not result.not_run}
    perturbed: dict[Condition, list[EpisodeResult]] = {}
    for result in results:
        under = result.episode.perturbed
        if under is not None and under.place in ran and not result.not_run:
            perturbed.setdefault(under.condition, []).append(result)
    return plain, perturbed


def compare(plain: Sequence[EpisodeResult], perturbed: ByCondition) -> list[Robustness]:
    """Compares success under each perturbation with that of the same starts without; returns a row for each
    condition."""
    before = {result.episode.episode_id: result.success for result in plain}
    return [_row(condition, list(_pairs(before, results))) for condition, results in perturbed.items()]


def _pairs(before: Mapping[int, bool], results: Sequence[EpisodeResult]) -> Iterator[tuple[bool, bool]]:
    """Yields success unperturbed and perturbed, of each start."""
    for result in results:
        assert result.episode.perturbed is not None
        yield before[result.episode.perturbed.place], result.success


def _row(condition: Condition, pairs: Sequence[tuple[bool, bool]]) -> Robustness:
    lost, gained = pairs.count((True, False)), pairs.count((False, True))
    both = paired([before for before, _ in pairs], [after for _, after in pairs])
    low, high = wilson(both.second, both.starts)
    usual, done = asdict(type(condition.by)()), asdict(condition.by)
    return Robustness(
        condition.kind, condition.strength, {name: value for name, value in done.items() if value != usual[name]},
        both.second, both.starts, both.second / both.starts, low, high, lost, gained,
        both.difference, both.low, both.high,
    )  # fmt: skip


def cells(plain: Sequence[EpisodeResult], rows: Sequence[Robustness]) -> list[list[str]]:
    """Makes a table of success: a head, a row without perturbation, then one for each condition."""
    head = ["perturbation", "strength", "success", "95 % interval", "difference", "95 % interval", "lost, gained"]
    own = sum(result.success for result in plain)
    low, high = wilson(own, len(plain))
    first = ["none", "", _share(own, len(plain)), f"{low:.0%} to {high:.0%}", "", "", ""]
    return [head, first, *(_cells(row) for row in rows)]


def _cells(row: Robustness) -> list[str]:
    return [
        row.kind, row.strength, _share(row.successes, row.episodes), f"{row.low:.0%} to {row.high:.0%}",
        f"{row.difference:+.0%}", f"{row.difference_low:+.0%} to {row.difference_high:+.0%}",
        f"{row.lost}, {row.gained}",
    ]  # fmt: skip


def _share(successes: int, episodes: int) -> str:
    return f"{successes}/{episodes} ({successes / episodes:.0%})"


def metrics(rows: Sequence[Robustness]) -> dict[str, float]:
    """Returns the ``eval/`` metrics of perturbed episodes."""
    rates = [row.success_rate for row in rows]
    return {"eval/perturbed_success_rate": sum(rates) / len(rates), "eval/perturbed_success_lowest": min(rates)}


def write(
    folder: Path, iteration: int, weights: str, protocol: Mapping[str, str | None], plain: Sequence[EpisodeResult],
    perturbed: ByCondition, rows: Sequence[Robustness], name: str,
) -> str | None:  # fmt: skip
    """Writes the table of an evaluation's robustness into ``folder``: JSON, markdown, picture. Returns a line for the
    console if there can be no picture.

    Args:
        weights: whose success it is, in words.
        protocol: name and hash, that of the unperturbed episodes.
        rows: those of :func:`compare`.
        name: of the files, without their endings.
    """
    table = cells(plain, rows)
    facts = {"iteration": iteration, "weights": weights, "protocol": protocol, "unperturbed": _outcomes(plain)}
    conditions = [
        asdict(row) | {"outcomes": _outcomes(results)} for row, results in zip(rows, perturbed.values(), strict=True)
    ]
    (folder / f"{name}.json").write_text(json.dumps(facts | {"conditions": conditions}, indent=1), encoding="utf-8")
    under = f"Protocol {protocol['name'] or 'of no name'} `{protocol['hash']}`, and the perturbations."
    page = [f"# Robustness of {weights}", "", under, "", *_markdown(table), ""]
    if find_spec("matplotlib") is None:
        (folder / f"{name}.md").write_text("\n".join(page), encoding="utf-8")
        return f"no picture of this table: matplotlib is missing (pip install 'embodied-rl[plot]'); see {folder}"
    draw(folder / f"{name}.png", plain, rows)
    (folder / f"{name}.md").write_text(
        "\n".join([*page, f"![success under perturbations]({name}.png)", ""]), encoding="utf-8"
    )
    return None


def _outcomes(results: Sequence[EpisodeResult]) -> list[dict[str, object]]:
    """Each start with its outcome, so that anybody can pair them with others."""
    return [
        {"start": asdict(r.episode.start), "success": r.success, "return": r.episode_return, "steps": r.num_steps}
        for r in results
    ]


def _markdown(table: Sequence[Sequence[str]]) -> list[str]:
    head, *rows = (f"| {' | '.join(row)} |" for row in table)
    return [head, "|---" * len(table[0]) + "|", *rows]


def draw(path: Path, plain: Sequence[EpisodeResult], rows: Sequence[Robustness]) -> None:
    """Draws success with its interval: a line for each perturbation, a colour for each strength."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds, strengths = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("kind", "strength"))
    figure = Figure(figsize=(7.5, 1.6 + 0.42 * len(kinds)))
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    own = sum(result.success for result in plain)
    low, high = wilson(own, len(plain))
    panel.axvspan(low, high, color="0.9", zorder=0)
    panel.axvline(own / len(plain), color="0.45", linewidth=1, label="unperturbed")
    for number, strength in enumerate(strengths):
        chosen = [row for row in rows if row.strength == strength]
        offset = 0.22 * (number - (len(strengths) - 1) / 2)
        places = [kinds.index(row.kind) + offset for row in chosen]
        rates = [row.success_rate for row in chosen]
        ends = [[row.success_rate - row.low for row in chosen], [row.high - row.success_rate for row in chosen]]
        panel.errorbar(
            rates, places, xerr=ends, fmt="o", markersize=4, capsize=2, linewidth=1, color=f"C{number}", label=strength
        )
    panel.set_yticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds])
    panel.set_ylim(len(kinds) - 0.5, -0.5)
    panel.set_xlim(-0.02, 1.02)
    panel.set_xlabel(f"success on {len(plain)} starts, 95 % intervals")
    panel.grid(axis="x", alpha=0.3)
    panel.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(strengths) + 1, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
