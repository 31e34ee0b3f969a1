"""Which values of a Gymnasium env are pictures, state, instruction, success and progress; checked against the facts."""

from .choosing import mapping_of, reads
from .mapped import Mapped
from .wanted import Wanted

__all__ = ["Mapped", "Wanted", "mapping_of", "reads"]
