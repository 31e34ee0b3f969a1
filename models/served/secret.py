"""The token that a policy server is shown."""

from __future__ import annotations

import os
from pathlib import Path

from embodied.errors import ConfigError

TOKEN_VARIABLE = "EMBODIED_SERVE_TOKEN"


def read_token(file: str | None) -> str | None:
    """Reads a server's token: that of a file, else the variable's; None if there is neither.

    Raises:
        ConfigError: the file cannot be read.
    """
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"actor.model.token_file {file} cannot be read: {error}", "give the file that the server was started with"
        ) from error
