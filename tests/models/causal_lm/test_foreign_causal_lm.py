"""Language models of other people: names that wrappers gave, broken contents, and folders that do not fit."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch
from causal_lm_texts import check_same, make
from embodied.models.causal_lm import build_reward_model
from foreign import PREFIXES, WITHIN, as_bin, changed, config, filled, in_shards, renamed
from safetensors.torch import load_file
from tiny_vision import make_folder
from transformers import AutoConfig, AutoModelForSequenceClassification

from embodied.errors import CheckpointError, DamagedCheckpointError
from embodied.weights.listing import WHOLE

UP, EMBEDDING, HEAD = "model.layers.1.mlp.up_proj.weight", "model.embed_tokens.weight", "lm_head.weight"


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


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_prefix_of_a_wrapper_is_left_out(sources, tmp_path, kind, prefix):
    shutil.copytree(sources[kind], tmp_path / "copy")
    renamed(tmp_path / "copy", lambda name: prefix + name)
    check_same(tmp_path / "copy", sources[kind])


@pytest.mark.parametrize("within", WITHIN)
def test_wrappers_within_names_are_left_out(folder, sources, within):
    renamed(folder, WITHIN[within])
    check_same(folder, sources["llama"])


def test_the_prefix_of_the_base_model_alone_is_added(tied, sources):
    """As transformers does it for a network that was saved without its head."""
    renamed(tied, lambda name: name.removeprefix("model."))
    check_same(tied, sources["qwen2"])


def test_wrapped_names_in_several_files_and_in_16_bits(folder, sources):
    renamed(folder, lambda name: f"module.{name}")
    in_shards(folder)
    check_same(folder, sources["llama"], precision="bf16", is_lora=True)


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
@pytest.mark.parametrize("prefix", ["", "module._orig_mod."])
def test_files_of_torch_are_read(folder, sources, prefix, options):
    as_bin(folder, prefix, **options)
    check_same(folder, sources["llama"])


def test_a_value_head_of_another_program_is_left_out(folder, sources):
    changed(folder, lambda state: state.update({"v_head.summary.weight": torch.ones(1, 32)}))
    check_same(folder, sources["llama"])


def test_safetensors_are_taken_where_there_are_two_formats(folder, sources):
    (folder / "pytorch_model.bin").write_bytes(foreign.POINTER)
    (folder / "consolidated.00.pth").write_bytes(b"")
    check_same(folder, sources["llama"])


def test_a_snapshot_of_the_hub_is_read(folder, sources, tmp_path):
    """Links to ``blobs``, and files that nobody may write."""
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "1", tmp_path / "models--x" / "blobs"
    shutil.copytree(folder, snapshot)
    blobs.mkdir()
    for number, file in enumerate(sorted(snapshot.iterdir())):
        shutil.move(file, blobs / str(number))
        (blobs / str(number)).chmod(0o444)
        file.symlink_to(f"../../blobs/{number}")
    check_same(snapshot, sources["llama"])


class Command:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("exit 1",)


def half(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in state.items() if "layers.1." not in name}


def third(state: dict[str, torch.Tensor]) -> None:
    state.update({n.replace("layers.1", "layers.2"): t.clone() for n, t in state.items() if "layers.1." in n})


def stored_as(dtype: torch.dtype) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda state: state.update({UP: state[UP].to(dtype)})


def with_tensor(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda state: state.update({name: tensor})


def without(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda state: state.__delitem__(name)


def padded(state: dict[str, torch.Tensor]) -> None:
    state.update({name: torch.cat([state[name], torch.ones(8, 32)]) for name in (EMBEDDING, HEAD)})


LORA = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
CONTENTS: dict[str, tuple[Callable[[dict[str, torch.Tensor]], Any], str, str]] = {
    "NaN": (filled(UP, float("nan")), rf"{WHOLE}: 1 of the 1536 numbers of {UP} are NaN", "earlier checkpoint"),
    "infinity": (filled(UP, float("-inf")), rf"{WHOLE}: 1 of the 1536 numbers of {UP} are infinite", "earlier"),
    "NaN in a norm": (filled("model.norm.weight", float("nan")), r"1 of the 32 numbers of model\.norm\.weight", ""),
    "an empty embedding": (filled(EMBEDDING, 0.0, None), "all numbers of model.embed_tokens.weight are 0", ""),
    "an empty head": (filled(HEAD, 0.0, None), "all numbers of lm_head.weight are 0", ""),
    "a layer too many": (third, "does not know: model.layers.2", "num_hidden_layers 2, and the files have"),
    "a layer too few": (half, "lacks 9 weights: model.layers.1", "num_hidden_layers 2, and the files have 1 layers"),
    "another name": (
        lambda state: state.update({UP.replace("up_proj", "up"): state.pop(UP)}),
        "lacks 1 weights: model.layers.1.mlp.up_proj.weight; it has 1 that the network does not know",
        "up_proj.weight is perhaps model.layers.1.mlp.up.weight",
    ),
    "a prefix of some": (
        lambda state: {("new." if "layers.0" in name else "") + name: tensor for name, tensor in state.items()},
        "lacks 9 weights", "take 'new.' from the beginning of their names",
    ),
    "names of another architecture": (
        lambda state: {name.replace("model.layers", "transformer.h"): tensor for name, tensor in state.items()},
        "lacks 18 weights", "is perhaps transformer.h.0.",
    ),
    "a larger vocabulary": (padded, r"\[65, 32\] where \[57, 32\] belongs", "override_config.vocab_size=65"),
    "a transposed weight": (
        lambda state: state.update({UP: state[UP].T.contiguous()}), r"\[32, 48\] where \[48, 32\]", "other sizes",
    ),
    "ZeRO-3": (with_tensor(UP, torch.zeros(0)), r"\[0\] where", "zero_to_fp32.py"),
    "no head": (without(HEAD), "lacks 1 weights: lm_head.weight", "tie_word_embeddings=true"),
    "a lack": (without(UP), f"lacks 1 weights: {UP}", "all of the network's weights"),
    "a classifier": (with_tensor("score.weight", torch.ones(1, 32)), "does not know: score.weight", "architecture"),
    "fp8": (stored_as(torch.float8_e4m3fn), "stored as F8_E4M3", "quantization_bit"),
    "int8": (stored_as(torch.int8), "stored as I8", "quantization_bit"),
    "GPTQ": (with_tensor("model.layers.0.mlp.qweight", torch.ones(2, 2, dtype=torch.int32)), "GPTQ or AWQ", "bf16"),
    "bitsandbytes": (with_tensor(f"{UP}.absmax", torch.ones(2)), "bitsandbytes, 4 bits", "bf16"),
    "adapters that are not merged": (with_tensor(LORA, torch.ones(2, 2)), "1 tensors of adapters", "merge_and_unload"),
    "a module of peft": (
        with_tensor("base_model.model.lm_head.modules_to_save.default.weight", torch.ones(2)), "of adapters",
        "lora_path=DIR",
    ),
    "FSDP's flat tensors": (with_tensor("layers.0._flat_param", torch.ones(9)), "laid end to end", "FULL_STATE_DICT"),
    "a name twice": (with_tensor(f"_orig_mod.{UP}", torch.ones(2)), f"two tensors for {UP}", "remove one"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTENTS)
def test_wrong_contents_are_named_with_a_fix_of_their_own(folder, case):
    change, said, fix = CONTENTS[case]
    changed(folder, change)
    with pytest.raises(CheckpointError, match=said) as raised:
        make(model_path=str(folder))
    assert fix in raised.value.remedy
    assert "download it again" not in raised.value.remedy


@pytest.mark.parametrize("case", ["NaN", "another name", "a lack"])
def test_they_are_found_in_several_files_too(folder, case):
    change, said, _ = CONTENTS[case]
    changed(folder, change)
    in_shards(folder)
    with pytest.raises(CheckpointError, match=said.replace(WHOLE, r"model-0000\d-of-00002.safetensors")):
        make(model_path=str(folder))


def test_wrong_contents_of_a_file_of_torch(folder):
    changed(folder, filled(UP, float("nan")))
    as_bin(folder)
    with pytest.raises(CheckpointError, match=rf"pytorch_model\.bin: 1 of the 1536 numbers of {UP} are NaN"):
        make(model_path=str(folder))
    torch.save({"a": Command()}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"it names (posix|nt)\.system, which is not run"):
        make(model_path=str(folder))
    torch.save([torch.ones(2)], folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="it is a list"):
        make(model_path=str(folder))
    (folder / "pytorch_model.bin").write_bytes(b"no pickle at all")
    with pytest.raises(DamagedCheckpointError, match=r"pytorch_model\.bin is damaged"):
        make(model_path=str(folder))


def test_zeros_of_an_inner_layer_are_a_usual_beginning(folder):
    changed(folder, filled(UP, 0.0, None))
    assert not make(model_path=str(folder)).network.get_parameter(UP).any()


def test_numbers_that_a_format_cannot_hold(folder):
    changed(folder, filled(UP, 1e6))
    with pytest.raises(CheckpointError, match=f"{UP} has numbers up to 1e.06, too large for torch.float16") as raised:
        make(model_path=str(folder), precision="fp16", is_lora=True)
    assert "precision=bf16" in raised.value.remedy


def test_a_tied_head_that_is_another(tied, sources):
    changed(tied, lambda state: state.update({HEAD: state[EMBEDDING].clone()}))
    check_same(tied, sources["qwen2"])
    changed(tied, lambda state: state.update({HEAD: 2 * state[EMBEDDING]}))
    with pytest.raises(CheckpointError, match="is not the embedding") as raised:
        make(model_path=str(tied))
    assert "tie_word_embeddings=false" in raised.value.remedy
    policy = make(model_path=str(tied), override_config={"tie_word_embeddings": False})
    assert torch.equal(policy.network.lm_head.weight, 2 * policy.network.model.embed_tokens.weight)


def test_a_configuration_that_says_quantised(folder):
    config(folder, quantization_config={"quant_method": "fp8"})
    with pytest.raises(CheckpointError, match="quant_method 'fp8'"):
        make(model_path=str(folder))


JSONS = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


@pytest.mark.parametrize("name", [*JSONS, WHOLE])
@pytest.mark.parametrize(
    ("content", "said"),
    [(foreign.POINTER, "pointer of Git LFS"), (b"<!doctype html>", "an HTML page"), (b"", "an empty file"),
     (b'{"a": ', "is damaged"), (b"[]", "is damaged")],
)  # fmt: skip
def test_a_stand_in_for_a_file_is_named(folder, name, content, said):
    (folder / name).write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=said) as raised:
        make(model_path=str(folder))
    assert f"{name} is damaged" in raised.value.message
    assert ("git lfs pull" in raised.value.remedy) == (content == foreign.POINTER)


def test_an_adapter_is_no_network(folder, tmp_path):
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="a network and an adapter of peft"):
        make(model_path=str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"an adapter of peft .* and no network") as raised:
        make(model_path=str(folder))
    assert f"actor.model.lora_path={folder}" in raised.value.remedy


def test_a_reward_model_is_read_in_the_same_way(folder, tmp_path):
    network = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(folder, num_labels=1))
    shutil.copytree(folder, tmp_path / "judge")
    network.save_pretrained(tmp_path / "judge")
    wanted = build_reward_model(str(tmp_path / "judge")).network.state_dict()
    renamed(tmp_path / "judge", lambda name: f"module._orig_mod.{name}")
    found = build_reward_model(str(tmp_path / "judge")).network.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())
    changed(tmp_path / "judge", filled(f"module._orig_mod.{UP}", float("nan")))
    with pytest.raises(CheckpointError, match=r"1 of the 1536 numbers of module\._orig_mod\.model\.layers\.1"):
        build_reward_model(str(tmp_path / "judge"))
    (tmp_path / "judge" / WHOLE).write_bytes(foreign.POINTER)
    with pytest.raises(CheckpointError, match="pointer of Git LFS"):
        build_reward_model(str(tmp_path / "judge"))


@pytest.mark.parametrize("kind", ["llava", "internvl", "smolvlm"])
def test_a_network_that_reads_pictures_is_read_in_the_same_way(tmp_path, kind):
    source = make_folder(kind, tmp_path / "source")
    wrappers = (lambda name: f"module._orig_mod.{name}", lambda name: f"policy.{name}", WITHIN["checkpointed layers"])
    for number, new in enumerate(wrappers):
        folder = Path(shutil.copytree(source, tmp_path / str(number)))
        renamed(folder, new)
        found, wanted = (make(model_path=str(path), max_prompt_tokens=200) for path in (folder, source))
        for one, other in ((found.network, wanted.network), (found.vision.tower, wanted.vision.tower)):
            state = other.state_dict()
            assert all(torch.equal(value, state[name]) for name, value in one.state_dict().items())
    names = sorted(load_file(source / WHOLE))
    language = next(name for name in names if name.endswith("layers.1.mlp.up_proj.weight"))
    tower = next(name for name in names if "vision" in name and name.endswith("weight"))
    for name in (language, tower):
        folder = Path(shutil.copytree(source, tmp_path / name))
        changed(folder, filled(name, float("nan")))
        with pytest.raises(CheckpointError, match=rf"{WHOLE}: .* numbers of {re.escape(name)} are NaN"):
            make(model_path=str(folder), max_prompt_tokens=200)


@pytest.mark.parametrize(("content", "said"), [(foreign.POINTER, "pointer of Git LFS"), (b"", "an empty file")])
def test_a_stand_in_for_a_gguf_file_is_named(tmp_path, content, said):
    pytest.importorskip("gguf")
    (tmp_path / "small.gguf").write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=rf"small\.gguf is damaged: it is .*{said}"):
        make(model_path=str(tmp_path), gguf_file="small.gguf")


def test_a_value_head_that_is_not_finite(tmp_path):
    make(value_head=True).save(tmp_path / "head")
    changed(tmp_path / "head", filled("weight", float("nan")), "value_head.safetensors")
    (tmp_path / "head" / "embodied.json").unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match=r"value_head\.safetensors: 1 of the 32 numbers of weight are NaN"):
        make(model_path=str(tmp_path / "head"), value_head=True)
