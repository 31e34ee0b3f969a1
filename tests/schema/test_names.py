"""Names of choices are taken in any case."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from embodied import schema
from embodied.errors import ConfigError
from embodied.schema.compose.binding import _of_type
from embodied.schema.compose.compose import compose
from embodied.schema.keys.config import Config
from embodied.schema.keys.names import choices
from embodied.schema.keys.paths import with_changes
from embodied.schema.others import key_table

CONFIG = str(Path(__file__).parents[1] / "config")


@functools.cache
def mapping() -> dict[str, Any]:
    return compose(["env=fake", "model=fake"], "train", [CONFIG]).resolved


def every_choice() -> Iterator[tuple[str, str, bool]]:
    """Each key of the schema that has names, each of its names, and whether the key holds a list."""
    for section, model in key_table._sections("", Config):
        for name, field in model.model_fields.items():
            for choice in choices(field.annotation, field.metadata):
                yield f"{section}.{field.alias or name}", choice, "list" in str(field.annotation)


def value_of(config: Config, key: str) -> Any:
    return functools.reduce(lambda part, name: part[name], key.split("."), config.model_dump(by_alias=True))


def test_every_choice_of_the_schema_is_taken_in_any_case():
    found = [*every_choice()]
    keys = {key for key, _, _ in found}
    assert {"algorithm.loss_type", "actor.fsdp_config.strategy", "runner.logger.logger_backends"} <= keys
    documented = [*key_table.keys()]
    in_docs = {one.name for one in documented if re.search(r" \| `\D", one.type)}
    assert in_docs <= keys, "what the page of keys shows as choices is looked at here"
    for key, choice, is_list in found:
        for spelled in (choice.upper(), choice.capitalize(), choice):
            given = [spelled] if is_list else spelled
            bound = schema.bind(with_changes(mapping(), {key: given}))
            assert value_of(bound, key) == ([choice] if is_list else choice), (key, spelled)


def test_on_the_command_line_and_for_groups():
    words = ["env=FAKE", "model=Fake", "algorithm=GRPO", "algorithm.loss_type=Gspo", "actor.fsdp_config.strategy=FSDP"]
    composed = compose(words, "train", [CONFIG])
    assert composed.config.algorithm.loss_type == "gspo"
    assert composed.resolved["actor"]["fsdp_config"]["strategy"] == "fsdp"
    assert composed.config.runner.experiment_name == "fake-fake-grpo", "one run, however it is written"


def test_what_is_no_name_stays_as_it_is():
    composed = compose(["env=fake", "model=fake", "algorithm.loss_type=my.Loss"], "train", [CONFIG])
    assert composed.config.algorithm.loss_type == "my.Loss"
    with pytest.raises(ConfigError, match="Did you mean 'grpo'"):
        compose(["env=fake", "model=fake", "algorithm.adv_type=grpoo"], "train", [CONFIG])


def test_the_arguments_of_a_target():
    assert _of_type(Literal["left", "Right"], {}, {}, "RIGHT", "key") == "Right"
    assert _of_type(Literal["left"] | None, {}, {}, "LEFT", "key") == "left"
    assert _of_type(Literal["left"] | str, {}, {}, "LEFT", "key") == "LEFT", "any text will do"
