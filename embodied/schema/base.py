"""What every section of the configuration is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of the configuration; unknown keys are errors, values cannot change after composition."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OpenSection(Section):
    """A section that also carries the keyword arguments of its ``_target_``."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    target: str = Field(alias="_target_", description="Class or function to build, as a dotted import path.")
