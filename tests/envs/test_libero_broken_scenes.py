"""A scene that cannot be built because of its BDDL file is the file's fault, and is said as that."""

import re

import pytest
from embodied.envs.libero.build import blamed_on
from embodied.envs.libero.rendering import Pictures
from embodied.envs.libero.sharing import Simulators

from embodied.errors import AssetsMissingError, ConfigError, is_explained

pytestmark = pytest.mark.sim
SMALL = Pictures(("agentview",), 32, 32, 0.0)


def within(part: str, name: str, text: str) -> str:
    """The text of a BDDL file with another name for the basket in one of its parts."""
    changed = re.sub(rf"\(:{part}.*?\n *\)\n", lambda found: found[0].replace("basket_1", name), text, flags=re.S)
    assert changed != text
    return changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("basket_1 - basket", "basket_1 - nosuch_thing"), "names 'nosuch_thing', which"),
        (lambda text: within("init", "basket_9", text), "names 'basket_9', which"),
        (lambda text: within("goal", "basket_9", text), "names 'basket_9_contain_region', which"),
        (lambda text: text[: len(text) // 2], "cannot be read: Exception: Missing close parenthesis"),
    ],
    ids=["object", "init", "goal", "half"],
)
def test_what_a_file_names_and_nothing_has_is_said(sim, tmp_path, change, said):
    file, text = tmp_path / "broken.bddl", sim._tasks[0].bddl_file.read_text(encoding="utf-8")
    file.write_text(change(text), encoding="utf-8")
    with pytest.raises(AssetsMissingError, match=re.escape(f"{file} {said}")) as found:
        Simulators().build_ahead(str(file), SMALL, draw=False, keep_assets=True)
    assert is_explained(found.value), "no worker tries it again"
    assert "embodied-rl[libero]" in found.value.remedy


def test_other_errors_are_not_the_files(sim):
    file = sim._tasks[0].bddl_file
    for error in (KeyError("nowhere_in_it"), KeyError(), ValueError("basket_1"), MemoryError(), ConfigError("a", "b")):
        with pytest.raises(type(error)) as found, blamed_on(file):
            raise error
        assert found.value is error
