"""Parity with the original code, exact key mapping, folders."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from embodied.models.openvla_oft import Settings, build_policy
from embodied.models.openvla_oft.build import _add_adapters
from embodied.models.openvla_oft.export.save import save_folder
from embodied.models.openvla_oft.files.checkpoint import Folder, ignored, load_exact
from embodied.models.openvla_oft.network.config import OPENVLA_7B, TINY, NetConfig, TowerConfig
from embodied.models.openvla_oft.network.model import OpenVLAOFT
from embodied.models.openvla_oft.tokens.action_tokenizer import ActionTokenizer, Range
from embodied.models.openvla_oft.tokens.tokenizer import PromptTokenizer
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from embodied.errors import CheckpointError, ConfigError
from embodied.types import Sampling

GOLDEN = Path(__file__).parents[1] / "golden" / "openvla_oft_tiny_bidirectional.safetensors"
SPACE = 29871


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    """Weights in the original key layout, inputs, and outputs of the original code in float32."""
    return load_file(str(GOLDEN))


def golden_net() -> NetConfig:
    with safe_open(GOLDEN, framework="pt") as opened:
        values = json.loads(opened.metadata()["config"])
    dino, siglip, text = values["featurizer"], values["fused_featurizer"], values["text"]
    return replace(
        OPENVLA_7B,
        image_size=values["image"],
        patch_size=values["patch"],
        featurizer=TowerConfig(dino["dim"], dino["depth"], dino["heads"], dino["mlp"], 1 + dino["registers"], True),
        fused_featurizer=TowerConfig(siglip["dim"], siglip["depth"], siglip["heads"], siglip["mlp"], 0, False),
        **{n: text[n] for n in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")},
    )


def golden_weights(golden: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    weights = {k.removeprefix("weights."): v for k, v in golden.items() if k.startswith("weights.")}
    for name in ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight"):
        full = torch.zeros(32064, 128)
        full[golden["token_rows"]] = golden[f"weights_rows.{name}"]
        weights[name] = full
    return weights


def meta_model(net: NetConfig) -> OpenVLAOFT:
    with torch.device("meta"):
        return OpenVLAOFT(net, eos_id=2)


def test_outputs_of_the_original_code_are_reproduced(golden) -> None:
    net = golden_net()
    model = meta_model(net)
    load_exact(model, golden_weights(golden).items(), ignored(net))
    model.language_model.rebuild_rotary()
    prompt = torch.cat([golden["case.n1.input_ids"], torch.tensor([[SPACE]])], dim=1)
    with torch.no_grad():
        read = model(golden["case.n1.pixel_values"], prompt)
    assert (read.hidden - golden["case.n1.hidden"]).abs().max() <= 1e-5
    assert (read.logits - golden["case.n1.action_logits"]).abs().max() <= 1e-5


def test_actions_of_the_original_code_are_reproduced(golden) -> None:
    """Its argmax runs over the whole vocabulary: random weights always give a text token, which decoding clips to the
    top bin. The file does not hold the head's rows of those text tokens, so the tokens, not the logits, are the input
    here: every row that it holds is checked to be of the prompt or of an action."""
    ranges = Range(low=(-1.0,) * 7, high=(2.0,) * 7, mask=(True,) * 6 + (False,))
    text_tokens = torch.full((8, 7), 12345)
    actions = ranges.unnormalize(ActionTokenizer(32000).decode(text_tokens))
    assert (actions - golden["case.n1.greedy_actions"]).abs().max() <= 1e-9
    known = {*golden["case.n1.input_ids"].flatten().tolist(), *range(31744, 32000), 0, 1, 2, SPACE, 32000}
    assert set(golden["token_rows"].tolist()) <= known


def test_missing_unknown_and_misshapen_tensors_are_listed(golden) -> None:
    net, weights = golden_net(), golden_weights(golden)
    weights["surprise"] = torch.zeros(1)
    del weights["projector.fc1.bias"]
    weights["projector.fc2.bias"] = torch.zeros(3)
    with pytest.raises(CheckpointError) as caught:
        load_exact(meta_model(net), weights.items(), ignored(net))
    for part in ("1 missing: projector.fc1.bias", "1 unknown: surprise", "projector.fc2.bias (3,) ≠ (128,)"):
        assert part in caught.value.message


FILM_TENSOR = "vision_backbone.featurizer.blocks.0.scale.weight"


@pytest.mark.parametrize(
    ("name", "of_network", "fix"),
    [
        ("proprio_projector.fc1.weight", True, "no proprio projector: set actor.model.use_proprio=false"),
        ("proprio_projector.fc1.weight", False, "a proprio projector: set actor.model.use_proprio=true"),
        (FILM_TENSOR, True, "no FiLM layers: set actor.model.use_film=false"),
        (FILM_TENSOR, False, "FiLM layers: set actor.model.use_film=true"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_with_the_key_to_change(name, of_network, fix) -> None:
    """A network that has them reads a checkpoint that does not, or the other way round."""
    network: torch.nn.Module = torch.nn.Linear(1, 1, bias=False)
    for part in reversed(name.split(".")[:-1]):
        network = torch.nn.ModuleDict({part: network})
    network = network if of_network else torch.nn.ModuleDict()
    with pytest.raises(CheckpointError) as caught:
        load_exact(network, () if of_network else [(name, torch.zeros(1))], [])
    assert caught.value.remedy == f"the checkpoint has {fix}"


def test_the_7b_has_the_released_tensors() -> None:
    """982 tensors in the released index, 43 of them dead."""
    model = meta_model(OPENVLA_7B)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert len(shapes) == 982 - 43
    assert shapes["vision_backbone.featurizer.pos_embed"] == (1, 256, 1024)
    assert shapes["vision_backbone.featurizer.reg_token"] == (1, 4, 1024)
    assert shapes["vision_backbone.featurizer.blocks.22.ls2.scale_factor"] == (1024,)
    assert shapes["vision_backbone.fused_featurizer.blocks.25.mlp.fc1.weight"] == (4304, 1152)
    assert shapes["projector.fc1.weight"] == (8704, 2176)
    assert shapes["language_model.model.embed_tokens.weight"] == (32064, 4096)
    assert shapes["language_model.lm_head.weight"] == (32064, 4096)


def test_the_7b_takes_the_released_adapters() -> None:
    """878 tensors of 110,828,288 numbers were released; 26 of them belong to dead modules (5 layers of attn_pool, 4 of
    each last block), which makes (524,288 + 570,368 + 607,232) numbers less."""
    model = meta_model(OPENVLA_7B)
    _add_adapters(model, Settings.from_kwargs({"size": "7b", "is_lora": True, "lora_init_weights": False}))
    adapters = [p.numel() for name, p in model.named_parameters() if ".lora_" in name]
    assert len(adapters) == 878 - 26
    assert sum(adapters) == 110_828_288 - 524_288 - 570_368 - 607_232


def test_checkpoints_of_another_architecture_are_named(tmp_path) -> None:
    for config, said in (
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "model_type 'llama'"),
        ({"model_type": "openvla", "timm_model_ids": ["vit_so400m_patch14_siglip_224"]}, "vision towers"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        with pytest.raises(CheckpointError, match=said):
            build_policy(model_path=str(tmp_path), size=None)


def test_a_tokenizer_of_another_family_is_refused(saved) -> None:
    """The last is a tokenizer whose ids are in range but mean other words: nothing else would show it."""
    path = saved[1] / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = values["model"]["vocab"]
    swapped = {**vocabulary, "</s>": vocabulary["<unk>"], "<unk>": vocabulary["</s>"]}
    for said, changed in (("highest id is 1500", {**vocabulary, "new": 1500}), ("</s> are 1 and 0", swapped)):
        path.write_text(json.dumps({**values, "model": {**values["model"], "vocab": changed}}), encoding="utf-8")
        with pytest.raises(CheckpointError, match=said):
            build_policy(**KEYS, model_path=str(saved[1]))
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(CheckpointError, match="29871"):
        PromptTokenizer(path, 32000)


def test_an_unknown_dataset_lists_the_known_ones(saved) -> None:
    with pytest.raises(ConfigError, match="unnorm_key to one of: env"):
        build_policy(**KEYS, model_path=str(saved[1]), unnorm_key="bridge_orig")


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("action_head--150000_checkpoint.pt", "L1 or diffusion"),
        ("noisy_action_projector--1_checkpoint.pt", "diffusion"),
    ],
)
def test_folders_that_token_rl_cannot_start_from(tmp_path, file, reason) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / file).touch()
    with pytest.raises(CheckpointError, match=reason):
        Folder.open(str(tmp_path))


KEYS = {"use_proprio": True, "value_head": True, "policy_setup": "libero", "center_crop": True}


@pytest.fixture
def saved(make, tmp_path):
    """An adapted policy and the folder it was written to, in several files."""
    policy = make(**KEYS, is_lora=True, lora_rank=4, lora_init_weights=False)
    save_folder(policy.parts, tmp_path / "hf", shard_bytes=10**6)
    return policy, tmp_path / "hf"


def test_a_folder_gives_the_same_policy(saved, make, observe, noise) -> None:
    policy, folder = saved
    assert (folder / "model.safetensors.index.json").is_file()
    for size in ("tiny", None):
        again = make(**KEYS, size=size, model_path=str(folder))
        one, two = (p.act(observe(4), noise(4), Sampling()).fields for p in (policy, again))
        assert torch.equal(one["action_tokens"], two["action_tokens"])
        for name in ("actions", "logprobs", "value"):
            torch.testing.assert_close(one[name], two[name], atol=1e-4, rtol=0)


def test_a_folder_may_lie_in_an_installed_package(saved, make, tmp_path, monkeypatch) -> None:
    _, folder = saved
    package = tmp_path / "some_robots"
    package.mkdir()
    (package / "__init__.py").touch()
    folder.rename(package / "arm")
    monkeypatch.syspath_prepend(tmp_path)
    there, same = (make(**KEYS, model_path=path) for path in ("package:some_robots/arm", str(package / "arm")))
    for name, tensor in there.state_dict().items():
        assert torch.equal(tensor, same.state_dict()[name]), name
    with pytest.raises(CheckpointError, match=r"no folder .*some_robots/leg"):
        make(**KEYS, model_path="package:some_robots/leg")


def test_a_second_round_trip_is_exact(saved, make, tmp_path) -> None:
    _, folder = saved
    first = make(**KEYS, model_path=str(folder))
    first.save(tmp_path / "again")
    second = make(**KEYS, model_path=str(tmp_path / "again"))
    assert first.statistics == second.statistics
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name]), name


def test_dead_tensors_are_ignored_and_kept_for_export(saved, make, tmp_path) -> None:
    _, folder = saved
    dead = {
        "vision_backbone.featurizer.blocks.3.attn.qkv.weight": torch.ones(192, 64),
        "vision_backbone.featurizer.norm.weight": torch.ones(64),
        "vision_backbone.fused_featurizer.attn_pool.latent": torch.ones(1, 1, 64),
    }
    save_file(dead, str(folder / "dead.safetensors"))
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    index["weight_map"] |= dict.fromkeys(dead, "dead.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    make(**KEYS, model_path=str(folder)).save(tmp_path / "again")
    assert dead.keys() <= load_file(str(tmp_path / "again" / "model.safetensors")).keys()


def test_the_normalisation_of_pixels_comes_from_the_folder_and_stays_with_it(saved, make, tmp_path) -> None:
    _, folder = saved
    entry = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"tvf_normalize_params": [entry, entry]}), encoding="utf-8"
    )
    make(**KEYS, model_path=str(folder)).save(tmp_path / "again")
    pixels = make(**KEYS, model_path=str(tmp_path / "again")).pixels
    assert pixels.mean.flatten().tolist() == pytest.approx(entry["mean"] * 2)
    assert pixels.std.flatten().tolist() == pytest.approx(entry["std"] * 2)


CONTRADICTIONS = [
    ({"attention": "causal"}, "attention"),
    ({"stop_token": False}, "stop_token"),
    ({"num_action_chunks": 4}, "num_action_chunks"),
    ({"use_proprio": False}, "proprio_dim"),
    ({"num_images_in_input": 2}, "num_images"),
    ({"hidden_size": 64}, "hidden_size"),
    ({"image_size": 32}, "image_size"),
    ({"use_film": True}, "film"),
    ({"size": "7b"}, "featurizer"),
    ({"center_crop": False}, "center_crop"),
    ({"image_preset": "oft_libero"}, "image_preset"),
    ({"policy_setup": "bridge"}, "policy_setup"),
    ({"unnorm_key": "other"}, "unnorm_key"),
]


@pytest.mark.parametrize(("keys", "named"), CONTRADICTIONS)
def test_keys_that_contradict_the_checkpoint(saved, keys, named) -> None:
    with pytest.raises(ConfigError, match=named):
        build_policy(**{**KEYS, **keys}, model_path=str(saved[1]))


def test_a_proprio_projector_that_several_gpus_wrote(saved, make, observe, noise) -> None:
    policy, folder = saved
    file = next(folder.glob("proprio_projector--*.pt"))
    values = torch.load(file, weights_only=True)
    torch.save({f"module.{name}": tensor for name, tensor in values.items()}, file)
    again = make(**KEYS, model_path=str(folder))
    one, two = (p.act(observe(2), noise(2), Sampling()).fields["logprobs"] for p in (policy, again))
    torch.testing.assert_close(one, two, atol=1e-4, rtol=0)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=file.name):
        build_policy(**KEYS, model_path=str(folder))


def test_statistics_by_name_with_and_without_suffix(saved) -> None:
    folder = saved[1]
    block = {"q01": [0.0] * 7, "q99": [1.0] * 7, "mask": [True] * 6 + [False]}
    both = {"libero_10_no_noops": {"action": block}, "libero_goal_no_noops": {"action": block}}
    (folder / "dataset_statistics.json").write_text(json.dumps(both), encoding="utf-8")
    policy = build_policy(**KEYS, model_path=str(folder), unnorm_key="libero_10")
    assert policy.statistics.name == "libero_10_no_noops"
    assert policy.statistics.action == Range((0.0,) * 7, (1.0,) * 7, (True,) * 6 + (False,))
    with pytest.raises(ConfigError, match="libero_goal_no_noops"):
        build_policy(**KEYS, model_path=str(folder))


def test_state_is_normalised_by_the_statistics(saved, make, observe, noise) -> None:
    folder = saved[1]
    action = {"q01": [-1.0] * 7, "q99": [1.0] * 7}
    proprio = {"q01": [0.0] * 8, "q99": [4.0] * 8}
    (folder / "dataset_statistics.json").write_text(
        json.dumps({"d": {"action": action, "proprio": proprio}}), encoding="utf-8"
    )
    policy = make(**KEYS, model_path=str(folder))
    assert policy._proprio({"state": torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0, 9.0, -9.0, 2.0]])})[
        0
    ].tolist() == pytest.approx([-1.0, -0.5, 0.0, 0.5, 1.0, 1.0, -1.0, 0.0])


@pytest.mark.parametrize("file", ["config.json", "policy.json", "dataset_statistics.json", "tokenizer.json"])
def test_damaged_files_are_named(saved, file) -> None:
    (saved[1] / file).write_text('{"cut of', encoding="utf-8")
    with pytest.raises(CheckpointError, match=file):
        build_policy(**KEYS, model_path=str(saved[1]))


def test_a_damaged_or_missing_weight_file_is_named(saved) -> None:
    shard = sorted(saved[1].glob("model-*.safetensors"))[0]
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match=shard.name):
        build_policy(**KEYS, model_path=str(saved[1]))
    shard.unlink()
    with pytest.raises(CheckpointError, match="lacks"):
        build_policy(**KEYS, model_path=str(saved[1]))


def test_nothing_is_overwritten(saved) -> None:
    policy, folder = saved
    with pytest.raises(CheckpointError, match="not empty"):
        policy.save(folder)


def test_sizes_survive_the_sidecar() -> None:
    assert NetConfig.from_dict(json.loads(json.dumps(TINY.to_dict()))) == TINY
