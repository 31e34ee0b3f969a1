"""Generated pages are current, every link of the pages leads somewhere, and README's commands exist."""

import re
from pathlib import Path

import pytest

from embodied.tools import docs

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", docs.PAGES)
def test_generated_page_is_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == docs.PAGES[name](), "run: make docs"


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *(ROOT / "benchmarks").glob("**/*.md")]


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not missing


def test_make_targets_of_readme_exist() -> None:
    named = set(re.findall(r"`?make ([a-z]+)", (ROOT / "README.md").read_text()))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"train", "test"} <= named <= targets
