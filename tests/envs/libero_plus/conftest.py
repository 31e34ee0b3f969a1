import sys
from importlib import invalidate_caches
from pathlib import Path

import pytest
from embodied.envs.libero.plus import files, scenes
from plus_package import write_package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small LIBERO-Plus that is installed, instead of a real one."""
    return install(tmp_path, monkeypatch)


def install(site: Path, monkeypatch: pytest.MonkeyPatch, version: str = "0.1.5") -> Path:
    found = write_package(site, version)
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    monkeypatch.delitem(sys.modules, "liberoplus", raising=False)
    invalidate_caches()
    for cached in (files._classification, files._arms, scenes._problems, scenes._textures, scenes._objects):
        cached.cache_clear()
    return found
