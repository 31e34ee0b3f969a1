"""The protocols that clients speak, one file each, with its ``ROUTE``. ``embodied.serving.build`` lists the routes."""

from __future__ import annotations

from embodied.errors import ConfigError

try:
    import aiohttp as aiohttp
except ImportError as error:
    raise ConfigError("the Python package 'aiohttp' is not installed", "pip install 'embodied-rl[serve]'") from error
