"""Generated pages are current, links and anchors lead somewhere, the site has every page, each error has its entry."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from embodied import errors
from embodied.tools import docs

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", docs.PAGES)
def test_generated_page_is_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == docs.PAGES[name](), "run: make docs"


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *(ROOT / "benchmarks").glob("**/*.md")]


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not missing


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_anchors_are_headings(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    targets = re.findall(r"\]\(((?!https?:)[^)#\s]*)#([^)\s]+)\)", text)
    missing = [f"{t}#{a}" for t, a in targets if a not in anchors((page.parent / t).resolve() if t else page)]
    assert not missing


def test_the_site_has_every_page() -> None:
    nav = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    here = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").glob("**/*.md")}
    from_outside = set(re.findall(r'": "(\S+\.md)"', (ROOT / "site_hooks.py").read_text(encoding="utf-8")))
    assert nav == here | from_outside, "name each page of docs/ under nav in mkdocs.yml"


ERRORS = [
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, (errors.EmbodiedError, errors.Stopped))
]


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_has_an_entry_under_troubleshooting(name: str) -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    found = re.search(rf"^### {name}\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"write an entry '### {name}' into docs/troubleshooting.md"
    for part in ("**You see:**", "**Why:**", "**Do:**"):
        assert re.search(rf"^{re.escape(part)} \S.{{20}}", found[1], re.MULTILINE), f"{name} has no {part}"


def test_troubleshooting_has_no_error_that_is_gone() -> None:
    entries = re.findall(
        r"^### (\w+)$", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {name for name in entries if name.endswith("Error")} <= set(ERRORS)


def result(name: str, *path: str) -> float:
    found = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    for key in path:
        found = found[key]
    return float(found)


def test_the_comparison_has_the_measured_numbers() -> None:
    page = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    outside, inside = ("ratios", "chunk/original"), ("ratios", "chunk/original_chunk")
    frames = ("cells", "peers-free", "found")
    times = [
        f"{result('rollout_libero_10', *outside, 'env_steps_per_s'):.1f}",
        f"{result('rollout_libero_10', *inside, 'env_steps_per_s'):.2f}",
        f"{result('rollout_libero_10_stub_camera', *inside, 'env_steps_per_s'):.2f}",
        f"{result('maniskill_PickCube-v1', *outside, 'env_steps_per_s'):.1f}",
    ]
    ours = [
        f"{result('transport_peers', *frames, name, 'frames_per_s', 'median'):.0f}"
        for name in ("slab", "slab, 1 worker")
    ]
    missing = [number for number in times if f"| {number} times the peer |" not in page]
    assert not missing + [number for number in ours if f"| {number} |" not in page]


def test_the_three_numbers_of_the_first_page_were_measured() -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    runs = json.loads((ROOT / "benchmarks" / "results" / "quickstart_libero.json").read_text(encoding="utf-8"))["runs"]
    shares = [
        sum(one[side]["successes"] for one in runs.values()) / sum(one[side]["episodes"] for one in runs.values())
        for side in ("before", "after")
    ]
    numbers = {
        "python benchmarks/quickstart_libero.py": f"{100 * shares[0]:.0f} → {100 * shares[1]:.0f} %",
        "python benchmarks/simulator_forks.py": (
            f"{result('simulator_forks', 'memory', 'libero_object, 1 tasks, 64 slots', 'all_pss') * 2**20 / 1e9:.1f} GB"
        ),
        "python benchmarks/true_size.py": f"{result('true_size', '7.6 B parameters at random', 'peak') / 1e9:.1f} GB",
    }
    for command, number in numbers.items():
        assert re.search(rf"- \*\*{re.escape(number)}\*\*(?:(?!^- ).)*?`{command}", page, re.MULTILINE | re.DOTALL), (
            number
        )


def test_guides_are_five_groups_and_the_four_doors_lead_to_pages() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("  - Guides:\n")[2].partition("\n  - ")[0]
    assert len(re.findall(r"^      - [^:]+:$", nav, re.MULTILINE)) == 5
    assert not re.findall(r"^      - .*\.md$", nav, re.MULTILINE), "a guide stands in a group"
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    doors = re.findall(r"^- \*\*\[([^\]]+)\]\(([^)]+)\)\*\*", page, re.MULTILINE)
    assert [name for name, _ in doors] == ["Train", "My task", "My policy", "My cluster"]


def test_pictures_and_videos_of_the_pages_are_small() -> None:
    files = [*(ROOT / "docs" / "images").iterdir()]
    assert {"before_after.mp4", "before_after.jpg", "robot.png", "robot_dark.png"} <= {file.name for file in files}
    assert not [file.name for file in files if file.stat().st_size > 600_000]
    named = re.findall(r'(?:src|srcset|poster)="([^"]+)"', (ROOT / "README.md").read_text(encoding="utf-8"))
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    named += [f"docs/{name}" for name in re.findall(r'(?:src|poster)="([^"]+)"', index)]
    assert len(named) == 4
    assert all((ROOT / name).is_file() for name in named)


def test_make_targets_of_readme_exist() -> None:
    named = set(re.findall(r"`?make ([a-z]+)", (ROOT / "README.md").read_text(encoding="utf-8")))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"train", "test"} <= named <= targets
