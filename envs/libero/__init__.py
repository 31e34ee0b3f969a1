"""LIBERO (arXiv 2306.03310): ``_target_: embodied.envs.libero.LiberoEnv``. Importing this imports no simulator."""

from .env import LiberoEnv

__all__ = ["LiberoEnv"]
