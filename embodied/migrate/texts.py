"""What verl, Cosmos-RL, RLinf and TRL leave to their data: how many iterations a pass over the problems is; of verl
also which column has the answer, which verifier judges, and how many problems an evaluation has.

The files are read where they are there: their number of rows, and the first row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from embodied.errors import EmbodiedError
from embodied.migrate.result import Note
from embodied.rows.hub import is_hub_name, source_of
from embodied.rows.opening import open_source

ITERATIONS, BATCH = "runner.max_epochs", "data.rollout_batch_size"
TRAIN, VALIDATION = "data.train_data_paths", "data.val_data_paths"
PASSES = ("trainer.total_epochs", "train.epoch", "runner.max_epochs", "num_train_epochs")
FUNCTIONS = ("reward.custom_reward_function.path", "reward.reward_type", "reward.remote.enable")
GSM8K, BOXED = {"name": "gsm8k", "strict": True}, {"name": "boxed"}
OF_SOURCES: Mapping[str, Mapping[str, Any]] = {
    "openai/gsm8k": GSM8K, "lighteval/MATH": BOXED, "DigitalLearningGmbH/MATH-lighteval": BOXED,
    "HuggingFaceH4/MATH-500": BOXED,
}  # fmt: skip
"""verl's ``data_source`` → the verifier that judges as its reward function for it."""

SUPERVISED = ("model.partial_pretrain", "model.path")
"""Keys of verl's supervised training, which has no verifier and no answers apart."""


def iterations(passes: Any, settings: Mapping[str, Any]) -> tuple[dict[str, Any], str, str]:
    """Converts passes over the problems into iterations; returns settings, how it was done (``Note.how``), and why.

    Args:
        settings: ours, as far as they are known.
    """
    batch, count = settings.get(BATCH), rows_in(settings.get(TRAIN))
    if not (isinstance(batch, int) and batch > 0 and isinstance(passes, int | float) and abs(passes) < 1e9 and count):
        why = (
            f"passes over the problems, which cannot be counted here: set {ITERATIONS} to {passes} · problems / {BATCH}"
        )
        return {}, "extra", why
    per = max(1, count // batch)
    return {ITERATIONS: int(passes * per)}, "derived", f"{passes} passes · ⌊{count} problems / {batch}⌋ iterations"


def of_data(settings: Mapping[str, Any]) -> list[Note]:
    """Notes what verl's data imply without a key: column of the answer, verifier, size of an evaluation.

    Args:
        settings: ours, as far as they are known.
    """
    found: list[Note] = []
    first = first_row(settings.get(TRAIN))
    if first is None or isinstance(first.get("reward_model"), Mapping):
        columns = {"data.answer_key": "reward_model.ground_truth", "data.data_source_key": "data_source"}
        missing = {key: column for key, column in columns.items() if key not in settings}
        found.append(Note("(columns of verl's data)", "reward_model, data_source", "derived", missing))
    if not any(key in settings for key in FUNCTIONS):
        found += _verifier(settings.get(TRAIN))
    if count := max((rows_in([path]) or 0 for path in settings.get(VALIDATION) or ()), default=0):
        said = {"env.eval.episodes_per_task": count, "env.eval.video_cfg.save_video": False}
        found.append(Note("(size of a validation)", "all problems", "derived", said))
    return found


def _verifier(paths: Any) -> list[Note]:
    what = "(verl's reward function)"
    rows = [first_row([path]) for path in paths or ()]
    sources = {str(row["data_source"]) for row in rows if row is not None and "data_source" in row}
    if not sources and None not in rows:
        return []  # these are no data of verl
    judge = OF_SOURCES.get(next(iter(sources))) if len(sources) == 1 and None not in rows else None
    if judge is not None:
        said = {f"env.{side}.verifier": [dict(judge)] for side in ("train", "eval")}
        return [Note(what, next(iter(sources)), "derived", said, "the one of this data_source")]
    why = (
        "verl has one for each data_source, and here one verifier judges all problems, by default boxed: set "
        "reward.reward_type or reward.custom_reward_function"
    )
    return [Note(what, ", ".join(sorted(sources)) or "by data_source", "extra", {}, why)]


def rows_in(paths: Any) -> int | None:
    """Counts the rows of data files; None if one cannot be read."""
    if not isinstance(paths, Sequence) or isinstance(paths, str) or not paths:
        return None
    if any(is_hub_name(str(path)) for path in paths):
        return None  # nothing is downloaded to translate a file
    try:
        return sum(len(open_source(source_of(str(path), keep=False))) for path in paths)
    except (EmbodiedError, OSError):
        return None


def first_row(paths: Any) -> Mapping[str, Any] | None:
    """Reads the first row of the first data file; None if it cannot be read."""
    if not rows_in(paths):
        return None
    row: Mapping[str, Any] = open_source(source_of(str(paths[0]), keep=False))[0]
    return row
