"""Quantiles or extremes: which of them a checkpoint's actions and state are relative to, and what comes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import oft_reference
import pytest
import torch
from embodied.models.openvla_oft import build_policy
from embodied.models.openvla_oft.tokens.action_tokenizer import ActionTokenizer, Range
from embodied.models.openvla_oft.tokens.normalization import Statistics

from embodied.errors import CheckpointError, ConfigError
from embodied.learn.checkpoint import statistics
from embodied.types import ArraySpec, ContinuousAction, EnvSpec

# ALOHA's sizes but for a shorter chunk.
ALOHA = {"action_dim": 14, "use_proprio": True, "proprio_dim": 14, "num_action_chunks": 2}
TOWERS = {"vision_num_attention_heads": 4, "vision_num_layers": 4}  # what no tensor tells where there is no sidecar
FOREIGN = {**ALOHA, **TOWERS, "size": None}
TOP = 1 - 1 / 255  # the centre of the highest bin; its token is 769 of 1024


def block(dimensions: int, scale: float = 1.0, mask: list[bool] | None = None) -> dict[str, list]:
    """Quantiles ±1 and extremes ±2, times ``scale``."""
    ends = {"q01": -scale, "q99": scale, "min": -2 * scale, "max": 2 * scale}
    return {name: [end] * dimensions for name, end in ends.items()} | ({} if mask is None else {"mask": mask})


def only(values: dict[str, list], *names: str) -> dict[str, list]:
    return {name: values[name] for name in names}


def write(folder: Path, action: dict[str, list], proprio: dict[str, list] | None = None) -> None:
    blocks = {"action": action} | ({} if proprio is None else {"proprio": proprio})
    (folder / "dataset_statistics.json").write_text(json.dumps({"task": blocks}), encoding="utf-8")


@pytest.fixture
def bimanual(env: EnvSpec) -> EnvSpec:
    obs = {**env.obs, "state": ArraySpec((14,), "float32")}
    return replace(env, action=ContinuousAction((-1.0,) * 14, (1.0,) * 14), obs=obs)


@pytest.fixture
def aloha(tmp_path, bimanual) -> Path:
    """A folder of 14 action dimensions as other programs write it: quantiles and extremes, no sidecar."""
    policy = build_policy(**ALOHA)
    policy.bind(bimanual)
    policy.save(tmp_path / "aloha")
    (tmp_path / "aloha" / "policy.json").unlink()
    write(tmp_path / "aloha", block(14, mask=[True] * 14), block(14, 2.0))
    return tmp_path / "aloha"


# -- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "width"), [("bounds_q99", 1.0), ("bounds", 2.0)])
def test_actions_by_hand(kind: str, width: float) -> None:
    """x ∈ [−1, 1] is x·width, and the masked-out third dimension is x; 0.5 units are 0.5/width of the way to 1."""
    ranges = Range.from_statistics(block(3, mask=[True, True, False]), "action", kind)
    got = ranges.unnormalize(torch.tensor([-1.0, 0.5, 0.7], dtype=torch.float64))
    assert got.tolist() == pytest.approx([-width, 0.5 * width, 0.7], abs=1e-7)
    back = ranges.normalize(torch.tensor([0.5, 5.0, 0.7], dtype=torch.float64))
    assert back.tolist() == pytest.approx([0.5 / width, 1.0, 0.7], abs=1e-7)


def test_what_the_mask_leaves_out_is_clipped_as_well() -> None:
    """As in OFT's evaluation: scaled where masked in, then all clipped to [−1, 1]."""
    ranges = Range.from_statistics(block(4, 2.0, [True, True, False, False]), "proprio", "bounds")
    state = torch.tensor([[1.0, 9.0, 1.7, -0.3], [-9.0, -2.0, -1.2, 0.9]])
    assert ranges.normalize(state).tolist() == [
        pytest.approx([0.25, 1.0, 1.0, -0.3]),
        pytest.approx([-1.0, -0.5, -1.0, 0.9]),
    ]


@pytest.mark.parametrize("kind", ["bounds_q99", "bounds"])
def test_the_second_implementation_agrees(make, bimanual, kind: str) -> None:
    random = torch.Generator().manual_seed(0)
    mask = [dimension % 3 > 0 for dimension in range(14)]
    low, high = -1 - torch.rand(2, 14, generator=random), 1 + torch.rand(2, 14, generator=random)
    ends = {"q01": low[0], "q99": high[0], "min": low[1] - 1, "max": high[1] + 1}
    values = {name: end.tolist() for name, end in ends.items()} | {"mask": mask}
    policy = build_policy(**ALOHA, action_normalization=kind)
    policy.bind(bimanual)
    policy.use_statistics("random", {"action": values, "proprio": values})
    tokens = torch.randint(768, 1024, (1, 28), generator=random)
    centres = ActionTokenizer(1024).decode(tokens)[0].tolist()
    actions = policy.decode_actions(tokens)[0]
    for number in range(2):
        wanted = oft_reference.unnormalised(centres[14 * number : 14 * number + 14], values, kind)
        assert actions[number].tolist() == pytest.approx(wanted, abs=1e-6)
    state = 4 * torch.randn(1, 14, generator=random)
    wanted = oft_reference.normalised_state(state[0].tolist(), values, kind)
    assert policy._proprio({"state": state})[0].tolist() == pytest.approx(wanted, abs=1e-6)
    again = policy.encode_actions(policy.decode_actions(tokens))["action_tokens"].long()
    assert torch.equal(again, tokens.clamp(min=769)), "encoding is the inverse; 768 and 769 mean one bin"


# -- which kind -------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_14_dimensions_uses_extremes_through_save_and_load(aloha, bimanual, tmp_path) -> None:
    """Actions ±2 and state ±4, where quantiles are ±1 and ±2."""
    policies = [build_policy(**FOREIGN, model_path=str(aloha))]
    policies[0].bind(bimanual)
    policies[0].save(tmp_path / "again")
    policies.append(build_policy(**ALOHA, model_path=str(tmp_path / "again")))
    policies[1].bind(bimanual)
    for policy in policies:
        assert policy.decode_actions(torch.full((1, 28), 769)).flatten().tolist() == pytest.approx([2 * TOP] * 28)
        # 1 unit is half of the way to 1: 192 of the edges −1 + 2i/255 are at most 0.5.
        assert policy.encode_actions(torch.ones(1, 2, 14))["action_tokens"].flatten().tolist() == [1024 - 192] * 28
        state = {"state": torch.tensor([[2.0, 4.0, 9.0, -1.0] + [0.0] * 10])}
        assert policy._proprio(state)[0, :5].tolist() == pytest.approx([0.5, 1.0, 1.0, -0.25, 0.0])
    assert policies[0].statistics == policies[1].statistics
    assert policies[0].describe()["statistics"] == (
        "'task', bounds (as OFT has it for ALOHA, 14 action dimensions)"
    )  # fmt: skip
    assert policies[1].describe()["statistics"] == "'task', bounds (as policy.json says)"
    written = json.loads((tmp_path / "again" / "dataset_statistics.json").read_text(encoding="utf-8"))["task"]["action"]
    used = only(block(14, mask=[True] * 14), "min", "max", "mask")
    assert {name: written[name] for name in used} == used
    assert written["q01"] == [-1.0] * 14, "what its folder had besides comes along"
    assert (
        json.loads((tmp_path / "again" / "policy.json").read_text(encoding="utf-8"))["action_normalization"] == "bounds"
    )


def test_the_key_decides_where_no_sidecar_does(aloha, bimanual) -> None:
    policy = build_policy(**FOREIGN, model_path=str(aloha), action_normalization="bounds_q99")
    policy.bind(bimanual)
    assert policy.decode_actions(torch.full((1, 28), 769)).flatten().tolist() == pytest.approx([TOP] * 28)
    assert policy.describe()["statistics"] == "'task', bounds_q99 (as configured)"


def test_a_checkpoint_of_7_dimensions_uses_quantiles(make, tmp_path) -> None:
    make(num_action_chunks=1).save(tmp_path / "hf")
    (tmp_path / "hf" / "policy.json").unlink()
    write(tmp_path / "hf", block(7))
    keys = {"num_action_chunks": 1, **TOWERS, "model_path": str(tmp_path / "hf")}
    assert make(**keys).decode_actions(torch.full((1, 7), 769)).flatten().tolist() == pytest.approx([TOP] * 7)
    write(tmp_path / "hf", only(block(7), "min", "max"))
    with pytest.raises(CheckpointError, match="needs 'q01' and 'q99'"):
        build_policy(**keys)


def test_folders_of_ours_from_before_the_key_are_of_quantiles(tmp_path, bimanual) -> None:
    policy = build_policy(**ALOHA)
    policy.bind(bimanual)
    policy.save(tmp_path / "hf")
    sidecar = json.loads((tmp_path / "hf" / "policy.json").read_text(encoding="utf-8"))
    del sidecar["action_normalization"]
    (tmp_path / "hf" / "policy.json").write_text(json.dumps(sidecar), encoding="utf-8")
    assert build_policy(**ALOHA, model_path=str(tmp_path / "hf")).statistics.action.kind == "bounds_q99"


def test_autoregressive_checkpoints_are_of_quantiles(tmp_path, bimanual) -> None:
    keys = {"action_dim": 14, "decoding": "autoregressive", "attention": "causal", "num_action_chunks": 1}
    policy = build_policy(**keys)
    policy.bind(bimanual)
    policy.save(tmp_path / "hf")
    (tmp_path / "hf" / "policy.json").unlink()
    write(tmp_path / "hf", block(14))
    again = build_policy(**keys, **TOWERS, model_path=str(tmp_path / "hf"))
    assert again.statistics.action.kind == "bounds_q99"


@pytest.mark.parametrize(("names", "kind"), [(("min", "max"), "bounds"), (("q01", "q99"), "bounds_q99")])
def test_other_dimensions_are_told_by_the_only_entries(tmp_path, env, names, kind) -> None:
    folder, keys = ten_dimensions(tmp_path, env)
    write(folder, only(block(10), *names))
    assert build_policy(**keys).statistics.action.kind == kind


def ten_dimensions(tmp_path: Path, env: EnvSpec) -> tuple[Path, dict]:
    policy = build_policy(action_dim=10, num_action_chunks=1)
    policy.bind(replace(env, action=ContinuousAction((-1.0,) * 10, (1.0,) * 10)))
    policy.save(tmp_path / "hf")
    (tmp_path / "hf" / "policy.json").unlink()
    keys = {"action_dim": 10, "num_action_chunks": 1, **TOWERS}
    return tmp_path / "hf", {**keys, "model_path": str(tmp_path / "hf")}


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_what_nothing_tells_is_refused(tmp_path, env) -> None:
    folder, keys = ten_dimensions(tmp_path, env)
    write(folder, block(10))
    with pytest.raises(CheckpointError) as caught:
        build_policy(**keys)
    assert "does not tell how actions were normalised" in caught.value.message
    assert "the statistics have 10" in caught.value.message
    assert "actor.model.action_normalization" in caught.value.remedy
    assert build_policy(**keys, action_normalization="bounds").statistics.action.high == (2.0,) * 10


def test_entries_that_are_missing_are_named(aloha) -> None:
    write(aloha, only(block(14), "q01", "q99"), block(14))
    with pytest.raises(CheckpointError) as caught:
        build_policy(**FOREIGN, model_path=str(aloha))
    assert "the action statistics have ['q01', 'q99']" in caught.value.message
    assert "action_normalization bounds needs 'min' and 'max'" in caught.value.message
    assert "actor.model.action_normalization=bounds_q99 if the checkpoint was trained so" in caught.value.remedy
    write(aloha, block(14), only(block(14), "q01", "q99"))
    with pytest.raises(CheckpointError, match=r"the proprio statistics have .* needs 'min' and 'max'"):
        build_policy(**FOREIGN, model_path=str(aloha))
    write(aloha, {"mean": [0.0] * 14})
    with pytest.raises(CheckpointError) as caught:
        build_policy(**FOREIGN, model_path=str(aloha))
    assert caught.value.remedy.startswith("add the entries")


def test_a_key_that_contradicts_the_sidecar(aloha, bimanual, tmp_path) -> None:
    policy = build_policy(**FOREIGN, model_path=str(aloha))
    policy.bind(bimanual)
    policy.save(tmp_path / "again")
    with pytest.raises(ConfigError, match=r"action_normalization = 'bounds_q99': .*policy.json says 'bounds'"):
        build_policy(**ALOHA, model_path=str(tmp_path / "again"), action_normalization="bounds_q99")
    sidecar = json.loads((tmp_path / "again" / "policy.json").read_text(encoding="utf-8"))
    (tmp_path / "again" / "policy.json").write_text(
        json.dumps({**sidecar, "action_normalization": "normal"}), encoding="utf-8"
    )
    with pytest.raises(CheckpointError, match="'normal', known are bounds_q99, bounds"):
        build_policy(**ALOHA, model_path=str(tmp_path / "again"))


def test_unknown_kinds_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="action_normalization to one of: auto, bounds_q99, bounds"):
        build_policy(action_normalization="normal")


# -- demonstrations and checkpoints of a run --------------------------------------------------------------------------


def test_demonstrations_give_the_extremes_where_those_are_asked_for(make, tmp_path) -> None:
    policy = make(num_action_chunks=1, policy_setup="libero", action_normalization="bounds")
    assert policy.describe()["statistics"] == "the env's action range"
    policy.use_statistics("demonstrations", {"action": block(7)})
    assert policy.decode_actions(torch.full((1, 7), 769))[0, 0].tolist() == pytest.approx([2 * TOP] * 6 + [-1.0])
    assert statistics.known(policy)["action"] == {
        "min": [-2.0] * 6 + [0.0], "max": [2.0] * 6 + [1.0], "mask": [True] * 7
    }  # fmt: skip
    assert statistics.kind(policy) == "minimum and maximum"
    policy.save(tmp_path / "hf")
    keys = {"num_action_chunks": 1, "policy_setup": "libero"}
    assert make(**keys, model_path=str(tmp_path / "hf")).statistics.action == policy.statistics.action


def test_what_a_run_settled_comes_back_with_its_kind(make) -> None:
    trained = make(num_action_chunks=1, action_normalization="bounds")
    trained.use_statistics("demonstrations", {"action": block(7)})
    later = make(num_action_chunks=1)
    later.load_extra_state(trained.extra_state())
    assert later.statistics == trained.statistics
    assert later.describe()["statistics"] == "'demonstrations', bounds (as the statistics have min and max alone)"
    other = make(num_action_chunks=1, action_normalization="bounds_q99")
    with pytest.raises(CheckpointError, match="bounds_q99 needs 'q01' and 'q99'"):
        other.load_extra_state(trained.extra_state())


def test_the_envs_range_comes_back_from_a_folder_of_extremes(make, tmp_path) -> None:
    policy = make(num_action_chunks=1, action_normalization="bounds")
    policy.save(tmp_path / "hf")
    again = make(num_action_chunks=1, model_path=str(tmp_path / "hf"))
    assert again.statistics.action == Range((-1.0,) * 7, (1.0,) * 7, (True,) * 7, "bounds")


def test_both_kinds_given_leave_the_policys_own(make) -> None:
    policy = make(num_action_chunks=1)
    policy.use_statistics("demonstrations", {"action": block(7)})
    assert policy.statistics.action.kind == "bounds_q99"
    assert statistics.kind(policy) == "1 % and 99 % quantiles"
    assert Statistics() == make().statistics
