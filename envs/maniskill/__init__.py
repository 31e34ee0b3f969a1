"""ManiSkill 3 (arXiv 2410.00425): ``_target_: embodied.envs.maniskill.ManiSkillEnv``. Importing this imports no
simulator."""

from .env import ManiSkillEnv

__all__ = ["ManiSkillEnv"]
