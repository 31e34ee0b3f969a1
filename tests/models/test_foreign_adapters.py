"""Adapters of other people: read with the numbers of peft, or refused with what helps."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign
import peft
import pytest
import torch
from causal_lm_texts import make
from foreign import changed, filled
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from embodied.errors import CheckpointError

FILE, CONFIG = "adapter_model.safetensors", "adapter_config.json"
Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
KEYS = {"is_lora": True, "lora_rank": 4, "lora_alpha": 4, "lora_target_modules": ["q_proj", "v_proj"]}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("bases") / "base"
    make("llama").save(path)
    return str(path)


def saved(base: str, folder: Path, **fields: Any) -> Any:
    """Writes an adapter as peft does; gives the adapted network."""
    usual = {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    torch.manual_seed(1)
    made = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), peft.LoraConfig(**{**usual, **fields}))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "modules_to_save" in name:
                parameter.mul_(1.5)
    made.save_pretrained(str(folder))
    return made.eval()


def said(folder: Path, **fields: Any) -> None:
    """Other fields of its configuration; None takes one away."""
    values = {**json.loads((folder / CONFIG).read_text(encoding="utf-8")), **fields}
    kept = {name: value for name, value in values.items() if value is not None or name not in fields}
    (folder / CONFIG).write_text(json.dumps(kept), encoding="utf-8")


@torch.no_grad()
def check_same(network: Any, base: str, folder: Path, **keys: Any) -> None:
    policy = make(model_path=base, lora_path=str(folder), **{**KEYS, **keys})
    policy.network.set_attn_implementation("eager")
    ids = torch.arange(12).unsqueeze(0)
    found, wanted = (one(input_ids=ids, use_cache=False).logits for one in (policy.network, network))
    plain = AutoModelForCausalLM.from_pretrained(base)(input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
    assert (plain - wanted).abs().max() > 0.1, "the adapter changes something"


READ: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "rsLoRA": ({"use_rslora": True}, {"lora_use_rslora": True}),
    "ranks": ({"rank_pattern": {"v_proj": 2}}, {"lora_rank_pattern": {"v_proj": 2}}),
    "scales": ({"alpha_pattern": {"v_proj": 2}}, {"lora_alpha_pattern": {"v_proj": 2}}),
    "a head in full": ({"modules_to_save": ["lm_head"]}, {"lora_modules_to_save": ["lm_head"]}),
    "a head in full that stays": ({"modules_to_save": ["lm_head"]}, {}),
    "fan in, fan out": ({"fan_in_fan_out": True}, {}),
    "the head": (
        {"target_modules": ["q_proj", "lm_head"]}, {"lora_target_modules": ["q_proj", "lm_head"]},
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", READ)
def test_an_adapter_has_the_numbers_of_peft(base, tmp_path, case):
    fields, keys = READ[case]
    check_same(saved(base, tmp_path, **fields), base, tmp_path, **keys)


def test_other_files_and_names_have_the_same_numbers(base, tmp_path):
    network = saved(base, tmp_path)
    foreign.renamed_in(tmp_path, FILE, lambda name: f"module._orig_mod.{name}")
    check_same(network, base, tmp_path)
    foreign.renamed_in(tmp_path, FILE, lambda name: name.replace("lora_A.weight", "lora_A.default.weight"))
    check_same(network, base, tmp_path)
    torch.save(load_file(tmp_path / FILE), tmp_path / "adapter_model.bin")
    (tmp_path / FILE).unlink()
    check_same(network, base, tmp_path)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "DoRA": ({"use_dora": True}, "use_dora 'True'.*DoRA scales", "merge_and_unload"),
    "biases": ({"bias": "lora_only"}, "bias 'lora_only'", "merge_and_unload"),
    "biases of adapters": ({"lora_bias": True}, "lora_bias 'True'", "merge_and_unload"),
    "tokens": ({"trainable_token_indices": [1, 2]}, "trainable_token_indices", "merge_and_unload"),
    "rsLoRA unsaid": ({"use_rslora": True}, "lora_use_rslora True", "lora_use_rslora=True"),
    "a scale": ({"lora_alpha": 16}, "lora_alpha 16", "lora_alpha=16"),
    "ranks unsaid": ({"rank_pattern": {"v_proj": 2}}, "4 of another shape", "lora_rank_pattern={v_proj:2}"),
    "scales unsaid": ({"alpha_pattern": {"v_proj": 2}}, "lora_alpha_pattern", "lora_alpha_pattern={v_proj:2}"),
    "a rank": ({"r": 8, "lora_alpha": 4}, "8 of another shape", "set actor.model.lora_rank=8"),
    "fewer layers": ({"target_modules": ["q_proj"]}, "4 missing", "lora_target_modules=[q_proj]"),
    "more layers": ({"target_modules": ["q_proj", "v_proj", "up_proj"]}, "4 unknown", "[q_proj,up_proj,v_proj]"),
    "some layers": ({"layers_to_transform": [0]}, "4 missing", "merge_and_unload"),
    "the embedding": ({"target_modules": ["q_proj", "v_proj", "embed_tokens"]}, "lora_embedding_A", "merge_and_unload"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_here_is_refused_with_what_helps(base, tmp_path, case):
    fields, message, fix = REFUSED[case]
    saved(base, tmp_path, **fields)
    with pytest.raises(CheckpointError, match=message) as raised:
        make(model_path=base, lora_path=str(tmp_path), **KEYS)
    assert fix in raised.value.remedy


@pytest.mark.filterwarnings("ignore")
def test_the_lines_that_merge_an_adapter_make_a_network(base, tmp_path):
    """Those of the fix, run as they stand there."""
    network = saved(base, tmp_path / "adapter", use_dora=True)
    with pytest.raises(CheckpointError) as raised:
        make(model_path=base, lora_path=str(tmp_path / "adapter"), **KEYS)
    found = re.search(r'python -c "(.*?)";', raised.value.remedy)
    assert found is not None
    exec(found[1].replace("'DIR'", repr(str(tmp_path / "merged"))))
    for file in Path(base).glob("tokenizer*"):
        (tmp_path / "merged" / file.name).write_bytes(file.read_bytes())
    merged, ids = make(model_path=str(tmp_path / "merged")).network, torch.arange(12).unsqueeze(0)
    merged.set_attn_implementation("eager")
    with torch.no_grad():
        one, two = (each(input_ids=ids, use_cache=False).logits for each in (merged, network))
    torch.testing.assert_close(one, two, atol=1e-4, rtol=0)


def wide(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([t, t], 1) if "lora_A" in name else t for name, t in state.items()}


def tower(state: dict[str, torch.Tensor]) -> None:
    state["base_model.model.vision_tower.layers.0.q_proj.lora_A.weight"] = torch.ones(4, 4)


BROKEN: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a pointer": (lambda f: (f / FILE).write_bytes(foreign.POINTER), f"{FILE} is damaged.*LFS", "git lfs pull"),
    "no words but a pointer": (lambda f: (f / CONFIG).write_bytes(foreign.POINTER), f"{CONFIG} is damaged", "git lfs"),
    "no words": (lambda f: (f / CONFIG).unlink(), f"has no {CONFIG}", "copy adapter_config.json"),
    "no file": (lambda f: (f / FILE).unlink(), f"no {FILE}", "peft adapter folder"),
    "cut": (lambda f: (f / FILE).write_bytes((f / FILE).read_bytes()[:-9]), f"{FILE} is damaged", "again"),
    "NaN": (lambda f: changed(f, filled(Q, float("nan")), FILE), f"{FILE}: 1 of the 128 .* {Q} are NaN", "earlier"),
    "infinity": (lambda f: changed(f, filled(Q, float("inf")), FILE), f"numbers of {Q} are infinite", "earlier"),
    "another network": (lambda f: changed(f, wide, FILE), "4 of another shape.*it was trained on", "other sizes"),
    "a tower": (lambda f: changed(f, tower, FILE), "1 unknown .vision_tower.layers.0.q_proj", "merge_and_unload"),
    "PiSSA": (lambda f: said(f, init_lora_weights="pissa"), "init_lora_weights 'pissa'", "merge_and_unload"),
    "no scale": (lambda f: said(f, lora_alpha=None), "lora_alpha 8", "lora_alpha=8"),
    "another method": (lambda f: said(f, peft_type="IA3"), "peft_type 'IA3'", "merge"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_adapter_is_refused(base, tmp_path, case):
    saved(base, tmp_path)
    change, message, fix = BROKEN[case]
    change(tmp_path)
    with pytest.raises(CheckpointError, match=message) as raised:
        make(model_path=base, lora_path=str(tmp_path), **KEYS)
    assert fix in raised.value.remedy
