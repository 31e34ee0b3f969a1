"""Base classes of the configuration's sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from embodied.schema.keys.names import choices, in_known_case, numbers_only

Precision = Literal["fp32", "bf16", "fp16"]
GROUP_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"
"""Pattern of the name of some processes, which is a part of the names of files."""


class Section(BaseModel):
    """A section of the configuration. Unknown keys are errors, and values cannot change after composition. Names of
    choices are taken in any case. true and false are no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _as_meant(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        changed = dict(given)
        for name, field in cls.model_fields.items():
            key = field.alias or name
            if key in changed and (known := choices(field.annotation, field.metadata)):
                changed[key] = in_known_case(changed[key], known)
            if isinstance(changed.get(key), bool) and numbers_only(field.annotation):
                changed[key] = str(changed[key]).lower()  # pydantic takes true for 1, and refuses this text
        return changed


class OpenSection(Section):
    """A section with a ``_target_`` that also carries its keyword arguments."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    target: str = Field(alias="_target_", description="Class or function to build, as a dotted import path.")
