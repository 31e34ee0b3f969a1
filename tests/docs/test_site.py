"""``mkdocs build --strict``: the documentation site is made without a warning and fetches nothing when it is read."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OF_ITS_OWN = ROOT / ".venv-docs" / "bin" / "python"
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b(?![^>]*canonical)[^>]*href=\"(?:https?:)?//"
)


def interpreter() -> str:
    """One that has mkdocs: this one, or that of ``make site``. Skips the test if there is none."""
    if all(find_spec(name) for name in ("mkdocs", "material", "mkdocstrings", "latex2mathml")):
        return sys.executable
    if OF_ITS_OWN.exists():
        return str(OF_ITS_OWN)
    pytest.skip("mkdocs is not installed: run make site once, or pip install -e '.[docs]'")


@pytest.mark.slow
def test_the_site_is_made_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [interpreter(), "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=300,
    encoding="utf-8")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = {str(page.relative_to(tmp_path)): page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    assert not [name for name, text in pages.items() if FETCHED.search(text)]
    assert pages["algorithms/index.html"].count("<math") > 40
    assert not [name for name, text in pages.items() if "arithmatex" in text], "formulas that are no MathML"
    for name in ("embodied.types.EnvSpec", "embodied.protocols.env.Env"):
        assert any(f'id="{name}"' in text for text in pages.values()), f"the reference has no {name}"
    assert '<td data-head="meaning">' in pages["configuration/index.html"], "its rows are cards on a phone"
    assert "data-long" not in pages["results/libero/index.html"].partition("seed</th>")[2].partition("</table>")[0]
    assert (tmp_path / "images" / "before_after.mp4").is_file()
    found = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    assert any("WorkerHungError" in entry["title"] for entry in found)
    assert (tmp_path / "source" / "envs" / "_template.py").read_text(encoding="utf-8") == (
        ROOT / "envs" / "_template.py"
    ).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("urls", ["", '[project.urls]\nRepository = "https://example.org/embodied"\n'])
def test_the_source_is_linked_as_soon_as_it_has_an_address(tmp_path: Path, urls: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "x"\n{urls}', encoding="utf-8")
    code = (
        "import site_hooks, sys, types; from pathlib import Path; site_hooks.ROOT = Path(sys.argv[1]); "
        "config = types.SimpleNamespace(repo_url=None); site_hooks.on_config(config); print(config.repo_url)"
    )
    done = subprocess.run(
        [interpreter(), "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    encoding="utf-8")  # fmt: skip
    assert done.stdout.strip() == ("https://example.org/embodied" if urls else "None"), done.stderr
