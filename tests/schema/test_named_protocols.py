"""A protocol holds whole, or its name is not carried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from embodied.errors import ConfigError
from embodied.schema.compose.compose import compose_unchecked, group_options
from embodied.schema.keys.paths import at

CONFIG = Path(__file__).resolve().parents[2] / "config"
PROTOCOLS = {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in CONFIG.glob("protocol/*.yaml")}
WITH_OWN = {
    "quickstart_libero": "quickstart_libero", "quickstart_libero_whole": "quickstart_libero_whole",
    "quickstart_libero_ppo": "quickstart_libero_whole",
}  # fmt: skip
EXPERIMENTS = sorted(file.stem for file in CONFIG.glob("experiment/*.yaml"))


def composed(*overrides: str, entry: str = "eval", folder: Path | None = None) -> dict[str, Any]:
    return compose_unchecked(overrides, entry, [str(folder)] if folder else []).resolved


def held(resolved: dict[str, Any], name: str) -> None:
    """Asserts that a configuration has the name of a protocol and all of its rules."""
    file = PROTOCOLS[name]
    assert resolved["protocol"]["name"] == name
    assert resolved["protocol"]["held_out_states"] == file.get("held_out_states", 0)
    assert resolved["protocol"]["sets"] == file["sets"]
    wanted = {**file["sets"], **file.get("of_model", {}).get(resolved["actor"]["model"]["_target_"], {})}
    assert {key: at(resolved, key) for key in wanted} == wanted


def holds_or_is_refused(name: str, *given: str, entry: str = "train") -> None:
    said, resolved = "", None
    try:
        resolved = composed(*given, f"protocol={name}", entry=entry)
    except ConfigError as error:
        said = str(error)
    if resolved is None:
        assert f"protocol={name} is for" in said
    else:
        held(resolved, name)


@pytest.mark.parametrize("entry", ["train", "eval"])
@pytest.mark.parametrize("name", ["openvla_oft", "held_out"])
def test_a_protocol_of_the_command_line_holds_whole_beside_an_experiment_with_its_own(name, entry):
    held(composed("experiment=quickstart_libero", "actor.model.model_path=x", f"protocol={name}", entry=entry), name)


def test_the_pictures_of_an_exported_policy_are_its_own():
    """Its weights were made with them, so the rest of the protocol holds, and results say what was changed."""
    resolved = composed("experiment=quickstart_libero", "protocol=openvla_oft", entry="eval")
    model, file = resolved["actor"]["model"], PROTOCOLS["openvla_oft"]
    wanted = {**file["sets"], **file["of_model"][model["_target_"]]}
    assert (model["image_preset"], model["center_crop"]) == ("rlinf", False)
    assert wanted["actor.model.image_preset"] == "oft_libero"
    others = {
        key: value for key, value in wanted.items() if key.rpartition(".")[2] not in ("image_preset", "center_crop")
    }
    assert {key: at(resolved, key) for key in others} == others


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROTOCOLS))
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_each_protocol_beside_each_experiment_holds_whole_or_is_refused(experiment, name):
    given, entry = ["actor.model.model_path=x"], "sft" if experiment.endswith("sft") else "train"
    holds_or_is_refused(name, f"experiment={experiment}", *given, entry=entry)


@pytest.mark.slow
@pytest.mark.parametrize("env", sorted(group_options("env")))
def test_each_env_takes_a_protocol_whole_or_refuses_it(env):
    holds_or_is_refused("openvla_oft", f"env={env}", "actor.model.model_path=x")


@pytest.mark.parametrize("experiment", WITH_OWN)
def test_an_experiment_has_its_own_protocol_until_another_env_is_chosen(experiment):
    own = composed(f"experiment={experiment}", entry="train")["protocol"]
    assert own["name"] == WITH_OWN[experiment]
    assert {key: at(composed(f"experiment={experiment}", entry="train"), key) for key in own["sets"]} == own["sets"]
    other = composed(f"experiment={experiment}", "env=libero_10", entry="train")
    assert other["protocol"]["name"] is None
    assert composed(f"experiment={experiment}", "protocol=null", entry="train")["protocol"] == {
        "name": None, "source": "", "env": None, "sets": {}, "of_model": {}, "held_out_states": 0,
    }  # fmt: skip


def test_two_experiments_with_one_protocol_name_have_one_protocol():
    rules: dict[str, dict[str, Any]] = {}
    for experiment in EXPERIMENTS:
        entry = "sft" if experiment.endswith("sft") else "train"
        given = ["actor.model.model_path=x", *(["data.train_data_paths=[x]"] if entry == "sft" else [])]
        protocol = composed(f"experiment={experiment}", *given, entry=entry)["protocol"]
        if protocol["name"]:
            assert rules.setdefault(protocol["name"], protocol["sets"]) == protocol["sets"], experiment
    assert len(rules) > 1


def test_another_model_keeps_the_protocol_and_its_keys_for_that_model():
    resolved = composed("experiment=quickstart_libero", "model=openvla_oft_tiny", "protocol=openvla_oft",
                        "actor.model.model_path=x")  # fmt: skip
    held(resolved, "openvla_oft")
    assert composed("experiment=quickstart_libero", "model=openvla_oft_tiny")["protocol"]["name"] == "quickstart_libero"


def test_a_key_beside_the_protocol_has_its_own_value():
    resolved = composed("experiment=quickstart_libero", "protocol=openvla_oft", "env.eval.max_episode_steps=7")
    assert (resolved["env"]["eval"]["max_episode_steps"], resolved["protocol"]["name"]) == (7, "openvla_oft")
    assert resolved["protocol"]["sets"]["env.eval.max_episode_steps"] is None, "so that results say it"


def test_another_number_of_held_out_states_is_said_too():
    resolved = composed("protocol=openvla_oft", "protocol.held_out_states=20")
    assert resolved["protocol"]["held_out_states"] == 20
    assert resolved["protocol"]["sets"]["protocol.held_out_states"] == 0


OFT = "  - override /protocol: openvla_oft\n"


@pytest.mark.parametrize(
    ("experiment", "name", "refused"),
    [
        (f"defaults:\n{OFT}  - _self_\n", "openvla_oft", False),
        (f"defaults:\n{OFT}  - _self_\nenv: {{eval: {{max_episode_steps: 9}}}}\n", "openvla_oft", False),
        (f"defaults:\n{OFT}  - _self_\nprotocol: {{sets: {{env.eval.max_episode_steps: 9}}}}\n", "", True),
        (f"defaults:\n{OFT}  - _self_\nprotocol: {{env: null}}\n", "", True),
        ("protocol: {name: rlinf}\n", "", True),
        (f"defaults:\n{OFT}  - _self_\nprotocol: {{name: mine, sets: {{env.eval.wait_steps: 9}}}}", "mine", False),
    ],
)  # fmt: skip
def test_an_experiment_of_the_user_s_carries_no_name_whose_rules_it_changes(tmp_path, experiment, name, refused):
    (tmp_path / "experiment").mkdir()
    text = f"# @package _global_\n{experiment}"
    (tmp_path / "experiment" / "own.yaml").write_text(text, encoding="utf-8")
    if refused:
        with pytest.raises(ConfigError, match="this is not the protocol"):
            composed("experiment=own", folder=tmp_path)
    elif name == "mine":
        resolved = composed("experiment=own", folder=tmp_path)
        assert (resolved["protocol"]["name"], resolved["env"]["eval"]["wait_steps"]) == ("mine", 9)
    else:
        held(composed("experiment=own", folder=tmp_path), name)
    held(composed("experiment=own", "protocol=rlinf", folder=tmp_path), "rlinf")


@pytest.mark.parametrize(
    "given", [["protocol=openvla_oft", "protocol.sets.env.eval.wait_steps=4"], ["protocol.name=openvla_oft"]]
)
def test_rules_that_are_changed_under_a_name_are_refused(given):
    with pytest.raises(ConfigError, match=r"this is not the protocol openvla_oft.*\n  fix: .*protocol.name="):
        composed(*given)


EXPERIMENT = """\
# @package _global_
defaults:
  - override /protocol: mine
  - override /env@env.train: ours
  - override /env@env.eval: ours
  - override /model: small
"""
FILES = {
    "protocol": ("mine", "name: mine\nheld_out_states: 2\nsets: {env.eval.episodes_per_task: 3}\n"),
    "env": ("ours", "_target_: embodied.testing.FakeEnv\n"),
    "model": ("small", "# @package actor.model\n_target_: embodied.testing.FakePolicy\n"),
    "experiment": ("own", EXPERIMENT),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a user's with a file for each of four groups; it can be imported as ``ours_of_a_user``."""
    folder = tmp_path / "ours_of_a_user"
    for group, (name, text) in FILES.items():
        (folder / group).mkdir(parents=True)
        (folder / group / f"{name}.yaml").write_text(text, encoding="utf-8")
    (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@pytest.mark.parametrize("path", ["file://{folder}", "'file://{folder}'", "{folder}", "pkg://ours_of_a_user", ""])
@pytest.mark.parametrize(
    "chosen", [("env=ours", "model=small", "protocol=mine"), ("experiment=own",), ("experiment=own", "protocol=mine")]
)
def test_a_protocol_of_a_folder_holds_whichever_way_the_folder_is_given(chosen, path, folder):
    searched = [f"hydra.searchpath=[{path.format(folder=folder)}]"] if path else []
    resolved = composed(*chosen, *searched, folder=None if path else folder)
    rules = resolved["protocol"]
    assert (rules["name"], rules["held_out_states"], resolved["env"]["eval"]["episodes_per_task"]) == ("mine", 2, 3)
    assert resolved["env"]["eval"]["_target_"] == "embodied.testing.FakeEnv"
    assert resolved["actor"]["model"]["_target_"] == "embodied.testing.FakePolicy"


def test_names_beside_a_search_path_are_those_of_its_files_too(folder):
    searched = f"hydra.searchpath=[{folder}]"
    assert composed("env=ours", "model=small", "protocol=MINE", searched)["protocol"]["name"] == "mine"
    with pytest.raises(ConfigError, match=r"unknown protocol 'mines'. Did you mean 'mine'\?"):
        composed("env=ours", "model=small", "protocol=mines", searched)


@pytest.mark.parametrize("value", ["file:///nowhere", "[1]", "[pkg://not_installed]", "[file://"])
@pytest.mark.filterwarnings("ignore:provider=hydra.searchpath")
def test_a_search_path_that_is_wrong_is_refused_by_what_it_does_not_hold(value):
    with pytest.raises(ConfigError, match="unknown env 'ours'"):
        composed("env=ours", f"hydra.searchpath={value}")


def test_a_file_of_a_model_without_its_package_is_refused_with_its_keys(folder):
    (folder / "model" / "bare.yaml").write_text("_target_: embodied.testing.FakePolicy\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"unknown key 'model\._target_'.*its keys are actor\.model\."):
        composed("env=ours", "model=bare", folder=folder)
