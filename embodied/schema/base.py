"""Base classes of the configuration's sections."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the configuration. Unknown keys are errors, and values cannot change after composition."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OpenSection(Section):
    """A section that also carries the keyword arguments of its ``_target_``."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    target: str = Field(alias="_target_", description="Class or function to build, as a dotted import path.")
