"""The demonstrations of a run: read, held against its env, divided. Needs no torch and no simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embodied import instructions, schema
from embodied.data.demonstrations import Demonstration, FieldSelection, check_fit
from embodied.data.reading import read
from embodied.data.samples import hold_out
from embodied.data.texts.reading import Reader
from embodied.data.texts.text import Columns, DemonstratedAnswer
from embodied.errors import ConfigError, DatasetError
from embodied.rows.hub import WHOLE, Part
from embodied.schema.rules.derived_keys import custom_name
from embodied.types import EnvSpec

BESIDE = "algorithm.replay.demonstrations"


@dataclass(frozen=True)
class Demonstrated:
    """The demonstrations of a run, which fit its env: episodes, or answers to an env of texts. Those that are learnt
    from beside the run's own records are all in ``train``."""

    train: Sequence[Demonstration] | Sequence[DemonstratedAnswer]
    held_out: Sequence[Demonstration] | Sequence[DemonstratedAnswer]


def read_episodes(config: schema.Config, spec: EnvSpec, kwargs: Mapping[str, Any]) -> Demonstrated:
    """Reads the demonstrated episodes of robots that a supervised run learns from.

    Args:
        kwargs: keyword arguments of the env.

    Raises:
        DatasetError: they cannot be read.
        SpecMismatchError: they do not fit the env.
    """
    data, wanted = config.data, wanted_of(config.data, spec)

    def episodes(paths: Sequence[str]) -> list[Demonstration]:
        return _fitting(paths, wanted, "data.train_data_paths or data.val_data_paths", spec, kwargs)

    given = episodes(data.train_data_paths)
    if data.val_data_paths:
        return Demonstrated(given, episodes(data.val_data_paths))
    return Demonstrated(*hold_out(given, data.test_size, config.data_seed))


def read_beside(config: schema.Config, spec: EnvSpec, kwargs: Mapping[str, Any]) -> Demonstrated:
    """Reads the demonstrated episodes that a run of reinforcement learning learns from beside its own records
    (``algorithm.replay.demonstrations``). Arguments and errors as of :func:`read_episodes`."""
    wanted = replace(wanted_of(config.data, spec), key=BESIDE)
    return Demonstrated(_fitting(config.algorithm.replay.demonstrations, wanted, BESIDE, spec, kwargs), ())


def _fitting(
    paths: Sequence[str], wanted: FieldSelection, keys: str, spec: EnvSpec, kwargs: Mapping[str, Any]
) -> list[Demonstration]:  # fmt: skip
    """Reads the episodes of paths, and holds them against the env."""
    _check_once(paths, keys)
    found = [read(Path(path), wanted) for path in paths]
    for one in found:
        check_fit(one, spec, kwargs)
    return [_asked_of(episode, spec) for one in found for episode in one.episodes]


def _asked_of(episode: Demonstration, env: EnvSpec) -> Demonstration:
    """An episode with the fields of the env alone: those of several data sets are stacked, and each may have more."""
    kept = {name: values for name, values in episode.fields.items() if name in env.obs or name == instructions.FIELD}
    return replace(episode, fields=kept)


def wanted_of(data: schema.DataConfig, spec: EnvSpec) -> FieldSelection:
    """Returns which fields of demonstrations are read for an env."""
    told = data.instruction or (spec.tasks[0] if len(spec.tasks) == 1 else None)
    return FieldSelection(spec.cameras, data.camera_keys, data.state_keys, told, data.action_key, data.rotate_images)


def _check_once(paths: Sequence[str], keys: str) -> None:
    """Raises :class:`ConfigError` for demonstrations that would be read twice, and so be held out and learned from."""
    for number, path in enumerate(map(Path, paths)):
        for other in map(Path, paths[:number]):
            one, two = path.resolve(), other.resolve()
            if one == two or one in two.parents or two in one.parents:
                raise ConfigError(
                    f"{keys} has demonstrations twice: {other} and {path}",
                    f"leave one of them out: {path}",
                )


def reader_of(data: schema.DataConfig) -> Reader:
    """Makes the reader of demonstrated prompt-answer pairs that the configuration describes."""
    columns = Columns(
        data.prompt_key, data.response_key, data.messages_key or "messages", data.system_prompt, data.image_key
    )
    return Reader(columns, data.options, custom_name(data) if data.custom_cls.path is not None else None,
                    data.enable_dataset_cache)  # fmt: skip


def read_texts(config: schema.Config) -> Demonstrated:
    """Reads the demonstrated prompt-answer pairs that a supervised run learns from. Raises :class:`DatasetError`."""
    data, reader = config.data, reader_of(config.data)
    paths, part = data.train_data_paths, Part.of(data.train_subset, data.train_split, data.train_revision)
    validation = Part.of(data.val_subset, data.val_split, data.val_revision)
    if data.val_data_paths or validation != WHOLE:
        return Demonstrated(reader.read(paths, part), reader.read(data.val_data_paths or paths, validation))
    train, out = reader.read_divided(paths, part, data.test_size, config.data_seed)
    if not train:
        raise DatasetError(
            f"data.test_size {data.test_size:g} holds all {len(out)} demonstrated answers out",
            "lower data.test_size, or give files for validation: data.val_data_paths",
        )
    return Demonstrated(train, out)
