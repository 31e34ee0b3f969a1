"""Folders of released language models: what they hold beside the network's weights, and networks of other kinds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from causal_lm_texts import check_same, make
from foreign import changed, config, in_shards
from safetensors.torch import save_file
from tiny_vision import SIZE, TOWER, WIDTH, image_processor_of, make_folder, tokenizer_of
from transformers import AutoModelForImageTextToText, CLIPVisionConfig, Gemma3Config, LlamaConfig, LlavaNextConfig

from embodied.errors import CheckpointError

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, Path]:
    """A network with a head of its own, and one whose head is tied to the embedding."""
    place = tmp_path_factory.mktemp("sources")
    for kind in ("llama", "qwen2"):
        make(kind).save(place / kind)
    return {kind: place / kind for kind in ("llama", "qwen2")}


@pytest.fixture
def folder(sources, tmp_path) -> Path:
    return Path(shutil.copytree(sources["llama"], tmp_path / "llama"))


@pytest.fixture
def tied(sources, tmp_path) -> Path:
    return Path(shutil.copytree(sources["qwen2"], tmp_path / "qwen2"))


def with_tensor(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda state: state.update({name: tensor})


def third(state: dict[str, torch.Tensor]) -> None:
    state.update({n.replace("layers.1", "layers.2"): t.clone() for n, t in state.items() if "layers.1." in n})


BUFFERS: dict[str, torch.Tensor] = {
    "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
    "model.layers.0.self_attn.rotary_emb.cos_cached": torch.ones(4),
    "model.rotary_emb.inv_freq": torch.ones(4),
    "model.position_ids": torch.arange(4),
    "model.causal_mask": torch.full((4, 4), -torch.inf),
    "model.layers.1.self_attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.uint8),
    "model.layers.1.self_attn.masked_bias": torch.tensor(-1e4),
    "model.mtp_layers.0.mlp.up_proj.weight": torch.ones(4, 4),
    "mtp.fc.weight": torch.ones(4, 4),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_what_is_no_weight_of_the_network_is_left_out(folder, sources, name):
    """As older programs, and networks that guess further tokens, have it in released folders."""
    changed(folder, with_tensor(name, BUFFERS[name]))
    check_same(folder, sources["llama"])


def test_layers_that_guess_further_tokens_are_left_out_where_the_configuration_says_them(folder, sources):
    changed(folder, third)
    with pytest.raises(CheckpointError, match="has 9 that the network does not know"):
        make(model_path=str(folder))
    config(folder, num_nextn_predict_layers=1)
    check_same(folder, sources["llama"])


def test_a_head_that_is_the_embedding_may_be_saved_twice(tied, sources):
    changed(tied, lambda state: state.update({HEAD: state[EMBEDDING].clone()}))
    check_same(tied, sources["qwen2"])


def test_what_else_lies_in_a_released_folder_is_left_alone(folder, sources):
    for name in ("training_args.bin", "optimizer.pt", "rng_state.pth", "original/consolidated.00.pth"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"\x80\x02no tensors")
    in_shards(folder)
    for name in ("consolidated.safetensors", "optimizer-00001-of-00002.safetensors"):
        save_file({EMBEDDING: torch.ones(2)}, folder / name)
    check_same(folder, sources["llama"])


def other_kinds() -> dict[str, Any]:
    text = {**WIDTH, "num_key_value_heads": 2, "vocab_size": len(tokenizer_of("llava")), "max_position_embeddings": 256}
    small = {"head_dim": 8, "query_pre_attn_scalar": 8, "layer_types": ["sliding_attention", "full_attention"]}
    return {
        "gemma3": Gemma3Config(text_config={**text, **small}, vision_config=TOWER, mm_tokens_per_image=4),
        "llava_next": LlavaNextConfig(
            text_config=LlamaConfig(**text), vision_config=CLIPVisionConfig(**TOWER, projection_dim=16)
        ),
    }


@pytest.mark.parametrize(
    ("kind", "why"), [("gemma3", "see each other in both directions"), ("llava_next", "depends on its shape")]
)
def test_a_network_that_reads_pictures_in_another_way_is_refused_with_the_reason(tmp_path, kind, why):
    AutoModelForImageTextToText.from_config(other_kinds()[kind]).save_pretrained(tmp_path)
    tokenizer_of("llava").save_pretrained(tmp_path)
    image_processor_of("llava").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=f"is a network of {kind} that reads pictures.*{why}") as raised:
        make(model_path=str(tmp_path))
    assert "or of a language model alone" in raised.value.remedy


@pytest.mark.parametrize("kind", ["idefics3", "smolvlm", "llava"])
def test_positions_of_a_vision_tower_are_left_out(tmp_path, kind):
    source = make_folder(kind, tmp_path / "source")
    shutil.copytree(source, tmp_path / "copy")
    tower = "vision_tower.vision_model" if kind == "llava" else "model.vision_model"
    changed(tmp_path / "copy", with_tensor(f"{tower}.embeddings.position_ids", torch.arange(SIZE)[None]))
    check_same(tmp_path / "copy", source)
