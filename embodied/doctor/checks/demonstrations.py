"""A data set of demonstrations, looked at whole: every episode is read and every picture decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied.data.checking import stored, survey
from embodied.data.demonstrations import Demonstration, Demonstrations, FieldSelection, check_fit
from embodied.data.lerobot.meta import read_json
from embodied.data.reading import open_set, read
from embodied.doctor.findings import Finding, of_error
from embodied.errors import EmbodiedError
from embodied.types import ContinuousAction, EnvSpec

SHOWN = 5  # errors of one kind that are shown; the others are counted
NO_INSTRUCTION = "(none)"
RESTORE = "restore the files from where they came from, or remove these episodes"


@dataclass(frozen=True)
class Fit:
    """The env that demonstrations are checked against, with its keyword arguments."""

    spec: EnvSpec
    kwargs: Mapping[str, Any]  # keyword arguments of the env


def look(
    path: Path, wanted: FieldSelection, fit: Fit | None, every: int, progress: Callable[[str, int], Any]
) -> Iterator[Finding]:
    """Checks a data set of demonstrations, every ``every``-th episode; yields findings.

    Args:
        fit: None = it is held against no env.
        every: of so many steps of an episode the pictures of one are decoded; 1 = all.
        progress: opens a phase of so many parts: ``with progress("…", 9) as bar: bar.advance(1)``.
    """
    name = f"demonstrations {path}"
    errors: list[EmbodiedError] = []
    try:
        count = open_set(path, wanted).count
        with progress(f"reading {path}", count) as bar:
            found = read(path, wanted, errors.append, lambda: bar.advance(1))
    except EmbodiedError as error:
        yield of_error(name, error)
        return
    yield from _episodes(name, found, errors)
    if not found.episodes:
        return
    if fit is not None:
        yield from _fits(name, found, fit)
    yield from _pictures(name, found.episodes, every, progress)
    yield from _statistics(name, found, wanted, complete=not errors)
    yield from _actions(name, survey.actions_of(found.episodes), fit)
    yield _duplicates(name, found.episodes)


def _episodes(name: str, found: Demonstrations, errors: Sequence[EmbodiedError]) -> Iterator[Finding]:
    yield from _some(f"{name}: episodes", [(error.message, error.remedy) for error in errors], "episodes")
    if not found.episodes:
        if not errors:
            fix = "make or download demonstrations; it may have been interrupted"
            yield Finding(f"{name}: episodes", "fail", "there is none", fix)
        return
    lengths = np.array([len(episode) for episode in found.episodes])
    told = {said for episode in found.episodes for said in episode.instructions}
    said = f"{len(lengths)} of {len(lengths) + len(errors)} are whole: {lengths.sum():,} steps, "
    said += f"{lengths.min()} to {lengths.max()} an episode (median {np.median(lengths):g}), all numbers finite"
    if not errors:
        yield Finding(f"{name}: episodes", "ok", said)
    if NO_INSTRUCTION in told:
        fix = "set data.instruction to the instruction of the task that they show, unless the env has one task alone"
        yield Finding(f"{name}: instructions", "warn", "some episodes have none", fix)
    else:
        yield Finding(f"{name}: instructions", "ok", f"{len(told)} different ones, e.g. {min(told)!r}")


def _fits(name: str, found: Demonstrations, fit: Fit) -> Iterator[Finding]:
    try:
        check_fit(found, fit.spec, fit.kwargs)
        yield Finding(f"{name}: env", "ok", "cameras, sizes, state and actions are the env's, and actions in its range")
    except EmbodiedError as error:
        yield of_error(f"{name}: env", error)
    if found.fps is None:
        yield Finding(f"{name}: fps", "skipped", "the file does not say it")
    elif abs(found.fps - fit.spec.control_hz) > 0.01 * fit.spec.control_hz:
        said = f"{found.fps:g} control steps a second, and the env has {fit.spec.control_hz:g}"
        fix = "a cloned policy moves at another speed: choose the env's control_hz, or check that it is meant so"
        yield Finding(f"{name}: fps", "warn", said, fix)
    else:
        yield Finding(f"{name}: fps", "ok", f"{found.fps:g} control steps a second, as the env")


def _pictures(
    name: str, episodes: Sequence[Demonstration], every: int, progress: Callable[[str, int], Any]
) -> Iterator[Finding]:
    seen = [episode for episode in episodes if episode.pictures is not None]
    if not seen:
        yield Finding(f"{name}: pictures", "skipped", "none is read")
        return
    errors, shapes, blank, count = list[EmbodiedError](), dict[tuple[int, ...], str](), list[str](), 0
    with progress("decoding pictures", len(seen)) as bar:
        for episode in seen:
            for t in range(0, len(episode), every):
                count += 1
                try:
                    picture = episode.pictures(t) if episode.pictures is not None else np.zeros(0)
                except EmbodiedError as error:
                    errors.append(error)
                    continue
                shapes.setdefault(picture.shape, f"{episode.where}, step {t}")
                if any(one.min() == one.max() for one in picture):
                    blank.append(f"{episode.where}, step {t}")
            bar.advance(1)
    yield from _some(f"{name}: pictures", [(error.message, error.remedy) for error in errors], "steps")
    if len(shapes) > 1:
        said = "; ".join(f"{list(shape)} first in {where}" for shape, where in shapes.items())
        yield Finding(f"{name}: sizes of pictures", "fail", f"they differ: {said}", "write them anew in one size")
    if blank:
        said = f"in {len(blank)} of {count} steps one is of a single colour, first in {blank[0]}"
        yield Finding(f"{name}: blank pictures", "warn", said, "look at them: a camera may have failed")
    if not errors and len(shapes) == 1:
        part = "" if every == 1 else f", of one in {every} steps"
        yield Finding(
            f"{name}: pictures", "ok", f"those of {count:,} steps{part} were decoded: {list(next(iter(shapes)))}"
        )


def _statistics(name: str, found: Demonstrations, wanted: FieldSelection, complete: bool) -> Iterator[Finding]:
    file, name = found.path / "meta" / "stats.json", f"{name}: statistics"
    if not file.is_file():
        yield Finding(name, "skipped", "the data set keeps none for the whole (meta/stats.json); sft computes its own")
        return
    if not complete:
        yield Finding(name, "skipped", "some episodes cannot be read, so they cannot be compared")
        return
    try:
        said = read_json(file)
    except EmbodiedError as error:
        yield of_error(name, error)
        return
    columns = {wanted.action_key or "action": survey.actions_of(found.episodes)}
    if wanted.state_keys is None:
        names = dict.fromkeys(key for episode in found.episodes for key in episode.fields if key != "instruction")
        columns |= {f"observation.{key}": np.concatenate([e.fields[key] for e in found.episodes]) for key in names}
    wrong = [
        text for column, values in columns.items() for text in stored.differences(column, said.get(column), values)
    ]
    fix = f"compute {file} anew; sft of embodied computes its own ranges, other programs read this file"
    yield from _some(name, [(text, fix) for text in wrong], "numbers")
    if not wrong:
        yield Finding(name, "ok", f"those of {', '.join(columns)} are those of the data")


def _actions(name: str, actions: np.ndarray, fit: Fit | None) -> Iterator[Finding]:
    if constant := survey.constant_dimensions(actions):
        shown = ", ".join(f"{place} (always {value:g})" for place, value in constant.items())
        fix = "a policy cannot learn what they are for; check that the task needs no more"
        yield Finding(f"{name}: constant actions", "warn", f"these dimensions never change: {shown}", fix)
    else:
        yield Finding(f"{name}: constant actions", "ok", f"each of {actions.shape[1]} dimensions changes")
    wanted = fit.spec.action if fit is not None else None
    for place, values in survey.switches(actions).items():
        shown = ", ".join(f"{value:g}" for value in values)
        said = f"dimension {place} takes the values {shown} alone, as a gripper does"
        if isinstance(wanted, ContinuousAction) and place < wanted.dim:
            low, high = wanted.low[place], wanted.high[place]
            said += f"; the env's range is [{low:g}, {high:g}]"
            if min(values) > low + (high - low) / 4 or max(values) < high - (high - low) / 4:
                fix = "it seems to have another convention (0 and 1 for −1 and 1, or opposite): convert that dimension"
                yield Finding(f"{name}: gripper", "warn", said, fix)
                continue
        yield Finding(f"{name}: gripper", "ok", said)


def _duplicates(name: str, episodes: Sequence[Demonstration]) -> Finding:
    pairs = survey.equal_episodes(episodes)
    if not pairs:
        return Finding(f"{name}: duplicates", "ok", "no two episodes are equal")
    said = f"{len(pairs)} episodes are copies of others: {pairs[0][1]} of {pairs[0][0]}"
    fix = "remove the copies: one may be learned from while the other is held out for validation"
    return Finding(f"{name}: duplicates", "warn", said, fix)


def _some(name: str, wrong: Sequence[tuple[str, str]], what: str) -> Iterator[Finding]:
    """The first of what is wrong, and how much more there is."""
    different = dict.fromkeys(wrong)
    for said, fix in list(different)[:SHOWN]:
        yield Finding(name, "fail", said, fix)
    if len(different) > SHOWN:
        yield Finding(name, "fail", f"and {len(different) - SHOWN} more {what} with an error", RESTORE)
