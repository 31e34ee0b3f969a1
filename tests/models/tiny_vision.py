"""Small vision-language models at random, as folders, with transformers' own processors for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from embodied.models.causal_lm.settings import CHARACTERS
from embodied.models.causal_lm.text.characters import character_tokenizer
from transformers import (
    AutoModelForImageTextToText,
    CLIPVisionConfig,
    Idefics3Config,
    Idefics3Processor,
    InternVLConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaProcessor,
    SmolVLMConfig,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

SIZE, PATCH = 32, 8
WIDTH = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "initializer_range": 0.25,
}  # fmt: skip
TOWER = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": SIZE,
    "patch_size": PATCH,
}  # fmt: skip
TOKENS = (
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    "<img>",
    "</img>",
    "<IMG_CONTEXT>",
)
SMOL = (
    "{% for message in messages %}{{ message['role'] }}{% if message['content'][0]['type'] == 'image' %}:{% else %}: "
    "{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
LLAVA = (
    "{% for message in messages %}{{ message['role'] }}: {% for line in message['content'] | "
    "selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}{% for line in message['content'] | "
    "selectattr('type', 'equalto', 'text') %}{{ line['text'] }}{% endfor %} {% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
INTERN = SMOL.replace("<image>", "<IMG_CONTEXT>")
TEMPLATES = {"llava": LLAVA, "idefics3": SMOL, "smolvlm": SMOL, "internvl": INTERN}


def tokenizer_of(kind: str) -> Any:
    tokenizer = character_tokenizer(CHARACTERS)
    tokenizer.add_special_tokens({"additional_special_tokens": [*TOKENS]})
    tokenizer.chat_template = TEMPLATES[kind]
    return tokenizer


def config_of(kind: str, tokenizer: Any) -> Any:
    token = tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>" if kind == "internvl" else "<image>")
    ids = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1}
    tied = {"tie_word_embeddings": kind == "idefics3"}
    text = LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=256, **tied, **ids, **WIDTH)
    common = {"image_token_id": token, "text_config": text, **tied, **ids}
    if kind == "llava":
        return LlavaConfig(vision_config=CLIPVisionConfig(**TOWER, projection_dim=16), **common)
    if kind == "internvl":
        vision = {"model_type": "internvl_vision", **TOWER, "image_size": [SIZE] * 2, "patch_size": [PATCH] * 2}
        return InternVLConfig(vision_config=vision, image_seq_length=4, **common)
    maker = Idefics3Config if kind == "idefics3" else SmolVLMConfig
    return maker(vision_config=TOWER, scale_factor=2, **common)


def image_processor_of(kind: str) -> Any:
    if kind in ("idefics3", "smolvlm"):
        square = {"longest_edge": SIZE}
        return Idefics3ImageProcessorPil(size=square, max_image_size=square, do_image_splitting=False)
    sides = {"height": SIZE, "width": SIZE}
    return CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size=sides)


def processor_of(kind: str, tokenizer: Any) -> Any:
    """None for InternVL, whose processor needs torchvision."""
    if kind == "internvl":
        return None
    if kind == "llava":
        keys = {"patch_size": PATCH, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
        return LlavaProcessor(image_processor_of(kind), tokenizer, chat_template=LLAVA, **keys)
    seen = (SIZE // PATCH) ** 2 // 4
    return Idefics3Processor(image_processor_of(kind), tokenizer, image_seq_len=seen, chat_template=SMOL)


def make_folder(kind: str, folder: Path, seed: int = 0) -> Path:
    """A folder with a network at random, its tokenizer and what its processor needs."""
    tokenizer = tokenizer_of(kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForImageTextToText.from_config(config_of(kind, tokenizer), dtype=torch.float32)
        for name, weight in model.named_parameters():
            if "vision" in name and weight.dim() > 1:
                torch.nn.init.normal_(weight, std=0.2)  # so that other pictures give other features
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 1, 0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    image_processor_of(kind).save_pretrained(folder)
    return folder
