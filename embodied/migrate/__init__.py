"""Configurations of RLinf, verl, SimpleVLA-RL, ROLL, Cosmos-RL and TRL as experiments of this project.

their keys and values ─▶ usual: their defaults ─▶ schema.foreign_rules: what each says ─▶ settings ─▶ trial: the checks
of a run ─▶ report
"""

from embodied.migrate.result import HOWS, Migration, Note
from embodied.migrate.translate import SYSTEMS, migrate

__all__ = ["HOWS", "SYSTEMS", "Migration", "Note", "migrate"]
