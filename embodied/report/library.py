"""The charting library of the page: Vega, Vega-Lite and Vega-Embed, which the package vl-convert-python brings along.

Its bundle takes seconds to make, so it is kept in the cache folder. Making it needs no network.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from embodied.errors import AssetsMissingError, ConfigError
from embodied.lib.cache import cache_folder
from embodied.lib.whole import write_whole
from embodied.run.folder.beside.reports import NEEDED

NOTICE = (
    "Vega, Vega-Lite, Vega-Embed and Vega-Tooltip: Copyright (c) University of Washington Interactive Data Lab and "
    "contributors, BSD-3-Clause licence, https://github.com/vega"
)
_MAKE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"
_LEAST = 100_000  # bytes; a shorter one is none
_TIMEOUT_S = 300


def check_installed() -> None:
    """Raises ConfigError if a package that the report needs is missing."""
    for distribution in NEEDED:
        _version(distribution)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        raise ConfigError(
            f"the report needs the Python package {distribution}, which is not installed",
            "pip install 'embodied-rl[report]' (from a checkout: pip install -e '.[report]')",
        ) from None


def javascript() -> str:
    """Returns the charts' JavaScript library as one script that can stand in an HTML page.

    Raises:
        ConfigError: the package is missing, or cannot make the bundle.
    """
    name = f"vega-{_version('vl-convert-python')}.js"
    try:
        file = cache_folder("report") / name
        kept = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, AssetsMissingError):
        kept = ""
    if len(kept) > _LEAST:
        return kept
    made = _made()
    with suppress(OSError, AssetsMissingError):  # without a cache the next report makes it again
        write_whole(cache_folder("report") / name, made, shared=True)
    return made


def _made() -> str:
    """Makes the bundle in a process of its own: it takes a JavaScript engine and 200 MB, which a long run need not
    keep."""
    try:
        done = subprocess.run([sys.executable, "-c", _MAKE], capture_output=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"the charting library could not be bundled: {error}", _AGAIN) from error
    script = done.stdout.decode(errors="replace").replace("</script", "<\\/script").replace("<!--", "<\\!--")
    if done.returncode or len(script) < _LEAST:
        said = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        raise ConfigError(f"the charting library could not be bundled: {said}", _AGAIN)
    return script


_AGAIN = "pip install --force-reinstall vl-convert-python, then write the report again"
