"""Vision-language models against transformers' own model and processor: tokens, logits, greedy texts, folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from causal_lm_texts import sequences
from embodied.models.causal_lm import build_policy, image_size, prompt_counter, prompt_counter_files
from embodied.models.causal_lm.serving import facts
from PIL import Image
from tiny_vision import SIZE, TEMPLATES, make_folder, processor_of
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoTokenizer

from embodied import instructions
from embodied.errors import ConfigError, EmbodiedError, SpecMismatchError
from embodied.types import ArraySpec, EnvSpec, Sampling, TextAction

N = 10
CONVERSATION = instructions.of_messages(
    [
        {"role": "system", "content": "look."},
        {"role": "user", "content": "<image>what is this?"},
        {"role": "assistant", "content": "a cat."},
        {"role": "user", "content": "and <image> this?"},
    ]
)
TEXTS = ("<image>what colour?", CONVERSATION, "no picture", "<image>what colour?", "<image>what colour?")
COUNTS = (1, 2, 0, 1, 1)


def env_of(size: int = SIZE) -> EnvSpec:
    obs = {"instruction": ArraySpec((512,), "uint8"), "pictures": ArraySpec((2, size, size, 3), "uint8")}
    return EnvSpec(obs, (), TextAction(40), ("a",), (1,), max_episode_steps=1, control_hz=1.0)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: make_folder(kind, tmp_path_factory.mktemp(kind)) for kind in TEMPLATES}


def make(folder: Path, **keys: Any) -> Any:
    policy = build_policy(model_path=str(folder), max_prompt_tokens=160, max_new_tokens=N, **keys)
    policy.bind(env_of())
    return policy


def observed(policy: Any) -> dict[str, Tensor]:
    """Observations of TEXTS; the last but one has the picture of the first, the last one another."""
    pictures = np.random.default_rng(0).integers(0, 256, (len(TEXTS), 2, SIZE, SIZE, 3)).astype(np.uint8)
    pictures[3] = pictures[0]
    return {**policy.encode_instructions(TEXTS), "pictures": torch.from_numpy(pictures)}


def draws() -> Tensor:
    return torch.rand(len(TEXTS), N, generator=torch.Generator().manual_seed(1))


def answered(policy: Any, sampling: Sampling | None = None) -> dict[str, Tensor]:
    obs = observed(policy)
    return {**obs, **policy.act(obs, draws(), sampling or Sampling(ignore_eos=True)).fields}


def theirs(folder: Path) -> Any:
    return AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="eager").eval()


def prepared(policy: Any, kind: str, row: int, pictures: Tensor) -> dict[str, Tensor]:
    """What transformers' processor makes of a text and its pictures."""
    shown = [Image.fromarray(picture) for picture in pictures[: COUNTS[row]].numpy()]
    messages = instructions.messages(TEXTS[row]) or [{"role": "user", "content": TEXTS[row]}]
    chat = []
    for message in messages:
        before, *after = message["content"].split("<image>")
        parts = [{"type": "text", "text": before}] if before else []
        for text in after:
            parts += [{"type": "image"}, {"type": "text", "text": text}]
        chat.append({"role": message["role"], "content": parts})
    processor = processor_of(kind, AutoTokenizer.from_pretrained(policy.settings.model_path))
    text = processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return processor(text=[text], images=[shown] if shown else None, return_tensors="pt")


def pixel_values(policy: Any, kind: str, row: int, pictures: Tensor) -> dict[str, Tensor]:
    if not COUNTS[row]:
        return {}
    if kind != "internvl":
        made = prepared(policy, kind, row, pictures)
        return {name: made[name] for name in ("pixel_values", "pixel_attention_mask") if name in made}
    said = json.loads((Path(policy.settings.model_path) / "preprocessor_config.json").read_text(encoding="utf-8"))
    mean, std = (torch.tensor(said[name]) for name in ("image_mean", "image_std"))
    return {"pixel_values": ((pictures[: COUNTS[row]] / 255 - mean) / std).permute(0, 3, 1, 2)}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_logits_and_greedy_texts_are_those_of_transformers(kind, folders):
    policy, model = make(folders[kind]), theirs(folders[kind])
    assert image_size(policy.settings.model_path) == SIZE
    records = answered(policy)
    greedy = policy.act(observed(policy), draws(), Sampling(do_sample=False)).fields
    found = policy.evaluate(records, Sampling(ignore_eos=True)).logprobs
    assert (found - records["logprobs"]).abs().max() < 1e-4
    drawn = records["tokens"] == policy.vision.pictures.token  # which transformers would take for pictures
    records["tokens"] = records["tokens"].masked_fill(drawn, 5)
    found = policy.evaluate(records, Sampling(ignore_eos=True)).logprobs
    for row, (prompt, response) in enumerate(sequences(records)):
        pictures = records["pictures"][row]
        seen = pixel_values(policy, kind, row, pictures)
        if kind != "internvl":
            assert prepared(policy, kind, row, pictures)["input_ids"][0].tolist() == prompt.tolist()
        with torch.no_grad():
            logits = model(input_ids=torch.cat([prompt, response])[None], **seen).logits[0, len(prompt) - 1 : -1]
            written = model.generate(
                input_ids=prompt[None], attention_mask=torch.ones_like(prompt)[None], **seen,
                max_new_tokens=N, do_sample=False,
            )[0, len(prompt) :]  # fmt: skip
        wanted = logits.log_softmax(-1).gather(1, response[:, None])[:, 0]
        assert (found[row, : len(response)] - wanted).abs().max() < 1e-4, row
        assert greedy["tokens"][row, : greedy["length"][row]].tolist() == written.tolist(), row
    texts = [greedy["tokens"][row].tolist() for row in (0, 3, 4)]
    assert texts[0] == texts[1] != texts[2]  # the answer depends on the picture


@pytest.mark.parametrize("kind", TEMPLATES)
def test_prompts_without_a_chat_template(kind, folders):
    policy, black = make(folders[kind], chat="never"), Image.new("RGB", (SIZE, SIZE))
    prompt = policy.tokenizer.prompt("is <image> red?")
    if (processor := processor_of(kind, AutoTokenizer.from_pretrained(folders[kind]))) is None:
        assert policy.tokenizer.tokenizer.decode(prompt) == f"is <img>{'<IMG_CONTEXT>' * 4}</img> red?"
    else:
        assert processor(text=["is <image> red?"], images=[[black]])["input_ids"][0] == prompt
    assert policy.tokenizer.prompt("red?") == policy.tokenizer.tokenizer("red?").input_ids


def test_older_folders_have_the_template_in_a_file_of_the_processor(folders, tmp_path):
    old = shutil.copytree(folders["llava"], tmp_path / "old")
    template = (old / "chat_template.jinja").read_text(encoding="utf-8")
    (old / "chat_template.jinja").unlink()
    (old / "chat_template.json").write_text(json.dumps({"chat_template": template}), encoding="utf-8")
    assert make(old).tokenizer.prompt(TEXTS[0]) == make(folders["llava"]).tokenizer.prompt(TEXTS[0])


def test_tokens_are_counted_with_those_of_pictures(folders):
    policy = make(folders["smolvlm"])
    lengths = policy.encode_instructions(TEXTS)["prompt_length"].tolist()
    assert prompt_counter(model_path=str(folders["smolvlm"]))(TEXTS) == lengths
    assert folders["smolvlm"] / "config.json" in prompt_counter_files(str(folders["smolvlm"]))


@pytest.mark.parametrize("kind", ["llava", "smolvlm"])
def test_lanes_packing_and_batches_change_nothing(kind, folders):
    policy = make(folders[kind], is_lora=True, lora_init_weights=False, lora_rank=4)
    records = answered(policy)
    packed = policy.evaluate(records, Sampling(ignore_eos=True)).logprobs
    packed.sum().backward()
    trained = {name for name, p in policy.named_parameters() if p.grad is not None}
    assert trained
    assert all("lora_" in name and name.startswith("network.") for name in trained)

    decoding = policy.decoding(2)
    decoding.begin(Sampling(ignore_eos=True))
    for row in range(len(TEXTS)):  # the first two wait for nobody, the others go where one is free
        lane = row % 2
        decoding.admit([lane], {name: records[name][[row]] for name in observed(policy)}, draws()[[row]])
        while not (whole := decoding.step()):
            pass
        assert list(whole) == [lane]
        assert torch.equal(decoding.take(whole).fields["tokens"][0], records["tokens"][row])
    for row in range(len(TEXTS)):
        one = policy.evaluate({name: value[[row]] for name, value in records.items()}, Sampling(ignore_eos=True))
        assert (one.logprobs[0] - packed[row]).abs().max() < 1e-5
    padded = make(folders[kind], is_lora=True, lora_init_weights=False, lora_rank=4, sequence_packing=False)
    assert (padded.evaluate(records, Sampling(ignore_eos=True)).logprobs - packed).abs().max() < 1e-5


def test_equal_prompts_with_equal_pictures_are_computed_once(folders, monkeypatch):
    policy = make(folders["llava"])
    counted = []
    one = policy.vision._one
    monkeypatch.setattr(policy.vision, "_one", lambda picture: counted.append(1) or one(picture))
    records = answered(policy)
    assert len(counted) == 1 + 2 + 1  # the first, those of the conversation, the last; the fourth is the first again
    counted.clear()
    policy.evaluate(records, Sampling())
    assert len(counted) == 4


def test_an_exported_folder_is_one_of_transformers_and_has_the_trained_weights(folders, tmp_path):
    policy = make(folders["idefics3"], is_lora=True, lora_init_weights=False, lora_rank=4)
    records = answered(policy)
    policy.save(tmp_path / "saved")
    again = make(tmp_path / "saved")
    assert torch.equal(again.encode_instructions(TEXTS)["prompt_ids"], records["prompt_ids"])
    wanted = policy.evaluate(records, Sampling()).logprobs
    assert (again.evaluate(records, Sampling()).logprobs - wanted).abs().max() < 1e-4
    model, loaded = AutoModelForImageTextToText.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not loaded["missing_keys"]
    assert not loaded["unexpected_keys"]
    before = theirs(folders["idefics3"])
    assert torch.equal(model.model.connector.modality_projection.proj.weight,
                       before.model.connector.modality_projection.proj.weight)  # fmt: skip
    layer = "model.text_model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(model.get_parameter(layer), before.get_parameter(layer))
    with pytest.raises(ConfigError, match="hf"):
        policy.export("adapter", tmp_path / "adapter", "auto", None, {})


def refused(act: Any, *parts: str) -> None:
    with pytest.raises(EmbodiedError) as failed:
        act()
    assert all(part in str(failed.value) for part in parts), str(failed.value)


def test_what_cannot_work_is_refused_with_the_reason(folders, tmp_path):
    policy = make(folders["llava"])
    refused(lambda: policy.bind(env_of(48)), "48×48", f"env.train.image_size={SIZE}")
    refused(lambda: build_policy(max_new_tokens=N).bind(env_of()), "reads texts alone", "llava")
    refused(lambda: make(folders["llava"], context_parallel_size=2), "context_parallel_size", "set it to 1")
    refused(lambda: facts(policy.parts), "rollout.backend=native")
    obs = {**policy.encode_instructions(["<image>?"])}
    refused(lambda: policy.act(obs, draws()[:1], Sampling()), "has 0", "data.image_key")
    intern = make(folders["internvl"])
    refused(lambda: intern.encode_instructions(["<image> is <IMG_CONTEXT>?"]), "2 times <IMG_CONTEXT>")
    cut = build_policy(model_path=str(folders["llava"]), max_prompt_tokens=20, max_new_tokens=N, truncation="left")
    refused(lambda: cut.encode_instructions(["<image> what is this?"]), "max_prompt_tokens is 20")
    assert len(cut.encode_instructions(["no picture, but a long question of many signs"])["prompt_ids"][0]) == 20

    made = {"model_type": "llava", "vision_config": {"model_type": "pixtral"}, "text_config": {"model_type": "llama"}}
    (tmp_path / "config.json").write_text(json.dumps(made), encoding="utf-8")
    refused(lambda: prompt_counter(model_path=str(tmp_path)), "pixtral", "depends on its shape")
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_vl"}', encoding="utf-8")
    from embodied.models.causal_lm.network.vision import check_pictures

    with pytest.raises(SpecMismatchError, match="M-RoPE"):
        check_pictures(env_of(), None, str(tmp_path))


@pytest.mark.parametrize("kind", ["llava", "smolvlm"])
def test_it_learns_to_tell_two_colours_apart(kind, folders):
    """Supervised: the language model learns to read the features of a frozen tower that was never trained."""
    policy = make(folders[kind])
    generator = np.random.default_rng(2)

    def batch(count: int) -> tuple[dict[str, Tensor], Tensor]:
        red = generator.integers(0, 2, count)
        pictures = np.zeros((count, 2, SIZE, SIZE, 3), np.uint8)
        for picture, is_red in zip(pictures, red, strict=True):
            row, column = generator.integers(0, SIZE - 12, 2)
            picture[0, row : row + 12, column : column + 12, 0 if is_red else 2] = generator.integers(180, 256)
        obs = {**policy.encode_instructions(["<image>which?"] * count), "pictures": torch.from_numpy(pictures)}
        answers = np.zeros((count, 1, 40), np.uint8)
        for answer, is_red in zip(answers, red, strict=True):
            instructions.write("r" if is_red else "b", answer[0])
        return obs, torch.from_numpy(answers)

    trained = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=3e-3)
    for _ in range(60):
        obs, answers = batch(16)
        found = policy.evaluate({**obs, **policy.encode_actions(answers)}, Sampling())
        optimizer.zero_grad()
        (-found.logprobs.sum() / 16).backward()
        optimizer.step()
    obs, answers = batch(64)
    said = policy.act(obs, torch.rand(64, N), Sampling(do_sample=False)).fields["actions"]
    right = sum(
        instructions.read(a[0]) == instructions.read(b[0]) for a, b in zip(said.numpy(), answers.numpy(), strict=True)
    )
    assert right >= 54, right  # by chance 32
