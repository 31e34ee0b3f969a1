"""Checkpoint folders of others, in every spelling, against the original code's outputs and a second implementation."""

from __future__ import annotations

import json
import os
from pathlib import Path

import oft_reference
import pytest
import torch
from embodied.models.openvla_oft import build_policy
from embodied.models.openvla_oft.files.checkpoint import Folder
from embodied.models.openvla_oft.files.names import released_name
from embodied.models.openvla_oft.files.shapes import TowerHints, sizes_of
from embodied.models.openvla_oft.network.config import OPENVLA_7B
from embodied.models.openvla_oft.network.model import OpenVLAOFT
from embodied.models.openvla_oft.original import decode, inputs_of, load_network
from embodied.models.openvla_oft.tokens.tokenizer import EMBEDDED
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from embodied.errors import CheckpointError, ConfigError

GOLDEN = Path(__file__).parents[1] / "golden" / "openvla_oft_tiny_bidirectional.safetensors"
SPACE, PAD, EOS = 29871, 32000, 2
GOLDEN_KEYS = {  # of a golden file's configuration → of ours
    "attention": "attention", "stop_token": "stop_token", "chunk": "num_action_chunks", "action_dim": "action_dim",
}  # fmt: skip
HEADS = {"vision_num_attention_heads": 4}
TEXT = {"model_type": "llama", "vocab_size": 32064, "num_attention_heads": 4}
CONFIG = {"model_type": "openvla", "timm_model_ids": ["dino", "siglip"], "image_sizes": [56, 56], "text_config": TEXT}


@pytest.fixture(scope="module")
def golden() -> dict[str, torch.Tensor]:
    return load_file(str(GOLDEN))


@pytest.fixture(scope="module")
def weights(golden) -> dict[str, torch.Tensor]:
    """Of the golden network under the released names, dead ones included."""
    return golden_weights(golden, 32064, 128)


def golden_weights(golden: dict[str, torch.Tensor], rows: int, width: int) -> dict[str, torch.Tensor]:
    """A golden file holds only the rows of the embedding and of the head that its cases use."""
    found = {k.removeprefix("weights."): v for k, v in golden.items() if k.startswith("weights.")}
    for name in ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight"):
        if name not in found:
            found[name] = torch.zeros(rows, width)
            found[name][golden["token_rows"]] = golden[f"weights_rows.{name}"]
    return found


def write(folder: Path, tensors: dict[str, torch.Tensor], config=CONFIG) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, str(folder / "model.safetensors"))
    return str(folder)


def extras(proprio: bool, film: bool) -> dict[str, torch.Tensor]:
    """Random weights of what the golden network lacks."""
    shapes: dict[str, tuple[int, ...]] = {}
    if proprio:
        shapes |= {"proprio_projector.fc1.weight": (128, 8), "proprio_projector.fc2.weight": (128, 128)}
        shapes |= {"proprio_projector.fc1.bias": (128,), "proprio_projector.fc2.bias": (128,)}
    for name, width, blocks in (("featurizer", 64, 4), ("fused_featurizer", 96, 5)) if film else ():
        for block in range(blocks):
            for layer in ("scale", "shift"):
                shapes[f"vision_backbone.{name}.blocks.{block}.{layer}.weight"] = (width, 128)
                shapes[f"vision_backbone.{name}.blocks.{block}.{layer}.bias"] = (width,)
    generator = torch.Generator().manual_seed(0)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def released(name: str) -> str:
    return name


def prismatic(name: str) -> str:
    """As the training code names its modules, before conversion; timm's name of the layer scale."""
    for ours, theirs in (
        ("vision_backbone.featurizer.", "vision_backbone.dino_featurizer."),
        ("vision_backbone.fused_featurizer.", "vision_backbone.siglip_featurizer."),
        ("language_model.", "llm_backbone.llm."),
        ("projector.fc1.", "projector.projector.0."),
        ("projector.fc2.", "projector.projector.2."),
        ("projector.fc3.", "projector.projector.4."),
    ):
        if name.startswith(ours):
            name = theirs + name.removeprefix(ours)
    return name.replace(".scale_factor", ".gamma")


def short(name: str) -> str:
    """The state dicts inside such a file, without the name of their module."""
    return prismatic(name).replace("vision_backbone.", "").replace("llm_backbone.", "").replace("r.projector.", "r.")


def wrapped(name: str) -> str:
    """FiLM wraps the backbone and each block, DDP everything."""
    name = name.replace("vision_backbone.", "vision_backbone.vision_backbone.")
    if ".blocks." in name and not any(f".{layer}." in name for layer in ("scale", "shift")):
        head, _, tail = name.partition(".blocks.")
        number, _, rest = tail.partition(".")
        name = f"{head}.blocks.{number}.block.{rest}"
    return f"module.{name}"


@pytest.mark.parametrize("spelling", [released, prismatic, short, wrapped])
def test_the_original_outputs_from_a_folder_in_every_spelling(golden, weights, tmp_path, spelling) -> None:
    path = write(tmp_path, {spelling(name): tensor for name, tensor in weights.items()})
    network = load_network(path, **HEADS)
    inputs = inputs_of(network, golden["case.n1.pixel_values"], golden["case.n1.input_ids"])
    with torch.no_grad():
        read = network(*inputs)
    assert (read.hidden - golden["case.n1.hidden"]).abs().max() <= 1e-5
    assert (read.logits - golden["case.n1.action_logits"]).abs().max() <= 1e-5
    text_tokens = torch.full(
        (1, 56), 12345
    )  # which the original's argmax over all words gives, see test_oft_checkpoint
    actions = decode(network, text_tokens, [-1.0] * 7, [2.0] * 7, [True] * 6 + [False])[0]
    assert (actions - golden["case.n1.greedy_actions"]).abs().max() <= 1e-9


def golden_cases() -> list[tuple[Path, str]]:
    """Every case of every file in the folder here, and in $OFT_GOLDEN (a folder or a file): tensors ``case.NAME.…`` as
    :func:`compare` reads them; ``weights.*``; sizes as JSON in the metadata."""
    folders = [GOLDEN.parent, *(Path(path) for path in [os.environ.get("OFT_GOLDEN")] if path)]
    found = []
    for file in (f for path in folders for f in ([path] if path.is_file() else sorted(path.glob("*.safetensors")))):
        with safe_open(file, framework="pt") as opened:
            names = {name.split(".")[1] for name in opened.keys() if name.startswith("case.")}  # noqa: SIM118
        found += [(file, name) for name in sorted(names)]
    return found


@pytest.mark.parametrize(("file", "case"), golden_cases(), ids=lambda v: v if isinstance(v, str) else v.stem)
def test_every_recorded_case(file, case, tmp_path) -> None:
    compare(file, case, tmp_path)


def compare(file: Path, case: str, folder: Path) -> None:
    """Compare the network with what a golden file holds of one case.

    The case has ``hidden`` [B, T, d] or ``action_logits`` [B, T, 256] or both, at the read-out positions, and what the
    original was given: ``input_ids`` [B, L] and ``pixel_values`` [B, 6·n, H, W], maybe ``attention_mask`` [B, L] and
    ``proprio``; or ``inputs_embeds`` [B, S, d], the sequence as it enters the language model, maybe with an
    ``attention_mask`` [B, S] that is 0 at padding. ``hidden`` [B, S, d] is compared at the read-out positions too.
    """
    values = load_file(str(file))
    with safe_open(file, framework="pt") as opened:
        said = json.loads(opened.metadata()["config"])
    text = said["text"]
    config = {"image_sizes": [said["image"]] * 2, "text_config": {"model_type": "llama", **text}}
    network = load_network(
        write(folder, golden_weights(values, text["vocab_size"], text["hidden_size"]), config),
        vision_num_attention_heads=[said[tower]["heads"] for tower in ("featurizer", "fused_featurizer")],
        vision_num_layers=[said[tower]["depth"] for tower in ("featurizer", "fused_featurizer")],
        **{new: said[old] for old, new in GOLDEN_KEYS.items() if old in said},
    )
    given = {name.split(".", 2)[2]: value for name, value in values.items() if name.startswith(f"case.{case}.")}
    with torch.no_grad():
        read, expected = (
            read_embeddings(network, given) if "inputs_embeds" in given else (read_ids(network, given), given)
        )
    compared = [name for name in ("hidden", "action_logits") if name in expected]
    assert compared, f"case {case} of {file} has neither hidden nor action_logits"
    for name in compared:
        assert (read[name] - expected[name]).abs().max() <= 1e-5, name


def read_ids(network: OpenVLAOFT, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    inputs = inputs_of(
        network, given["pixel_values"], given["input_ids"], given.get("attention_mask"), given.get("proprio")
    )
    read = network(*inputs)
    return {"hidden": read.hidden, "action_logits": read.logits}


def read_embeddings(
    network: OpenVLAOFT, given: dict[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What the language model reads out of a padded batch of embeddings, and what the file says of it."""
    embeddings = given["inputs_embeds"].float()
    present = given.get("attention_mask", torch.ones(embeddings.shape[:2])).bool()
    hidden = network.language_model(embeddings, present)
    places = read_places(present, network.net.tail_tokens, network.net.action_tokens)
    read = hidden[torch.arange(len(hidden))[:, None], places]
    expected = dict(given)
    if "hidden" in given and given["hidden"].shape == hidden.shape:
        expected["hidden"] = given["hidden"][torch.arange(len(hidden))[:, None], places]
    return {"hidden": read, "action_logits": network.language_model.action_logits(read)}, expected


def read_places(present: torch.Tensor, tail: int, slots: int) -> torch.Tensor:
    """Places [B, T] of the last prompt token and of all placeholders but the last; padding may stand anywhere."""
    rows = []
    for row in present:
        taken = row.nonzero()[:, 0]
        first = len(taken) - tail - 1
        rows.append(taken[first : first + slots])
    return torch.stack(rows)


@pytest.mark.parametrize("whole", [False, True], ids=["read-out", "whole"])
@pytest.mark.parametrize("attention", ["bidirectional", "causal"])
def test_a_recorded_case_may_hold_a_padded_batch_of_embeddings(golden, weights, tmp_path, attention, whole) -> None:
    """Two sequences of different length, the shorter one padded behind, where OFT's training puts it."""
    sizes = oft_reference.Sizes((4, 4), 4, causal=attention == "causal")
    generator, lengths = torch.Generator().manual_seed(2), (90, 83)
    rows = [torch.randn(length, 128, generator=generator) for length in lengths]
    outputs = [oft_reference.llama(weights, sizes, row) for row in rows]
    read = torch.stack([row[-sizes.slots - 2 : -2] for row in outputs])
    padded = [torch.nn.utils.rnn.pad_sequence(some, batch_first=True, padding_value=7.0) for some in (rows, outputs)]
    case = {
        "case.two.inputs_embeds": padded[0],
        "case.two.attention_mask": torch.tensor([[1] * 90, [1] * 83 + [0] * 7]),
        "case.two.hidden": padded[1] if whole else read,
        "case.two.action_logits": read @ weights["language_model.lm_head.weight"][31744:32000].T,
    }
    rest = {name: value for name, value in golden.items() if not name.startswith("case.")}
    with safe_open(GOLDEN, framework="pt") as opened:
        said = json.dumps({**json.loads(opened.metadata()["config"]), "attention": attention})
    save_file({**rest, **case}, tmp_path / "made.safetensors", {"config": said})
    compare(tmp_path / "made.safetensors", "two", tmp_path / "one")
    case["case.two.hidden"] = case["case.two.hidden"].clone()
    case["case.two.hidden"][1, 60 if whole else 30] += 1e-3
    save_file({**rest, **case}, tmp_path / "wrong.safetensors", {"config": said})
    with pytest.raises(AssertionError, match="hidden"):
        compare(tmp_path / "wrong.safetensors", "two", tmp_path / "two")


def test_spellings_differ_and_come_back(weights) -> None:
    for spelling in (prismatic, short, wrapped):
        assert all(released_name(spelling(name)) == name for name in weights)
        assert sum(spelling(name) != name for name in weights) > 100


def test_the_second_implementation_gives_the_original_outputs(golden, weights) -> None:
    ids = torch.cat([golden["case.n1.input_ids"][0], torch.tensor([SPACE])])
    sizes = oft_reference.Sizes(vision_heads=(4, 4), text_heads=4)
    hidden = oft_reference.hidden_states(weights, sizes, golden["case.n1.pixel_values"][0], ids)
    assert (hidden - golden["case.n1.hidden"][0]).abs().max() <= 1e-5


COMBINATIONS = [
    {"images": 2},
    {"proprio": True},
    {"attention": "causal"},
    {"attention": "causal", "images": 2, "proprio": True, "stop_token": False},
    {"film": True},
    {"film": True, "images": 2, "proprio": True, "attention": "causal"},
    {"images": 3, "num_action_chunks": 25, "action_dim": 14, "proprio": True},
]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("keys", COMBINATIONS, ids=str)
def test_every_combination_against_the_second_implementation(
    golden, weights, tmp_path, keys, implementation
) -> None:  # fmt: skip
    """A padded batch: three prompts of different length, padding behind them, where OFT's training puts it."""
    keys = dict(keys)
    images, proprio, film = (keys.pop(name, default) for name, default in (("images", 1), ("proprio", 0), ("film", 0)))
    full = {**weights, **extras(bool(proprio), bool(film))}
    network = load_network(write(tmp_path, full), **HEADS, **keys, attn_implementation=implementation)
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randn(3, 6 * images, 56, 56, generator=generator)
    state = torch.rand(3, 8, generator=generator) if proprio else None
    words = golden["case.n1.input_ids"][0]
    rows = [torch.cat([words[:end], torch.tensor([SPACE])]) for end in (20, 11, 15)]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    with torch.no_grad():
        read = network(*inputs_of(network, pixels, ids, ids != PAD, state))
    sizes = oft_reference.Sizes(
        (4, 4), 4, keys.get("attention") == "causal", keys.get("stop_token", True), network.net.action_tokens
    )
    for index, row in enumerate(rows):
        hidden = oft_reference.hidden_states(full, sizes, pixels[index], row, None if state is None else state[index])
        assert (read.hidden[index] - hidden).abs().max() <= 2e-5
        logits = hidden @ full["language_model.lm_head.weight"][31744:32000].T
        assert (read.logits[index] - logits).abs().max() <= 2e-5


def test_one_token_after_the_other_against_the_second_implementation(golden, weights, tmp_path) -> None:
    """OpenVLA before OFT: causal, no stop token; cached decoding and the pass over the whole sequence."""
    keys = {"decoding": "autoregressive", "attention": "causal", "num_action_chunks": 1, **HEADS}
    network = load_network(write(tmp_path, weights), **keys)
    inputs = inputs_of(network, golden["case.n1.pixel_values"], golden["case.n1.input_ids"])
    with torch.no_grad():
        read, classes = network.generate(inputs, lambda logits, position: logits.argmax(-1))
        again = network(*inputs, classes + 31744)
    sizes = oft_reference.Sizes((4, 4), 4, causal=True, stop_token=False, slots=7)
    hidden = oft_reference.hidden_states(
        weights, sizes, golden["case.n1.pixel_values"][0], inputs.prompt[0], tokens=classes[0] + 31744
    )
    assert (read.hidden[0] - hidden).abs().max() <= 1e-5
    assert (again.hidden[0] - hidden).abs().max() <= 1e-5
    logits = hidden @ weights["language_model.lm_head.weight"][31744:32000].T
    assert torch.equal(logits.argmax(-1), classes[0])


def test_prompts_are_found_in_what_the_original_is_given(golden, weights, tmp_path) -> None:
    network = load_network(write(tmp_path, weights), **HEADS)
    pixels, words = golden["case.n1.pixel_values"], [1, 512, 3744, 29901]
    plain = inputs_of(network, pixels, torch.tensor([words]))
    assert plain.prompt.tolist() == [[*words, SPACE]]
    assert plain.present is None
    for row in (
        [*words, SPACE],
        [*words, SPACE, PAD, PAD],
        [1, PAD, PAD, *words[1:]],
        [*words, SPACE, *range(31900, 31956), EOS, PAD],
        [*words, SPACE, *[1] * 56, EOS],
    ):
        assert torch.equal(inputs_of(network, pixels, torch.tensor([row])).prompt, plain.prompt)
        mask = torch.tensor([row]) != PAD
        assert torch.equal(inputs_of(network, pixels, torch.tensor([row]), mask).prompt, plain.prompt)


def test_proprio_and_film_files_beside_the_weights(weights, tmp_path) -> None:
    more = extras(proprio=True, film=True)
    state = {f"module.{n.split('.', 1)[1]}": t for n, t in more.items() if n.startswith("proprio")}
    towers = {n: t for n, t in {**weights, **more}.items() if n.startswith("vision_backbone.")}
    rest = {n: t for n, t in weights.items() if n not in towers}
    together = load_network(write(tmp_path / "one", {**weights, **more}), **HEADS)
    path = write(tmp_path / "two", rest)
    torch.save(state, tmp_path / "two" / "proprio_projector--5_checkpoint.pt")
    torch.save({wrapped(n).replace("vision_backbone.vision", "vision"): t for n, t in towers.items()},
               tmp_path / "two" / "vision_backbone--5_checkpoint.pt")  # fmt: skip
    apart = load_network(path, **HEADS)
    assert apart.net == together.net
    assert (apart.net.proprio_dim, apart.net.film) == (8, True)
    for name, tensor in together.state_dict().items():
        assert torch.equal(tensor, apart.state_dict()[name]), name


def test_an_l1_checkpoint_has_hidden_states_but_no_policy(weights, tmp_path) -> None:
    path = write(tmp_path, weights)
    (tmp_path / "action_head--150000_checkpoint.pt").touch()
    assert load_network(path, **HEADS).net.hidden_size == 128
    with pytest.raises(CheckpointError, match="L1"):
        build_policy(model_path=path, size=None, **HEADS)


def test_a_policy_from_a_folder_without_a_sidecar(weights, tmp_path, make, observe, noise) -> None:
    """What a released folder is, at a small size: the policy's forward pass is the network's."""
    path = write(tmp_path, weights, {**CONFIG, "norm_stats": {"d": {"action": {"q01": [-1.0] * 7, "q99": [2.0] * 7}}}})
    (tmp_path / "tokenizer.json").write_text(tokenizer_of_llama_size(), encoding="utf-8")
    policy = make(model_path=path, size=None, image_size=56, **HEADS)
    network, obs = load_network(path, **HEADS), observe(3)
    with torch.no_grad():
        read = policy.parts.read_out(policy.inputs(obs))
        again = network(*policy.inputs(obs))
    assert torch.equal(read.logits, again.logits)
    assert policy.statistics.name == "d"
    with pytest.raises(ConfigError, match="hidden_size 64, the checkpoint's 128"):
        build_policy(model_path=path, size=None, hidden_size=64, **HEADS)


def test_a_folder_of_ours_says_everything(make, observe, tmp_path) -> None:
    keys = {"use_proprio": True, "num_images_in_input": 2, "attention": "causal", "num_action_chunks": 2}
    policy, obs = make(**keys), observe(3)
    policy.save(tmp_path / "hf")
    network = load_network(str(tmp_path / "hf"))
    assert network.net == policy.model.net
    with torch.no_grad():
        torch.testing.assert_close(
            network(*policy.inputs(obs)).logits, policy.parts.read_out(policy.inputs(obs)).logits
        )
    with pytest.raises(ConfigError, match="attention bidirectional, the checkpoint's causal"):
        load_network(str(tmp_path / "hf"), attention="bidirectional")


def tokenizer_of_llama_size() -> str:
    """The embedded tokenizer with '▁' where Llama 2 has it."""
    values = json.loads(EMBEDDED.read_text(encoding="utf-8"))
    values["model"]["vocab"]["▁"] = SPACE
    return json.dumps(values)


def test_the_released_tensors_mean_the_released_sizes() -> None:
    """Shapes of the 7B network, and of what is never run: its last blocks and norms."""
    with torch.device("meta"):
        network = OpenVLAOFT(OPENVLA_7B, eos_id=2)
    shapes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    for name, last in (("featurizer", 23), ("fused_featurizer", 26)):
        shapes |= {
            f"vision_backbone.{name}.blocks.{last}.norm1.weight": (1,),
            f"vision_backbone.{name}.norm.weight": (1,),
        }
    text = {"model_type": "llama", "pad_token_id": 32000, "vocab_size": 32064}
    assert sizes_of(shapes, {"image_sizes": [224, 224], "text_config": text}) == OPENVLA_7B


WRONG = [
    ({"text_config": {**TEXT, "hidden_size": 256}}, lambda w: w, "text_config says hidden_size 256, the tensors 128"),
    ({"image_sizes": [224, 224]}, lambda w: w, "image_sizes"),
    ({"n_action_bins": 128}, lambda w: w, "n_action_bins 128"),
    ({"pad_to_multiple_of": 128}, lambda w: w, "the embedding has 32064 rows"),
    ({}, lambda w: {n: t for n, t in w.items() if not n.startswith("vision_backbone")}, "another architecture"),
    ({}, lambda w: {n: t for n, t in w.items() if "featurizer.norm." not in n}, "vision_num_layers"),
]


@pytest.mark.parametrize(("config", "change", "said"), WRONG)
def test_folders_that_do_not_fit_together(weights, tmp_path, config, change, said) -> None:
    path = write(tmp_path, change(weights), {**CONFIG, **config})
    with pytest.raises(CheckpointError, match=said) as caught:
        Folder.open(path).net_config([TowerHints(heads=4)] * 2)
    assert str(tmp_path) in caught.value.message


def test_without_what_is_never_run(golden, weights, tmp_path) -> None:
    """Last blocks, norms and pooling left out: the number of blocks has to be said, and nothing else changes."""
    dead = ("featurizer.norm.", "attn_pool", ".featurizer.blocks.3.", ".fused_featurizer.blocks.4.")
    path = write(tmp_path, {n: t for n, t in weights.items() if not any(part in n for part in dead)})
    with pytest.raises(CheckpointError, match="vision_num_layers"):
        load_network(path, **HEADS)
    with pytest.raises(CheckpointError, match="vision_num_attention_heads"):
        load_network(path)
    network = load_network(path, vision_num_layers=[4, 5], vision_num_attention_heads=[4, 4])
    with torch.no_grad():
        read = network(*inputs_of(network, golden["case.n1.pixel_values"], golden["case.n1.input_ids"]))
    assert (read.hidden - golden["case.n1.hidden"]).abs().max() <= 1e-5
