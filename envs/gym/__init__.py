"""Any Gymnasium env: ``_target_: embodied.envs.gym.GymEnv``. Importing this imports neither gymnasium nor an env."""

from .env import GymEnv

__all__ = ["GymEnv"]
