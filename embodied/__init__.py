"""Reinforcement-learning post-training of vision-language-action policies, from one command.

Import names are ``embodied.envs``, ``embodied.models`` and ``embodied.config`` although those folders lie at the top of
the repository. A wheel maps them under this package. In a checkout the lines below add the repository's root to this
package's search path, and only there: a ``models/`` or ``envs/`` folder of the user's own project is never looked at.
"""

from pathlib import Path as _Path

__version__ = "0.1.0"

_root = _Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "envs").is_dir() and (_root / "config").is_dir():
    __path__.append(str(_root))
