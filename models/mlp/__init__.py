"""A small network of numbers, without pictures: ``_target_: embodied.models.mlp.MLPPolicy``."""

from .policy import MLPPolicy

__all__ = ["MLPPolicy"]
