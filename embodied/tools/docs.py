"""``python -m embodied.tools.docs``: writes the pages that are generated from code (``make docs``)."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from embodied import schema
from embodied.observe import metrics

DOCS = Path(__file__).resolve().parents[2] / "docs"


def configuration() -> str:
    """Makes ``docs/configuration.md``: every key of the schema."""
    parts = [
        "# Configuration keys",
        "",
        "Generated from `embodied/schema/` by `make docs`. Set a key on the command line (`runner.max_epochs=20`) or "
        "in a YAML file of a group (`config/`, or a folder of yours with `--config-dir`). `python -m embodied.train … "
        "--cfg` prints all values of a run. A key that is not listed is refused.",
        "",
        "Under `env.train`, `env.eval` and `actor.model` there are also the keyword arguments of the class that "
        "`_target_` names; its docstring says what they mean (`embodied.envs.libero.LiberoEnv`, "
        "`embodied.models.openvla_oft.build_policy`).",
        "",
    ]
    for section, model in _sections("", schema.Config):
        rows = [_row(section, name, field) for name, field in model.model_fields.items() if not _model_of(field)]
        if rows:
            parts += [f"## {section}", "", "| key | type | default | meaning |", "|---|---|---|---|", *rows, ""]
    return "\n".join(parts)


def metrics_page() -> str:
    """Makes ``docs/metrics.md``: every metric that can be logged."""
    head = "# Metrics\n\nGenerated from `embodied/observe/metrics.py` by `make docs`. Nothing else is ever logged.\n\n"
    return head + metrics.markdown()


PAGES = {"configuration.md": configuration, "metrics.md": metrics_page}


def _sections(path: str, model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, model
    for name, field in model.model_fields.items():
        if inner := _model_of(field):
            yield from _sections(f"{path}.{name}".lstrip("."), inner)


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _row(section: str, name: str, field: FieldInfo) -> str:
    key = f"{section}.{field.alias or name}"
    return f"| `{key}` | {_type(field.annotation)} | {_default(field.default)} | {field.description} |"


def _type(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Annotated:
        return _type(typing.get_args(kind)[0])
    if typing.get_origin(kind) is typing.Literal:
        return " \\| ".join(f"`{value}`" for value in typing.get_args(kind))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " \\| ".join(_type(part) for part in typing.get_args(kind))
    if typing.get_origin(kind) is list:
        return f"list of {_type(typing.get_args(kind)[0])}"
    return "null" if kind is type(None) else kind.__name__


def _default(value: Any) -> str:
    if value is PydanticUndefined:
        return "set by the YAML files"
    if value is None:
        return "null"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main() -> None:
    DOCS.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())
        print(f"wrote {DOCS / name}")


if __name__ == "__main__":
    main()
