"""``docs/models.md`` has each model and each key, and its sizes are those that a dry run counts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from embodied.tools import docs
from embodied.tools.library.models_page import merged
from embodied.tools.library.sources import arguments

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "config" / "model").glob("*.yaml"))
COUNTED = json.loads((ROOT / "benchmarks" / "results" / "models.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def page() -> str:
    return docs.models_page()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_model_has_its_row_and_its_meaning(file, page):
    models = page.split("## Where weights come from")[0]  # below it a key may have the name of a model
    assert models.count(f"\n| `{file.stem}` | ") == 1
    assert page.count(f"\n- `model={file.stem}`: ") == 1


def test_each_key_of_each_model_is_there_with_its_meaning(page):
    rows = page.split("## Where weights come from")[1].splitlines()
    for one in arguments("actor.model"):
        found = [row for row in rows if row.startswith(f"| `{one.name}` | ")]
        assert any(row.endswith(f" {one.meaning.replace('|', chr(92) + '|')} |") for row in found), one
        assert one.meaning, one


def test_released_checkpoints_stand_with_their_statistics(page):
    assert "| `Haozhan72/Openvla-oft-SFT-libero10-trajall` | `openvla_oft` | libero_10 | `libero_10_no_noops` |" in page


def test_a_file_has_the_keys_of_those_that_it_begins_with():
    found = merged(ROOT / "config" / "model" / "openvla_oft_quickstart_libero.yaml")
    assert (found["size"], found["patch_size"], found["num_action_chunks"]) == ("tiny", 16, 8)


@pytest.mark.parametrize("name", ["mlp", "causal_lm_tiny"])
def test_the_sizes_are_those_that_a_dry_run_counts(name):
    place = importlib.util.spec_from_file_location("benchmark_of_models", ROOT / "benchmarks" / "model_sizes.py")
    benchmark = importlib.util.module_from_spec(place)
    place.loader.exec_module(benchmark)
    found = benchmark.counted(name, benchmark.SMALL[name])
    assert {key: found[key] for key in ("overrides", "parameters", "trained")} == {
        key: COUNTED[name][key] for key in ("overrides", "parameters", "trained")
    }
    assert [found[key] for key in ("act", "train", "record")] == pytest.approx(
        [COUNTED[name][key] for key in ("act", "train", "record")], rel=0.05
    )
