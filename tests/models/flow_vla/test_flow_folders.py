"""Folders of flow policies: what is written is what was read, and what cannot be right is refused with its fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from embodied.models.flow_vla import build_policy
from embodied.models.flow_vla.files.names import rename, stored_name
from embodied.models.flow_vla.inputs.pictures import prepare
from embodied.models.flow_vla.inputs.texts import as_bytes, as_texts, plain_prompt, state_prompt
from embodied.models.flow_vla.policy import FlowVLAPolicy
from flow_golden import FOLDERS, GOLDEN, LEROBOT, folder_of, gap, golden, heads
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from torch import Tensor

from embodied.errors import CheckpointError, ConfigError, EmbodiedError, SpecMismatchError, UnknownNameError
from embodied.learn.checkpoint.statistics import kind
from embodied.testing import check_policy
from embodied.types import ArraySpec, ContinuousAction, EnvSpec, Sampling

CAMERAS = ("camera1", "camera2")


def opened(path: Path, name: str, **keys: Any) -> FlowVLAPolicy:
    return build_policy(model_path=str(path), **{"num_action_chunks": 4, **heads(name), **keys})


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads(file.read_text(encoding="utf-8"))
    change(values)
    file.write_text(json.dumps(values), encoding="utf-8")


def tokenizer(path: Path) -> Path:
    """A tokenizer of 96 ids, as many as the golden networks embed: characters, the rest is unknown."""
    words = {chr(code): code - 32 for code in range(33, 127)} | {"[UNK]": 0, "\n": 95}
    found = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    found.pre_tokenizer = Split("", "isolated")
    found.save(str(path / "tokenizer.json"))
    return path / "tokenizer.json"


def env_of(tasks: tuple[str, ...] = ("lift it",), state: int = 8, actions: int = 7, cameras: int = 2) -> EnvSpec:
    return EnvSpec(
        obs={"images": ArraySpec((cameras, 48, 64, 3), "uint8"), "state": ArraySpec((state,), "float32")},
        cameras=tuple(f"camera{number + 1}" for number in range(cameras)),
        action=ContinuousAction((-9.0,) * actions, (9.0,) * actions),
        tasks=tasks, num_init_states=(1,) * len(tasks), max_episode_steps=10, control_hz=20.0,
    )  # fmt: skip


# -- read and written ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_saved_holds_the_tensors_that_were_read(name: str, tmp_path: Path) -> None:
    source = folder_of(name, tmp_path)
    policy = opened(source, name)
    policy.save(tmp_path / "saved")
    read, written = (load_file(path / "model.safetensors") for path in (source, tmp_path / "saved"))
    read = {key if key.startswith("model.") else f"model.{key}": tensor for key, tensor in read.items()}
    assert read.keys() == written.keys()
    for key, tensor in read.items():
        assert tensor.dtype == written[key].dtype
        assert torch.equal(tensor, written[key])
    again = build_policy(model_path=str(tmp_path / "saved"), num_action_chunks=4)
    pairs = zip(policy.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    one, other = policy.parts.now, again.parts.now
    x = torch.randn(3, 7)
    assert gap(one.action.normalize(x), other.action.normalize(x)) < 1e-5
    assert gap(one.action.denormalize(x), other.action.denormalize(x)) < 1e-5
    assert gap(one.state.normalize(torch.ones(1, 8)), other.state.normalize(torch.ones(1, 8))) < 1e-5
    with pytest.raises(CheckpointError, match="not empty"):
        policy.save(tmp_path / "saved")


@pytest.mark.parametrize("layout", ["smolvla", "pi0", "pi05"])
def test_a_policy_made_here_is_saved_and_read_again(layout: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"value_head": True, "noise_method": "flow_noise", "train_expert_only": False}
    policy = build_policy(
        layout=layout, max_prompt_length=200, is_lora=True, lora_rank=2, lora_init_weights=False, **keys
    )
    with pytest.raises(CheckpointError, match="no range of actions"):
        policy.save(tmp_path / "saved")
    env = env_of()
    policy.bind(env)
    policy.save(tmp_path / "saved")
    again = build_policy(model_path=str(tmp_path / "saved"), tokenizer_path=None, num_action_chunks=4, **keys)
    assert len([*again.parameters()]) == len([n for n, _ in policy.named_parameters() if ".lora_" not in n])
    object.__setattr__(again.parts, "tokenizer", policy.parts.tokenizer)
    again.bind(env)
    obs = _observed(policy)
    noise = torch.randn(2, *policy.spec.noise.shape, generator=torch.Generator().manual_seed(0)).clamp(0, 0.9)
    for field in ("actions", "logprobs", "value"):
        one, other = (p.act(obs, noise, Sampling()).fields[field] for p in (policy, again))
        assert gap(one, other) < 2e-4


def _observed(policy: FlowVLAPolicy) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2, 2, 48, 64, 3), dtype=torch.uint8, generator=random)
    texts = policy.encode_instructions(["lift it", "lift it"])
    return {"images": images, "state": torch.randn(2, 8, generator=random), **texts}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_policy_of_a_folder_keeps_what_a_policy_promises(name: str, tmp_path: Path) -> None:
    source = folder_of(name, tmp_path)
    check_policy(opened(source, name, tokenizer_path=str(tokenizer(tmp_path))), env_of())


def test_names_there_and_back() -> None:
    for name in LEROBOT:
        layout = name.removesuffix("_tiny")
        found = rename(load_file(GOLDEN / name / "model.safetensors")).own
        again = {stored_name(own, layout): own for own in found.values()}
        untied = {key.replace("model.language_model.embed_tokens", "lm_head"): own for key, own in found.items()}
        assert again == (untied if layout == "pi05" else found)


# -- texts and pictures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEROBOT)
def test_prompts_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    case = golden(name, tmp_path)
    pairs = zip(case.texts["tasks"], case["out.state.normalized"].numpy(), strict=True)
    if name == "pi05_tiny":
        assert [state_prompt(task, state) for task, state in pairs] == case.texts["texts"]
    else:
        assert [plain_prompt(task) for task, _ in pairs] == case.texts["texts"]


def test_texts_survive_as_bytes() -> None:
    texts = ["öffne die Schublade", "", "a" * 200]
    assert as_texts(as_bytes(texts, 128)) == texts


def test_the_place_of_black_beside_a_picture() -> None:
    white = torch.full((1, 1, 20, 40, 3), 255, dtype=torch.uint8)
    above, around = (prepare(white, 40, centred)[0, 0, 0, :, 0] for centred in (False, True))
    assert above.tolist() == [-1.0] * 20 + [1.0] * 20
    assert around.tolist() == [-1.0] * 10 + [1.0] * 20 + [-1.0] * 10


# -- refused ---------------------------------------------------------------------------------------------------------


def refused(
    path: Path, name: str, match: str, fix: str, kind: type[EmbodiedError] = CheckpointError, **keys: Any
) -> None:
    with pytest.raises(kind, match=match) as caught:
        opened(path, name, **keys)
    assert fix in caught.value.remedy


def _rename_statistics(path: Path, front: str) -> None:
    for file in path.glob("policy_preprocessor_*.safetensors"):
        save_file({f"{front}{key}": tensor for key, tensor in load_file(file).items()}, file)


@pytest.mark.parametrize("front", ["so100.buffer.", "so100.buffer_", "so100."])
def test_statistics_under_names_of_data_sets_must_be_named(front: str, tmp_path: Path) -> None:
    path = folder_of("smolvla_tiny", tmp_path)
    plain = opened(path, "smolvla_tiny")
    _rename_statistics(path, front)
    refused(path, "smolvla_tiny", "names of data sets: so100", "actor.model.statistics_key=so100")
    refused(path, "smolvla_tiny", "so101", "so100", UnknownNameError, statistics_key="so101")
    named = opened(path, "smolvla_tiny", statistics_key="so100")
    assert (named.parts.now.action, named.parts.now.state) == (plain.parts.now.action, plain.parts.now.state)


def test_statistics_that_are_not_there(tmp_path: Path) -> None:
    path = folder_of("smolvla_tiny", tmp_path)
    for file in path.glob("policy_preprocessor_*.safetensors"):
        kept = {key: tensor for key, tensor in load_file(file).items() if not key.startswith("action")}
        save_file(kept, file)
    refused(path, "smolvla_tiny", "action is to be normalised by mean_std and lacks mean, std", "its statistics")
    (path / "policy_preprocessor.json").unlink()
    refused(path, "smolvla_tiny", "lacks policy_preprocessor.json", "LeRobot")
    openpi = folder_of("openpi_pi0_tiny", tmp_path)
    (openpi / "assets" / "tiny" / "norm_stats.json").unlink()
    refused(openpi, "openpi_pi0_tiny", r"lacks assets/NAME/norm_stats\.json", "copy the assets")


@pytest.mark.parametrize("name", LEROBOT)
def test_tensors_that_are_missing_or_cut(name: str, tmp_path: Path) -> None:
    path = folder_of(name, tmp_path)
    whole = load_file(path / "model.safetensors")
    lost = next(key for key in whole if key.endswith("layers.1.self_attn.v_proj.weight") and "expert." in key)
    save_file({key: tensor for key, tensor in whole.items() if key != lost}, path / "model.safetensors")
    refused(path, name, r"lacks 1: layers.1.expert.self_attn.v_proj.weight", "all tensors")
    save_file({**whole, lost: whole[lost][:-1].clone()}, path / "model.safetensors")
    refused(path, name, "another shape 1: layers.1.expert.self_attn.v_proj.weight", "all tensors")
    save_file({**whole, "model.more": torch.ones(2)}, path / "model.safetensors")
    refused(path, name, "1 tensors that no network of this room has: model.more", "LeRobot or openpi")
    embedding = next(key for key in whole if "embed_tokens" in key or key.endswith("paligemma.lm_head.weight"))
    gone = {key: t for key, t in whole.items() if "embed_tokens" not in key and not key.endswith("lm_head.weight")}
    assert embedding not in gone
    save_file(gone, path / "model.safetensors")
    refused(path, name, "lacks embed_tokens.weight", "all tensors")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"type": "pi0_fast"}, "π0-FAST writes tokens"),
        ({"type": "groot"}, "GR00T has another network"),
        ({"type": None, "model_type": "gr00t_n1_5"}, "GR00T has another network"),
        ({"type": "act"}, "policy 'act'"),
        ({"use_relative_actions": True}, "use_relative_actions"),
        ({"adapt_to_pi_aloha": True}, "adapt_to_pi_aloha"),
    ],
)
def test_policies_that_are_not_run_here(change: dict[str, Any], match: str, tmp_path: Path) -> None:
    path = folder_of("pi0_tiny", tmp_path)
    edit(path / "config.json", lambda values: values.update(change))
    refused(path, "pi0_tiny", match, "use a")


def test_relative_actions_of_the_processor(tmp_path: Path) -> None:
    path = folder_of("pi0_tiny", tmp_path)

    def enable(values: dict[str, Any]) -> None:
        for step in values["steps"]:
            if step["registry_name"] == "relative_actions_processor":
                step["config"]["enabled"] = True

    edit(path / "policy_preprocessor.json", enable)
    refused(path, "pi0_tiny", "relative to the state", "the env's own actions")


def test_the_old_folder_of_pi0(tmp_path: Path) -> None:
    path = folder_of("pi0_tiny", tmp_path)
    whole = load_file(path / "model.safetensors")
    save_file({**whole, "normalize_inputs.buffer_observation_state.mean": torch.ones(8)}, path / "model.safetensors")
    refused(path, "pi0_tiny", "old lerobot/pi0", "lerobot/pi0_base")


def test_heads_that_no_file_says(tmp_path: Path) -> None:
    path = folder_of("pi0_tiny", tmp_path)
    with pytest.raises(CheckpointError, match="number of heads is not known") as caught:
        build_policy(model_path=str(path))
    assert "actor.model.vision_heads" in caught.value.remedy


@pytest.mark.parametrize("name", ["smolvla_tiny", "openpi_pi05_tiny"])
def test_statistics_may_come_with_the_demonstrations_of_another_robot(name: str, tmp_path: Path) -> None:
    path, file = folder_of(name, tmp_path), str(tokenizer(tmp_path))
    policy = opened(path, name, tokenizer_path=file, statistics_key="demonstrations")
    policy.bind(env_of(state=3, actions=5))
    assert policy.extra_state() == {}, "sft.statistics=auto takes the demonstrations'"
    with pytest.raises(ConfigError, match="waits for the statistics") as caught:
        policy.parts.actions(torch.zeros(1, 6, 32))
    assert "embodied.sft" in caught.value.remedy
    with pytest.raises(CheckpointError, match="no range of actions"):
        policy.save(tmp_path / "early")
    values = {"mean": [0.5], "std": [2.0], "q01": [-1.0], "q99": [3.0]}
    policy.use_statistics("demonstrations", {"action": _times(values, 5), "proprio": _times(values, 3)})
    assert kind(policy) == "those", "SmolVLA takes mean and standard deviation of all that it is given"
    policy.save(tmp_path / "saved")
    again = build_policy(model_path=str(tmp_path / "saved"), num_action_chunks=4)
    assert again.parts.now.action.kind == opened(path, name).parts.now.action.kind
    assert (again.parts.now.state.width, again.parts.now.action.width) == (3, 5)
    chunk = torch.ones(1, 6, 32)
    assert gap(again.parts.now.action.denormalize(chunk[:, :4, :5]), policy.parts.actions(chunk)) < 1e-5
    config = json.loads((tmp_path / "saved" / "config.json").read_text(encoding="utf-8"))
    assert config["output_features"]["action"]["shape"] == [5]
    assert config["input_features"]["observation.state"]["shape"] == [3]


def _times(values: dict[str, list[float]], count: int) -> dict[str, list[float]]:
    return {name: numbers * count for name, numbers in values.items()}


def test_keys_that_contradict_the_folder_or_each_other(tmp_path: Path) -> None:
    path = folder_of("pi0_tiny", tmp_path)
    refused(path, "pi0_tiny", "a chunk has 6 actions", "set it to 6 or less", ConfigError, num_action_chunks=7)
    refused(path, "pi0_tiny", "chunks of 6", "remove the key", ConfigError, action_horizon=8)
    refused(path, "pi0_tiny", "is pi0", "remove the key", ConfigError, layout="pi05")
    refused(path, "pi0_tiny", "nothing to learn from", "0.5", ConfigError, noise_level=0.0)
    refused(path, "pi0_tiny", "0 has no log-probs", "above 0", ConfigError, noise_range=[0.0, 0.1])
    refused(path, "pi0_tiny", "it counts something", "at least 1", ConfigError, num_steps=0)
    refused(path, "pi0_tiny", "flow_cps", "flow_sde", UnknownNameError, noise_method="flow_cps")
    refused(path, "pi0_tiny", "noise_levl", "known keys", ConfigError, noise_levl=1.0)


@pytest.mark.parametrize(
    ("env", "match", "fix"),
    [
        (env_of(cameras=4), "places for 3 pictures .camera1, camera2, camera3., and 4 cameras", "at most 3"),
        (env_of(state=9), "a state of 8 numbers, the env gives 9", "statistics_key"),
        (env_of(actions=6), "actions of 7 numbers, the env takes 6", "statistics_key"),
        (env_of(tasks=("lift " * 20,)), "tokens, and the policy reads 48 at most", "shorten the instruction"),
    ],
)
def test_envs_that_do_not_fit(env: EnvSpec, match: str, fix: str, tmp_path: Path) -> None:
    policy = opened(folder_of("pi0_tiny", tmp_path), "pi0_tiny", tokenizer_path=str(tokenizer(tmp_path)))
    with pytest.raises(SpecMismatchError, match=match) as caught:
        policy.bind(env)
    assert fix in caught.value.remedy


def test_cameras_are_named_in_the_order_of_the_places(tmp_path: Path) -> None:
    path, file = folder_of("pi0_tiny", tmp_path), str(tokenizer(tmp_path))
    policy = opened(path, "pi0_tiny", tokenizer_path=file, cameras=["camera3", "camera1"])
    policy.bind(env_of(cameras=4))
    assert policy.parts.now.order == (2, 0)
    with pytest.raises(SpecMismatchError, match="names wrist, the env has camera1, camera2"):
        opened(path, "pi0_tiny", tokenizer_path=file, cameras=["wrist"]).bind(env_of())


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    policy = opened(folder_of("smolvla_tiny", tmp_path), "smolvla_tiny")
    with pytest.raises(SpecMismatchError, match=r"no tokenizer\.json") as caught:
        policy.bind(env_of())
    assert "actor.model.tokenizer_path" in caught.value.remedy


def test_a_state_wider_than_the_network() -> None:
    with pytest.raises(SpecMismatchError, match="33 numbers, the policy reads at most 32") as caught:
        build_policy(layout="pi0").bind(env_of(state=33))
    assert "actor.model.state_width=33" in caught.value.remedy
    with pytest.raises(SpecMismatchError, match="33 numbers, the policy gives at most 32"):
        build_policy(layout="pi0").bind(env_of(actions=33))


def test_states_outside_of_their_statistics_are_said_once(tmp_path: Path) -> None:
    policy = opened(folder_of("pi05_tiny", tmp_path), "pi05_tiny", tokenizer_path=str(tokenizer(tmp_path)))
    policy.bind(env_of())
    obs = _observed(policy)
    middle = policy.parts.now.state.denormalize(torch.zeros(2, 8))
    assert policy.probe({**obs, "state": middle}) == ()
    (line,) = policy.probe({**obs, "state": middle + 100})
    assert line == "100% of the first states' numbers lie outside of the statistics"
