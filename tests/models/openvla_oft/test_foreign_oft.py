"""OpenVLA-OFT folders of other people: names that wrappers gave, broken contents, statistics that would move a robot by
wrong amounts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch
from embodied.models.openvla_oft import build_policy
from foreign import PREFIXES, WITHIN, changed, filled, in_shards, renamed
from saved_policies import ENV, SMALL

from embodied import eval as evaluation
from embodied import train
from embodied.errors import CheckpointError, DamagedCheckpointError
from embodied.testing import FakeEnv
from embodied.weights.listing import WHOLE

UP = "language_model.model.layers.1.mlp.up_proj.weight"
KEYS = {**SMALL, "value_head": True}
PROJECTOR = "proprio_projector--0_checkpoint.pt"
CONFIGS = str(Path(__file__).parents[2] / "config")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("sources") / "oft"
    policy = build_policy(**KEYS)
    policy.bind(FakeEnv(**ENV).spec)
    policy.save(path)
    return path


@pytest.fixture
def folder(source, tmp_path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "oft"))


def check_same(folder: Path, source: Path) -> None:
    found, wanted = (dict(build_policy(**KEYS, model_path=str(path)).named_parameters()) for path in (folder, source))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_of_a_wrapper_is_left_out(folder, source, prefix):
    renamed(folder, lambda name: prefix + name)
    check_same(folder, source)


@pytest.mark.parametrize("within", WITHIN)
def test_wrappers_within_names_are_left_out(folder, source, within):
    renamed(folder, WITHIN[within])
    in_shards(folder)
    check_same(folder, source)


def test_wrappers_around_the_spellings_of_prismatic(folder, source):
    renamed(folder, lambda name: "module._orig_mod." + name.replace("language_model.", "llm_backbone.llm."))
    check_same(folder, source)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_wrappers_in_a_file_of_a_projector(folder, source, prefix):
    state = {name.removeprefix("module."): t for name, t in torch.load(folder / PROJECTOR, weights_only=True).items()}
    torch.save({prefix + name: tensor for name, tensor in state.items()}, folder / PROJECTOR)
    check_same(folder, source)


def projector(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def change_file(folder: Path) -> None:
        state = torch.load(folder / PROJECTOR, weights_only=True)
        change(state)
        torch.save(state, folder / PROJECTOR)

    return change_file


def without_layer(folder: Path) -> None:
    changed(folder, lambda state: {name: t for name, t in state.items() if "model.layers.1." not in name})


def unrecorded(folder: Path) -> None:
    renamed(folder, lambda name: name.replace("language_model.model.layers", "language_model.transformer.h"))
    (folder / "policy.json").unlink()


LORA = f"base_model.model.{UP.removesuffix('.weight')}.lora_A.default.weight"
BROKEN: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "NaN": (lambda f: changed(f, filled(UP, float("nan"))), f"{WHOLE}: 1 of the 6144 .* {UP} are NaN", "earlier"),
    "infinity": (lambda f: changed(f, filled(UP, float("inf"))), f"numbers of {UP} are infinite", "earlier"),
    "NaN in a value head": (
        lambda f: changed(f, filled("fc2.weight", float("nan")), "value_head.safetensors"), "head.safetensors: 1 of",
        "earlier",
    ),
    "NaN in a projector": (
        projector(lambda state: next(iter(state.values())).fill_(float("nan"))), f"{PROJECTOR}: .* are NaN", "earlier",
    ),
    "an empty embedding": (
        lambda f: changed(f, filled("language_model.model.embed_tokens.weight", 0.0, None)), "are 0", "earlier",
    ),
    "another name": (
        lambda f: renamed(f, lambda name: name.replace("1.mlp.up_proj", "1.mlp.up")), f"1 missing: {UP}; 1 unknown",
        "is perhaps language_model.model.layers.1.mlp.up.weight",
    ),
    "other names": (
        lambda f: renamed(f, lambda name: name.replace("model.layers", "transformer.h")), "has no tensor of", "rename",
    ),
    "other names without policy.json": (unrecorded, "the tensors bear other names", "rename them"),
    "a layer too few": (without_layer, "policy.json says 2 .*, the tensors are of 1", "saved with the weights"),
    "fp8": (
        lambda f: changed(f, lambda s: s.update({UP: s[UP].to(torch.float8_e4m3fn)})), "stored as F8_E4M3", "bf16",
    ),
    "adapters that are not merged": (
        lambda f: changed(f, lambda s: s.update({LORA: torch.ones(2, 2)})), "tensors of adapters", "merge_and_unload",
    ),
    "files of torch": (lambda f: foreign.as_bin(f), "another format: pytorch_model.bin", "save_file"),
    "a pointer": (lambda f: (f / WHOLE).write_bytes(foreign.POINTER), "pointer of Git LFS", "git lfs pull"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_weights_are_named_with_a_fix_of_their_own(folder, case):
    change, message, fix = BROKEN[case]
    change(folder)
    with pytest.raises(CheckpointError, match=message) as raised:
        build_policy(**{**KEYS, "vision_num_attention_heads": 4}, model_path=str(folder))
    assert fix in raised.value.remedy


def test_numbers_that_a_format_cannot_hold(folder):
    changed(folder, filled(UP, 1e6))
    with pytest.raises(
        CheckpointError, match=r"1\.mlp\.up_proj\.\S+ has numbers up to 1e.06, too large for torch.float16"
    ):
        build_policy(**KEYS, model_path=str(folder), is_lora=True, lora_rank=4, precision="fp16")
    build_policy(**KEYS, model_path=str(folder), is_lora=True, lora_rank=4, precision="bf16")


FILES = (
    "config.json",
    "policy.json",
    "dataset_statistics.json",
    "tokenizer.json",
    "preprocessor_config.json",
    PROJECTOR,
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("content", "said"), [(foreign.POINTER, "pointer of Git LFS"), (b"<html>", "HTML page")])
def test_a_stand_in_for_a_file_is_named(folder, name, content, said):
    (folder / name).write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=f"{name} is damaged: it is .*{said}"):
        build_policy(**KEYS, model_path=str(folder))


RUN = (
    "env=fake", "model=openvla_oft_tiny", "tracker=jsonl", "runner.device=cpu", "runner.experiment_name=run",
    "env.train.total_num_envs=2", "env.eval.total_num_envs=2", "algorithm.group_size=2",
)  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "more"), [(train.main, ()), (train.main, ("runner.dry_run=true",)), (evaluation.main, ())]
)
def test_every_entry_says_so_and_ends_with_status_2(folder, tmp_path, monkeypatch, capsys, entry, more):
    monkeypatch.chdir(tmp_path)
    (folder / WHOLE).write_bytes(foreign.POINTER)
    assert entry([*RUN, f"actor.model.model_path={folder}", *more, "--config-dir", CONFIGS]) == 2
    said = "".join(capsys.readouterr())
    assert "is a pointer of Git LFS" in said
    assert "git lfs pull" in said
    assert "Traceback" not in said


# -- statistics -------------------------------------------------------------------------------------------------------

Values = dict[str, Any]


def swapped(values: Values) -> None:
    values["q01"], values["q99"] = values["q99"], values["q01"]


def put(name: str, value: Any, dimension: int | None = None) -> Callable[[Values], Any]:
    def change(values: Values) -> None:
        if dimension is None:
            values[name] = value
        else:
            values[name][dimension] = value

    return change


def cut(*names: str) -> Callable[[Values], Any]:
    return lambda values: values.update({name: values[name][:-1] for name in names})


STATISTICS: dict[str, tuple[Callable[[Values], Any], str]] = {
    "swapped": (swapped, r"action q01\[0\] is 1, above q99\[0\], -1"),
    "one above": (put("q01", 2.0, 4), r"action q01\[4\] is 2, above q99\[4\], 1"),
    "NaN": (put("q99", float("nan"), 2), r"action q99\[2\] is nan, expected a finite number"),
    "infinity": (put("q99", 1e999, 2), r"action q99\[2\] is inf, expected a finite number"),
    "a whole number beyond all": (put("q99", 10**400, 2), "is damaged|finite"),
    "shorter": (cut("q01"), "action q01 has 6 dimensions and q99 7"),
    "a shorter mask": (cut("mask"), "action mask has 6 entries, and the statistics 7 dimensions"),
    "an empty mask": (put("mask", []), "action mask has 0 entries"),
    "a mask of words": (put("mask", "false", 1), r"action mask\[1\] is 'false'"),
    "a mask of numbers": (put("mask", 0.5, 1), r"action mask\[1\] is '0.5'"),
    "equal": (put("q99", -1.0, 3), r"action q01\[3\] and q99\[3\] are both -1"),
    "texts": (put("q01", "-1.0", 0), r"action q01\[0\] is '-1.0', expected a number"),
    "switches": (put("q01", False, 0), r"action q01\[0\] is 'False', expected a number"),
    "null": (put("q01", None), "action q01 is 'None', expected a list"),
    "no numbers": (put("q01", []), "action q01 is '', expected a list|expected a list of numbers"),
    "nested": (put("q01", [[-1.0] * 7]), r"action q01\[0\] is '\[-1.0"),
    "a table": (put("q01", {"x": -1.0}), "action q01 is .*expected a list"),
    "missing": (lambda values: values.pop("q01"), "needs 'q01' and 'q99'"),
    "extremes that are swapped": (
        lambda v: v.update(min=[1.0] * 7, max=[-1.0] * 7),
        r"action min\[0\] is 1, above max",
    ),
    "another robot": (cut("q01", "q99", "mask"), "have 6 action dimensions, actor.model.action_dim is 7"),
}


def write(folder: Path, change: Callable[[Values], Any], block: str = "action", file: str = "dataset") -> None:
    path = folder / "dataset_statistics.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values["env"][block])
    if file == "config":
        path.unlink()
        foreign.config(folder, norm_stats=values)
    else:
        path.write_text(json.dumps(values), encoding="utf-8")


@pytest.mark.parametrize("case", STATISTICS)
@pytest.mark.parametrize("file", ["dataset", "config"])
def test_wrong_statistics_are_refused_by_file_key_and_dimension(folder, case, file):
    change, said = STATISTICS[case]
    write(folder, change, file=file)
    with pytest.raises(CheckpointError, match=said) as raised:
        build_policy(**KEYS, model_path=str(folder))
    assert ("dataset_statistics.json" if file == "dataset" else "config.json") in raised.value.message


@pytest.mark.parametrize("content", ["[]", '{"env": 3}', '{"env": {"action": 3}}', '{"env": {}}', '{"env": null}'])
def test_statistics_of_another_layout_are_refused(folder, content):
    (folder / "dataset_statistics.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"is damaged|statistics"):
        build_policy(**KEYS, model_path=str(folder))


@pytest.mark.parametrize(
    "more", [{"constant": [False] * 3 + [True] + [False] * 3}, {"std": [1.0] * 3 + [0.0] + [1.0] * 3},
             {"min": [-2.0] * 3 + [-1.0] + [-2.0] * 3, "max": [2.0] * 3 + [-1.0] + [2.0] * 3}]
)  # fmt: skip
def test_a_dimension_that_the_data_never_move_may_be_said(folder, tmp_path, more):
    """It goes through saving and loading."""
    write(folder, lambda values: (put("q99", -1.0, 3)(values), values.update(more)))
    policy = build_policy(**KEYS, model_path=str(folder))
    assert policy.statistics.action.high[3] == policy.statistics.action.low[3] == -1.0
    policy.bind(FakeEnv(**ENV).spec)
    policy.save(tmp_path / "again")
    again = build_policy(**KEYS, model_path=str(tmp_path / "again"))
    assert again.statistics.action == policy.statistics.action


def test_an_unscaled_dimension_needs_no_range(folder):
    write(folder, lambda values: (put("q99", -1.0, 3)(values), put("mask", False, 3)(values)))
    assert build_policy(**KEYS, model_path=str(folder)).statistics.action.mask[3] is False
