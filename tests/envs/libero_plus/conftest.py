from pathlib import Path

import pytest
from plus_package import install


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small LIBERO-Plus that is installed, instead of a real one."""
    return install(tmp_path, monkeypatch)
