"""FiLM: the instruction modulates the vision towers (OFT+), and the file that holds such towers."""

from __future__ import annotations

import pytest
import torch
from embodied.models.openvla_oft import build_policy
from embodied.models.openvla_oft.files.checkpoint import load_exact
from embodied.models.openvla_oft.files.film import film_file, read_film
from embodied.models.openvla_oft.network.model import Inputs

from embodied.errors import CheckpointError, ConfigError
from embodied.testing import check_policy
from embodied.types import Sampling

FILE = "vision_backbone--0_checkpoint.pt"


@pytest.fixture
def folder(make, tmp_path):
    policy = make(use_film=True, num_images_in_input=2)
    policy.save(tmp_path / "hf")
    return policy, tmp_path / "hf"


@pytest.mark.parametrize(
    "keys", [{}, {"num_images_in_input": 2, "gradient_checkpointing": True}, {"is_lora": True, "lora_rank": 4}]
)
def test_it_satisfies_the_protocol(make, env, keys) -> None:
    check_policy(make(use_film=True, **keys), env)


def test_without_modulation_nothing_changes(make, observe, noise) -> None:
    plain, film = make(), make(use_film=True)
    with torch.no_grad():
        for name, parameter in film.named_parameters():
            if ".scale." in name or ".shift." in name:
                parameter.zero_()
    one, two = (p.act(observe(2), noise(2), Sampling()).fields["logprobs"] for p in (plain, film))
    assert torch.equal(one, two)


def test_a_block_against_the_formula(make) -> None:
    """x + attention, then x·(1 + scale(l)) + shift(l), then + MLP."""
    block = make(use_film=True).model.vision_backbone.featurizer.blocks[0]
    x, language = torch.randn(2, 5, 64), torch.randn(2, 128)
    with torch.no_grad():
        y = x + block.ls1(block.attn(block.norm1(x)))
        y = y * (1 + block.scale(language)[:, None]) + block.shift(language)[:, None]
        assert torch.equal(block(x, language), y + block.ls2(block.mlp(block.norm2(y))))


@pytest.mark.parametrize("stop", [True, False])
def test_the_instruction_is_the_mean_of_its_tokens(make, stop) -> None:
    """BOS, prompt and stop token; padding does not count."""
    policy = make(use_film=True, stop_token=stop)
    model, table = policy.model, policy.model.language_model.model.embed_tokens.weight
    got = model._instruction(Inputs(torch.empty(0), policy.prompts, policy.present))
    for row, ids, present in zip(got, policy.prompts, policy.present, strict=True):
        own = [*ids[present].tolist(), *([policy.tokenizer.eos_id] if stop else [])]
        torch.testing.assert_close(row, table[own].mean(0), atol=1e-6, rtol=0)


def test_the_file_has_the_released_layout_and_loads_back(folder, make, observe, noise) -> None:
    policy, path = folder
    names = torch.load(path / FILE, weights_only=True).keys()
    assert "vision_backbone.featurizer.blocks.0.block.attn.qkv.weight" in names
    assert "vision_backbone.featurizer.blocks.0.block.ls1.scale_factor" in names
    assert "vision_backbone.fused_featurizer.blocks.2.scale.weight" in names
    assert "vision_backbone.featurizer.patch_embed.proj.weight" in names
    again = make(use_film=True, num_images_in_input=2, model_path=str(path))
    one, two = (p.act(observe(2), noise(2), Sampling()).fields["logprobs"] for p in (policy, again))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=0)


def test_ddp_prefixes_adapters_and_dead_blocks_are_understood(folder, make) -> None:
    """What OFT writes during training: ``module.``, unmerged LoRA of scale 16/32, and blocks that are never run."""
    policy, path = folder
    values = torch.load(path / FILE, weights_only=True)
    a, b = torch.randn(32, 64), torch.randn(192, 32)
    conv_a, conv_b = torch.randn(32, 3, 8, 8), torch.randn(64, 32, 1, 1)
    layers = {
        "vision_backbone.featurizer.blocks.0.block.attn.qkv": (a, b),
        "vision_backbone.fused_featurizer.patch_embed.proj": (conv_a, conv_b),
    }
    for layer, (down, up) in layers.items():
        for kind in ("weight", "bias"):
            values[f"{layer}.base_layer.{kind}"] = values.pop(f"{layer}.{kind}")
        values[f"{layer}.lora_A.default.weight"], values[f"{layer}.lora_B.default.weight"] = down, up
    values["vision_backbone.featurizer.blocks.3.scale.weight"] = torch.zeros(64, 128)
    torch.save({f"module.{name}": tensor for name, tensor in values.items()}, path / FILE)
    again = make(use_film=True, num_images_in_input=2, model_path=str(path)).model.vision_backbone
    before = policy.model.vision_backbone
    qkv = again.featurizer.blocks[0].attn.qkv.weight - before.featurizer.blocks[0].attn.qkv.weight
    torch.testing.assert_close(qkv, 0.5 * b @ a, atol=1e-5, rtol=0)
    patch = again.fused_featurizer.patch_embed.proj.weight - before.fused_featurizer.patch_embed.proj.weight
    wanted = 0.5 * torch.einsum("or,rchw->ochw", conv_b[..., 0, 0], conv_a)
    torch.testing.assert_close(patch, wanted, atol=1e-5, rtol=0)


def test_names_there_and_back() -> None:
    names = [f"vision_backbone.featurizer.blocks.{n}" for n in ("0.scale.weight", "10.shift.bias", "1.mlp.fc1.weight")]
    names += ["vision_backbone.featurizer.pos_embed"]
    assert list(film_file(dict.fromkeys(names, torch.zeros(1))))[2].endswith("blocks.1.block.mlp.fc1.weight")


@pytest.mark.parametrize(("rank", "scale"), [(1, 1.0), (4, 1.0), (16, 1.0), (17, 16 / 17), (64, 0.25)])
def test_the_scale_of_adapters_by_their_rank(tmp_path, rank, scale) -> None:
    """OFT's ``lora_alpha`` is min(rank, 16), so that adapters up to rank 16 are added as they are."""
    layer, random = "vision_backbone.featurizer.blocks.0.attn.qkv", torch.Generator().manual_seed(rank)
    weight, a, b = (torch.randn(size, generator=random) for size in ((192, 64), (rank, 64), (192, rank)))
    names = (f"{layer}.base_layer.weight", f"{layer}.lora_A.default.weight", f"{layer}.lora_B.default.weight")
    torch.save(dict(zip(names, (weight, a, b), strict=True)), tmp_path / FILE)
    torch.testing.assert_close(read_film(tmp_path / FILE)[f"{layer}.weight"], weight + scale * (b @ a))


def test_film_that_the_folder_does_not_have_or_that_is_not_asked_for(folder, make) -> None:
    with pytest.raises(ConfigError, match="film"):  # the sidecar says so
        build_policy(model_path=str(folder[1]), num_images_in_input=2)
    plain, film = make().model, make(use_film=True).model
    for model, tensors, fix in ((film, plain, "use_film=false"), (plain, film, "use_film=true")):
        with pytest.raises(CheckpointError, match=fix):
            load_exact(model, tensors.state_dict().items(), [])


def test_a_damaged_file_is_named(folder) -> None:
    content = (folder[1] / FILE).read_bytes()
    (folder[1] / FILE).write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="vision_backbone--0"):
        read_film(folder[1] / FILE)


def test_film_is_trained_in_full_beside_adapters(make) -> None:
    policy = make(use_film=True, is_lora=True, lora_rank=4)
    trained = {name for name, p in policy.named_parameters() if p.requires_grad}
    assert "model.vision_backbone.featurizer.blocks.0.scale.weight" in trained
    assert not any("lora_" in name and (".scale" in name or ".shift" in name) for name in trained)
