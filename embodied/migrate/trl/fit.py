"""What TRL leaves to its trainer, to its data and to accelerate, once each key is translated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.migrate import texts
from embodied.migrate.result import Migration, Note

BATCH, VERIFIER, MODEL = "data.rollout_batch_size", "env.train.verifier", "reward.model.model_path"
NO_REWARD = "their file names no reward function that is here"


def fit_trl(migration: Migration, flat: Mapping[str, Any]) -> None:
    """Adds what follows from several keys of TRL, and opens what has to be decided."""
    for note in migration.notes:
        if note.key.partition(" ")[0] == "num_generations" and BATCH not in migration.settings:
            migration.open.setdefault(BATCH, note.why)
    if not {VERIFIER, MODEL} & set(migration.settings) and not {VERIFIER, "env"} & set(migration.open):
        migration.open[VERIFIER] = NO_REWARD
    if "num_processes" not in flat:
        why = "one is taken; if accelerate starts N of them, say so: --processes N"
        migration.notes.append(Note("num_processes (their default)", 1, "extra", why=why))
    _validate(migration)


def _validate(migration: Migration) -> None:
    """Evaluations take all of their problems; without problems of their own those of the training, of which none is
    held out then."""
    said = migration.settings
    if texts.TRAIN in said and texts.VALIDATION not in said and texts.VALIDATION not in migration.withheld():
        parts = {
            f"data.val_{part}": said[f"data.train_{part}"]
            for part in ("split", "subset")
            if f"data.train_{part}" in said
        }
        settings = {texts.VALIDATION: [*said[texts.TRAIN]], **parts}
        why = "they have none, and all problems are trained on; name others in data.val_data_paths"
        migration.notes.append(Note("(problems of evaluations)", "those of the training", "derived", settings, why))
        migration.settings |= settings
    settings = {"env.eval.video_cfg.save_video": False}
    if count := texts.rows_in(said.get(texts.VALIDATION)):
        settings["env.eval.episodes_per_task"] = count
    migration.notes.append(Note("(size of an evaluation)", "all problems", "derived", settings))
    migration.settings |= settings
