"""A row of the table of times to success, as JSON; and the check of rows that others send."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from embodied.errors import ConfigError
from embodied.observe.statistics import wilson

LEVELS = (50, 70, 85)
"""Per cent that the lower end of an evaluation's 95 % interval must pass."""

COSTS = ("wall_s", "cpu_s", "env_steps", "training_episodes")
CLOSE = 1e-3  # differences of rates that rounding explains
SCHEMA = Path(__file__).with_name("schema.json")
MENDED = (
    "mend the file; embodied report --time-to-success RUN --json writes one of a run's folder, and "
    "embodied/report/time_to_success/schema.json says what each field is"
)

HIDDEN = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069"
"""Characters that end a line, move a terminal's cursor, or turn the direction of what follows."""

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**15)]
Positive = Annotated[int, Field(ge=1, le=10**15)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Text = Annotated[str, Field(min_length=1, pattern=f"^[^{HIDDEN}]*$")]


class Part(BaseModel):
    """A part of a row. It has no other fields, and no numbers in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Evaluation(Part):
    """An evaluation of a training, and what the training had taken by then; null = not known."""

    iteration: Count = Field(description="Iterations of the training before it.")
    successes: Count
    episodes: Positive = Field(description="Episodes of the evaluation.")
    starts: Positive = Field(description="Different starts among them; episodes of one start count as one.")
    rate: Share = Field(description="Mean success over starts.")
    low: Share = Field(description="Lower end of Wilson's 95 % interval of rate on starts.")
    high: Share
    wall_s: Seconds | None = Field(description="Wall clock of all launches, evaluations included.")
    cpu_s: Seconds | None = Field(description="CPU seconds of all processes, simulators included.")
    env_steps: Count | None = Field(description="Control steps of the training's episodes.")
    training_episodes: Count | None


class Training(Part):
    """A training with one seed."""

    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    launches: Positive | None = Field(description="How often it was started, resumed runs included.")
    wall_is_least: bool = Field(
        description="Wall clock and CPU seconds lack a part, e.g. of a launch that was killed, or start-up."
    )
    seen: Count | None = Field(
        default=None,
        description="Iterations that were seen of a training that still runs, or stopped early; null = it ended.",
    )
    evaluations: list[Evaluation] = Field(min_length=1, description="In the order of their iterations.")


class Task(Part):
    """What is to be done, and in which simulator."""

    env: Text
    instructions: list[Text] = Field(min_length=1)


class Protocol(Part):
    """The conditions of the evaluations."""

    name: Text | None
    hashes: list[Text] = Field(description="Of each training; they differ by the seed. Empty = not recorded.")


class PolicyRow(Part):
    """The policy and its numbers of parameters; null = not known."""

    name: Text
    parameters: Positive | None
    trained: Count | None
    begins_from: Text = Field(description="The weights that the training began with.")


class Spread(Part):
    """Median and range over trainings; null where that training has not reached the level."""

    median: float | None
    low: float | None
    high: float | None


class Until(Part):
    """What trainings took until an evaluation passed a level; null = not known of one of them."""

    reached: Count = Field(description="Trainings that reached it.")
    wall_s: Spread | None
    cpu_s: Spread | None
    env_steps: Spread | None
    training_episodes: Spread | None


class Row(Part):
    """Trainings of one configuration, with several seeds."""

    name: Text
    task: Task
    protocol: Protocol
    policy: PolicyRow
    algorithm: Text
    hardware: Text | None = Field(description="null = not known.")
    software: Text
    date: str = Field(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$")
    trainings: list[Training] = Field(min_length=1)
    until: dict[Literal["50", "70", "85"], Until] = Field(description="By level in per cent; follows from trainings.")


class Rows(Part):
    """A file of rows."""

    format: Literal[1]
    rows: list[Row] = Field(min_length=1)


# -- what follows from trainings -------------------------------------------------------------------------------------


def until(trainings: Sequence[Training]) -> dict[Literal["50", "70", "85"], Until]:
    """Computes what trainings took until the first evaluation whose lower end passes each level."""
    return {"50": _until(trainings, 50), "70": _until(trainings, 70), "85": _until(trainings, 85)}


def first_passing(training: Training, level: int) -> Evaluation | None:
    """Returns a training's first evaluation whose lower end is above ``level`` per cent; None if there is none."""
    return next((one for one in training.evaluations if one.low > level / 100), None)


def _until(trainings: Sequence[Training], level: int) -> Until:
    passing = [first_passing(training, level) for training in trainings]
    found = {name: _spread([None if one is None else getattr(one, name) for one in passing], passing) for name in COSTS}
    return Until(reached=sum(one is not None for one in passing), **found)


def _spread(values: Sequence[float | None], passing: Sequence[Evaluation | None]) -> Spread | None:
    if any(one is not None and value is None for one, value in zip(passing, values, strict=True)):
        return None
    reached = [float(value) for value in values if value is not None]
    late = [*reached, *[float("inf")] * (len(values) - len(reached))]
    ends = median(late), min(late), max(late)
    middle, low, high = (None if end == float("inf") else end for end in ends)
    return Spread(median=middle, low=low, high=high)


# -- the check -------------------------------------------------------------------------------------------------------


def schema() -> str:
    """Returns the JSON schema of a file of rows, as ``schema.json`` has it."""
    return json.dumps(Rows.model_json_schema(), indent=1) + "\n"


def check(file: Path) -> list[Row]:
    """Reads the rows in a file.

    Raises:
        ConfigError: it cannot be read, or a row is not as it must be; each fault is named with its place.
    """
    try:
        text = file.read_text(encoding="utf-8")
        found = json.loads(text, parse_constant=_no_number)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", "name a file of rows") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is no JSON: {error}", MENDED) from error
    try:
        rows = Rows.model_validate_json(json.dumps(found)).rows
    except ValidationError as error:
        faults = [f"{_place(one['loc'])}: {one['msg']}" for one in error.errors()]
        raise _refused(file, faults) from error
    if faults := [f"rows[{number}]{fault}" for number, row in enumerate(rows) for fault in _faults(row)]:
        raise _refused(file, faults)
    return rows


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON; write null where a number is not known")


def _refused(file: Path, faults: Sequence[str]) -> ConfigError:
    more = [f"  and {len(faults) - 10} more"] if len(faults) > 10 else []
    lines = [f"  {fault}" for fault in faults[:10]]
    return ConfigError("\n".join([f"{file} holds rows that are not as they must be:", *lines, *more]), MENDED)


def _place(parts: Sequence[int | str]) -> str:
    return "".join(_shown(part) for part in parts).lstrip(".") or "the file"


def _shown(part: int | str) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part if part.isprintable() else ascii(part)}"


def _faults(row: Row) -> Iterator[str]:
    seeds = [training.seed for training in row.trainings]
    if len(set(seeds)) < len(seeds):
        yield f".trainings: seeds are {seeds}, and each may be there once"
    for number, training in enumerate(row.trainings):
        if training.seen is not None and training.seen < training.evaluations[-1].iteration:
            yield f".trainings[{number}].seen is {training.seen}, and an evaluation came later"
        for place, one in enumerate(training.evaluations):
            before = training.evaluations[place - 1] if place else None
            yield from (f".trainings[{number}].evaluations[{place}]{fault}" for fault in _of_evaluation(one, before))
    if row.policy.parameters is not None and (row.policy.trained or 0) > row.policy.parameters:
        yield f".policy: {row.policy.trained} parameters are trained of {row.policy.parameters}"
    right = until(row.trainings)
    for level, of_level in row.until.items():
        if not _equal(of_level.model_dump(), right[level].model_dump()):
            yield f".until.{level} does not follow from the trainings, of which it would be {right[level].model_dump()}"
    if missing := sorted(set(right) - set(row.until)):
        yield f".until: {', '.join(missing)} is missing"


def _of_evaluation(one: Evaluation, before: Evaluation | None) -> Iterator[str]:
    if one.successes > one.episodes or one.starts > one.episodes:
        yield f": {one.successes} successes on {one.starts} starts in {one.episodes} episodes"
        return
    most = _most(one.successes, one.episodes, one.starts)
    least = 1 - _most(one.episodes - one.successes, one.episodes, one.starts)
    if one.starts == one.episodes and abs(one.rate - most) > CLOSE:
        yield f".rate is {one.rate}, and {one.successes}/{one.episodes} is {most:.4f}"
    elif not least - CLOSE <= one.rate <= most + CLOSE:
        yield (
            f".rate is {one.rate}, and {one.successes} successes in {one.episodes} episodes of {one.starts} starts "
            f"make {least:.4f} to {most:.4f}"
        )
    low, high = wilson(min(one.rate * one.starts, one.starts), one.starts)
    if abs(low - one.low) > CLOSE or abs(high - one.high) > CLOSE:
        yield (
            f": the interval is {one.low} to {one.high}, and Wilson's of {one.rate} on {one.starts} starts is "
            f"{low:.4f} to {high:.4f}"
        )
    if before is None:
        return
    if one.iteration <= before.iteration:
        yield f".iteration is {one.iteration}, and that of the one before is {before.iteration}"
    for name in COSTS:
        earlier, later = getattr(before, name), getattr(one, name)
        if earlier is not None and later is not None and later < earlier:
            yield f".{name} is {later}, and that of the evaluation before is {earlier}"


def _most(successes: int, episodes: int, starts: int) -> float:
    """Returns the largest mean over starts: all starts but one have one episode, and successes are on these first."""
    alone = min(successes, starts - 1)
    return (alone + (successes - alone) / (episodes - starts + 1)) / starts


def _equal(one: Any, other: Any) -> bool:
    """Returns whether two JSON values are equal but for rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if one is None or other is None:
        return one is other
    return abs(one - other) <= 1e-6 * max(1.0, abs(other))
