"""Which values of a Gymnasium env are pictures, state, instruction, success and progress; checked against the facts."""

from .choosing import mapping_of, reads
from .mapped import ResolvedMapping
from .wanted import MappingSettings

__all__ = ["MappingSettings", "ResolvedMapping", "mapping_of", "reads"]
