"""OpenVLA-OFT as folders for other programs: tensor by tensor, logit by logit, measured, and verified by evaluation."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from embodied.models.openvla_oft import build_policy
from embodied.models.openvla_oft.export import save
from embodied.models.openvla_oft.original import load_network
from embodied.models.shared.lora import merged_state
from peft import PeftModel
from safetensors.torch import load_file
from saved_policies import ENV, LORA, SMALL, policy_of
from saved_policies import save as save_checkpoint
from transformers import PreTrainedTokenizerFast

from embodied.errors import CheckpointError, EnvsDifferError
from embodied.export.observations import observe
from embodied.learn.checkpoint.exported import open_export, read_export, with_files
from embodied.learn.checkpoint.metadata import read_meta
from embodied.learn.origin import Simulator, origin_of, restore
from embodied.testing import FakeEnv
from embodied.tools import export
from embodied.types import Sampling

GREEDY = Sampling(do_sample=False)
HEAD = {"value_head": True, **LORA}
VERIFY = ("--verify", "env=fake", "episodes=3")
CONFIG = ("--config-dir", str(Path(__file__).parents[1] / "config"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture(scope="module")
def checkpoint(made: Path) -> Path:
    """Adapters, a head that is trained in full, a value head, a projector of the state."""
    return save_checkpoint(made / "run", **HEAD)


@pytest.fixture(scope="module")
def folder(made: Path, checkpoint: Path) -> Path:
    """It as a folder of several files."""
    given = ["--out", str(made / "hf"), "--shard-size", "150KB", "--format", "hf"]
    assert export.main([str(checkpoint), *given]) == 0
    return made / "hf"


@pytest.fixture(scope="module")
def seen(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Observations of the env, each with the field of its instruction."""
    policy, _ = restore(checkpoint)
    examples = observe(origin_of(checkpoint, read_meta(checkpoint)), policy, 5, torch.device("cpu"))
    obs = {name: torch.from_numpy(values) for name, values in examples.obs.items()}
    assert {name: tuple(values.shape) for name, values in obs.items()} == {"images": (5, 1, 16, 16, 3), "state": (5, 8)}
    assert len({values.numpy().tobytes() for values in obs["state"]}) == 5, "starts, and what came after decisions"
    return {**obs, **policy.encode_instructions(examples.instructions)}


def answers(policy: Any, seen: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Greedy actions, and the log-probs of all 256 bins."""
    noise = torch.zeros(len(seen["state"]), *policy.spec.noise.shape)
    fields = policy.act(seen, noise, GREEDY).fields
    with torch.no_grad():
        found = policy.evaluate({**seen, **fields}, Sampling(), distribution=True)
    return fields["actions"], found.distribution


# -- the whole model -------------------------------------------------------------------------------------------------


def original_names() -> set[str]:
    """Names in the layout of the released checkpoints, for towers of two blocks and two layers."""

    def both(*layers: str) -> list[str]:
        return [f"{layer}.{leaf}" for layer in layers for leaf in ("weight", "bias")]

    block = both("norm1", "norm2", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    scaled = [*block, "ls1.scale_factor", "ls2.scale_factor"]
    tower = ["pos_embed", *both("patch_embed.proj", "norm")]
    pooling = ["latent", *both("q", "kv", "proj", "norm", "mlp.fc1", "mlp.fc2")]
    dino = ["cls_token", "reg_token", *tower, *(f"blocks.{n}.{name}" for n in (0, 1) for name in scaled)]
    siglip = [*tower, *(f"blocks.{n}.{name}" for n in (0, 1) for name in block), *(f"attn_pool.{n}" for n in pooling)]
    layer = [f"self_attn.{n}_proj.weight" for n in "qkvo"] + [f"mlp.{n}_proj.weight" for n in ("gate", "up", "down")]
    layer += ["input_layernorm.weight", "post_attention_layernorm.weight"]
    model = ["embed_tokens.weight", "norm.weight", *(f"layers.{n}.{name}" for n in (0, 1) for name in layer)]
    return {
        *(f"vision_backbone.featurizer.{name}" for name in dino),
        *(f"vision_backbone.fused_featurizer.{name}" for name in siglip),
        *both("projector.fc1", "projector.fc2", "projector.fc3"),
        *(f"language_model.model.{name}" for name in model),
        "language_model.lm_head.weight",
    }


def test_every_tensor_is_there_under_its_original_name(checkpoint, folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 3
    found: dict[str, torch.Tensor] = {}
    for number, shard in enumerate(shards, 1):
        assert shard.name == f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        part = load_file(shard)
        assert len(part) == 1 or sum(tensor.nbytes for tensor in part.values()) <= 150_000
        assert {name for name, file in index["weight_map"].items() if file == shard.name} == part.keys()
        found |= part
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in found.values())
    assert found.keys() == original_names()
    policy, _ = restore(checkpoint)
    merged = merged_state(policy.model)
    proprio = torch.load(folder / "proprio_projector--0_checkpoint.pt", weights_only=True)
    found |= {f"proprio_projector.{name}": tensor for name, tensor in proprio.items()}
    for name, tensor in merged.items():
        assert torch.equal(found[name], tensor), name
    for name, tensor in load_file(folder / "value_head.safetensors").items():
        assert torch.equal(tensor, policy.value_head.state_dict()[name]), name
    adapted = policy.model.language_model.model.layers[0].mlp.up_proj
    assert not torch.equal(adapted.base_layer.weight, found["language_model.model.layers.0.mlp.up_proj.weight"])


def test_the_folder_answers_as_the_checkpoint(checkpoint, folder, seen):
    live, read = restore(checkpoint).policy, open_export(folder).policy
    again = build_policy(**{**SMALL, "value_head": True}, model_path=str(folder))
    again.bind(FakeEnv(**ENV).spec)
    actions, logprobs = answers(live, seen)
    for policy in (read, again):
        got, found = answers(policy, seen)
        assert torch.equal(got, actions)
        assert (found - logprobs).abs().max() < 1e-5
    noise = torch.rand(len(actions), *live.spec.noise.shape)
    one, two = (policy.act(seen, noise, Sampling()).fields for policy in (live, read))
    assert torch.equal(one["action_tokens"], two["action_tokens"])
    assert (one["value"] - two["value"]).abs().max() < 1e-5
    network, prompts = load_network(str(folder), vision_num_attention_heads=4, stop_token=True), live.inputs(seen)
    with torch.no_grad():
        assert (network(*prompts).logits - live.model(*prompts).logits).abs().max() < 1e-5


def test_without_adapters_a_folder_is_the_policy_bit_by_bit(made, seen):
    checkpoint = save_checkpoint(made / "whole", is_lora=False)
    assert export.main([str(checkpoint), "--out", str(made / "whole-hf"), "--observations", "0"]) == 0
    live, read = restore(checkpoint).policy, open_export(made / "whole-hf").policy
    for one, two in zip(answers(live, seen), answers(read, seen), strict=True):
        assert torch.equal(one, two)
    (file,) = (made / "whole-hf").glob("model*.safetensors")
    assert file.name == "model.safetensors"
    assert not (made / "whole-hf" / "lora_adapter").exists()


def test_the_files_beside_the_weights(folder):
    def read(name: str) -> Any:
        return json.loads((folder / name).read_text(encoding="utf-8"))

    config, pixels = read("config.json"), read("preprocessor_config.json")
    assert (config["model_type"], config["torch_dtype"]) == ("openvla", "float32")
    assert config["text_config"]["vocab_size"] == 1088
    assert pixels["input_sizes"] == [[3, 32, 32]] * 2
    assert [*pixels["tvf_normalize_params"][0]] == ["mean", "std", "inplace"]
    assert read("generation_config.json")["eos_token_id"] == 2
    assert [*read("dataset_statistics.json")] == ["env"]
    assert read("dataset_statistics.json")["env"]["action"]["q99"] == [1.0] * 7
    text = "In: What action should the robot take to open the drawer?\nOut: "
    tokenizer, policy = PreTrainedTokenizerFast.from_pretrained(folder), open_export(folder).policy
    assert tokenizer(text).input_ids == policy.tokenizer.encode("open the drawer")


def test_what_says_where_it_comes_from(checkpoint, folder):
    facts = read_export(folder)
    assert (facts.format, facts.dtype, facts.policy["num_action_chunks"]) == ("hf", "fp32", 4)
    assert facts.source["checkpoint"] == str(checkpoint)
    assert (facts.model["model_path"], facts.model["use_proprio"]) == (".", True)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "# run" in card
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)
    exec(code[1], names := {})
    assert names["policy"].spec.num_action_chunks == 4
    assert names["env"] == FakeEnv(**ENV).spec


def test_what_the_first_folder_had_besides_comes_along(made, folder, tmp_path):
    """Dead tensors, the original's Python files, statistics that are not used."""
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]
    base = build_policy(**{**SMALL, "value_head": True}, model_path=str(folder))
    base.bind(FakeEnv(**ENV).spec)
    base.save(one := tmp_path / "one")
    name = "vision_backbone.fused_featurizer.attn_pool.latent"
    state = load_file(one / "model.safetensors")
    assert state.keys() == index.keys()
    state[name] += 7
    from safetensors.torch import save_file

    save_file(state, one / "model.safetensors")
    config = json.loads((one / "config.json").read_text(encoding="utf-8"))
    auto = {"AutoConfig": "configuration_prismatic.OpenVLAConfig", "AutoModel": "../evil.X", "A": "owner/r--m.M"}
    (one / "config.json").write_text(json.dumps({**config, "auto_map": auto, "llm_max_length": 2048}), encoding="utf-8")
    (one / "configuration_prismatic.py").write_text("# theirs\n", encoding="utf-8")
    (tmp_path / "evil.py").write_text("# not in the folder\n", encoding="utf-8")
    statistics = json.loads((one / "dataset_statistics.json").read_text(encoding="utf-8"))
    statistics["env"]["action"]["max"] = [9.0] * 7
    (one / "dataset_statistics.json").write_text(json.dumps({**statistics, "other": {}}), encoding="utf-8")
    keys = {**SMALL, "model_path": str(one), "unnorm_key": "env"}
    checkpoint = save_checkpoint(made / "second", **keys)
    assert export.main([str(checkpoint), "--out", str(tmp_path / "two"), "--observations", "0"]) == 0
    two = tmp_path / "two"
    assert torch.equal(load_file(two / "model.safetensors")[name], state[name])
    assert sorted(file.name for file in two.glob("*.py")) == ["configuration_prismatic.py"]
    written = json.loads((two / "config.json").read_text(encoding="utf-8"))
    assert (written["auto_map"], written["llm_max_length"]) == (auto, 2048)
    found = json.loads((two / "dataset_statistics.json").read_text(encoding="utf-8"))
    assert found["env"]["action"]["max"] == [9.0] * 7
    assert [*found] == ["env"]
    assert "with the original's own code" in (two / "README.md").read_text(encoding="utf-8")


# -- what rounding loses ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slight(made: Path) -> Path:
    """Adapters that have learnt little: bf16 has no bits for it. They were trained with dropout."""
    keys = {"is_lora": True, "lora_rank": 4, "lora_init_weights": False, "lora_dropout": 0.5}
    return save_checkpoint(made / "slight", scale=1e-3, **keys)


def test_bf16_that_loses_the_adapters_warns(slight, tmp_path, seen, capsys):
    out = tmp_path / "bf16"
    assert export.main([str(slight), "--out", str(out), "--dtype", "bf16"]) == 0
    said = capsys.readouterr().out
    assert "WARNING: bf16 loses more than the adapters have learnt" in said
    facts = read_export(out)
    assert facts.measured["bf16"]["logprob_mean"] > facts.measured["adapters"]["logprob_mean"] > 0
    assert facts.rounding == "16 bits"
    assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {torch.bfloat16}
    assert load_file(out / "value_head.safetensors") if (out / "value_head.safetensors").exists() else True
    # What it says is so.
    live, read = restore(slight).policy.eval(), open_export(out).policy
    noise = torch.zeros(len(seen["state"]), *live.spec.noise.shape)
    records = {**seen, **live.act(seen, noise, GREEDY).fields}
    with torch.no_grad():
        change = (live.evaluate(records, Sampling()).logprobs - read.evaluate(records, Sampling()).logprobs).abs()
    assert facts.measured["bf16"]["logprob_largest"] >= change.max() * 0.999  # it saw these observations and others
    assert facts.measured["bf16"]["logprob_mean"] == pytest.approx(change.mean().item(), rel=0.5)


def test_auto_writes_fp32_where_bf16_would_lose_too_much(slight, tmp_path, capsys):
    out = tmp_path / "auto"
    assert export.main([str(slight), "--out", str(out), "--dtype", "auto"]) == 0
    said = capsys.readouterr().out
    assert "auto wrote fp32, as bf16 loses more than 0.01 nats on average or 10% of what the adapters move" in said
    facts = read_export(out)
    assert facts.dtype == "fp32"
    assert facts.measured["fp32"]["logprob_largest"] < 1e-5 < facts.measured["bf16"]["logprob_mean"]
    assert {tensor.dtype for tensor in load_file(out / "model.safetensors").values()} == {torch.float32}


def test_auto_writes_bf16_where_nothing_is_lost(made, tmp_path, capsys, monkeypatch):
    from embodied.models.openvla_oft.export import folder as export_folder

    monkeypatch.setattr(export_folder, "LOSES_MEAN", 0.5)  # a network of random weights has no room for rounding
    monkeypatch.setattr(export_folder, "LOSES_SHARE", 0.5)
    checkpoint = save_checkpoint(made / "strong", **LORA)
    out = tmp_path / "auto"
    assert export.main([str(checkpoint), "--out", str(out), "--dtype", "auto"]) == 0
    assert "auto wrote fp32" not in capsys.readouterr().out
    assert read_export(out).dtype == "bf16"


def test_without_the_simulator_nothing_is_measured_and_it_says_why(made, tmp_path, capsys):
    gone = save_checkpoint(made / "gone", simulator=Simulator("not_installed.Env", {}), **LORA)
    assert export.main([str(gone), "--out", str(tmp_path / "hf"), "--dtype", "auto"]) == 0
    said = capsys.readouterr().out
    assert "nothing could be measured on observations of the env" in said
    assert "cannot import 'not_installed.Env'" in said
    assert "so auto wrote fp32" in said
    assert read_export(tmp_path / "hf").measured == {}


def test_an_export_moves_no_robot(checkpoint):
    origin = origin_of(checkpoint, read_meta(checkpoint))
    robot = replace(origin, env=replace(origin.env, retry_safe=False))
    with pytest.raises(Exception, match="an export moves no robot"):
        observe(robot, restore(checkpoint).policy, 2, torch.device("cpu"))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"num_tasks": 3}, "tasks: 2 for the checkpoint, 3 for the env here"),
        ({"num_init_states": 5}, "task 0 has 4 for the checkpoint, 5 for the env here"),
        ({"cameras": 2}, "cameras: "), ({"size": 8}, "obs: "), ({"action_dim": 3}, "action: "),
    ],
    ids=str,
)  # fmt: skip
def test_nothing_is_measured_on_another_env_than_the_checkpoints(checkpoint, keys, said):
    origin = origin_of(checkpoint, read_meta(checkpoint))
    other = replace(origin, simulator=Simulator("embodied.testing.FakeEnv", {**ENV, **keys}))
    with pytest.raises(EnvsDifferError) as caught:
        observe(other, restore(checkpoint).policy, 2, torch.device("cpu"))
    assert said in caught.value.message


@pytest.mark.sim
@pytest.mark.slow
def test_observations_of_libero(tmp_path):
    from embodied.envs.libero import LiberoEnv

    from embodied.learn.origin import Origin

    size = {"camera_names": ["agentview"], "camera_heights": 64, "camera_widths": 64}
    kwargs = {"task_suite_name": "libero_spatial", "task_ids": [0], "init_params": size}
    spec = LiberoEnv(**kwargs).spec
    policy = build_policy(**SMALL, **LORA)
    policy.bind(spec)
    origin = Origin("", {}, (), 0, spec, Simulator("embodied.envs.libero.LiberoEnv", kwargs))
    seen = observe(origin, policy, 3, torch.device("cpu"))
    assert seen.obs["images"].shape == (3, 1, 64, 64, 3)
    assert seen.obs["images"].std() > 10
    assert seen.instructions == (spec.tasks[0],) * 3
    written = policy.export("hf", tmp_path / "hf", "fp32", seen, {})
    assert "measured on 3 observations of the env" in " ".join(written.notes)


# -- adapters --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(made: Path) -> Path:
    policy_of().save(made / "base")
    return made / "base"


def test_adapters_alone_are_a_folder_of_peft(made, base, seen, tmp_path):
    keys = {**LORA, "model_path": str(base)}
    checkpoint, out = save_checkpoint(made / "adapted", **keys), tmp_path / "lora"
    assert export.main([str(checkpoint), "--out", str(out), "--format", "adapter", "--observations", "0"]) == 0
    live = restore(checkpoint).policy
    with torch.no_grad():  # as training would have left it
        live.model.language_model.lm_head.weight.mul_(1.5)
    inputs = live.inputs(seen)
    wanted = live.model(*inputs).logits
    live.export("adapter", tmp_path / "trained", "fp32", examples(), {})
    network = policy_of(model_path=str(base)).model.eval()
    before = network(*inputs).logits
    found = PeftModel.from_pretrained(network, tmp_path / "trained")
    assert (before - wanted).abs().max() > 0.1
    with torch.no_grad():
        assert (found.base_model.model(*inputs).logits - wanted).abs().max() < 1e-5
    said = json.loads((tmp_path / "trained" / "adapter_config.json").read_text(encoding="utf-8"))
    assert said["base_model_name_or_path"] == str(base)
    assert "language_model.lm_head" in said["modules_to_save"]
    read = open_export(out).policy
    original = restore(checkpoint).policy
    for one, two in zip(answers(original, seen), answers(read, seen), strict=True):
        assert torch.equal(one, two)


def examples() -> Any:
    from embodied.protocols import Examples

    return Examples()


def test_what_no_folder_of_adapters_holds_is_refused(made, base, checkpoint, tmp_path, capsys):
    whole = made / "whole" / "checkpoints" / "000001"
    if not whole.exists():
        save_checkpoint(made / "whole", is_lora=False)

    def said(source: Path, *more: str) -> str:
        given = ["--out", str(tmp_path / "out"), "--observations", "0", *more]
        assert export.main([str(source), *given]) == 2
        return capsys.readouterr().err

    assert "the policy has no adapters" in said(whole, "--format", "adapter")
    assert "was made at random, and is nowhere else" in said(checkpoint, "--format", "adapter")
    nothing = tmp_path / "nothing"  # options are checked before a checkpoint is read
    assert "Did you mean 'bf16'" in said(nothing, "--dtype", "bf61")
    assert "Did you mean 'int8'" in said(nothing, "--quantize", "int9")
    assert "expected a size in bytes, KB, MB or GB" in said(nothing, "--shard-size", "5 apples")
    assert "tensors of floating point alone" in said(checkpoint, "--quantize", "int8")
    parts = save_checkpoint(
        made / "parts", **LORA, model_path=str(base), trainable_map={"vision_backbone.featurizer.pos_embed": True}
    )
    assert "holds whole layers" in said(parts, "--format", "adapter")
    assert not (tmp_path / "out").exists()


# -- verification ----------------------------------------------------------------------------------------------------


def test_an_export_is_verified_by_evaluation(checkpoint, tmp_path, capsys):
    out = tmp_path / "hf"
    given = [str(checkpoint), "--out", str(out), "--observations", "0", *CONFIG, *VERIFY]
    assert export.main(given) == 0
    said = capsys.readouterr().out
    assert "verified: env=fake" in said
    found = json.loads((out / "verified.json").read_text(encoding="utf-8"))
    assert found["verified"]
    assert (found["episodes"], found["agreement"]["share"], found["differ"]) == (3, 1.0, [])
    assert "## Verification" in (out / "README.md").read_text(encoding="utf-8")
    assert open_export(out), "what was added is not checked"


def test_a_folder_of_another_policy_is_not(made, tmp_path, capsys, monkeypatch):
    """One tensor is written wrongly: the checksums fit, what acts is another policy. The run computed in 16 bits, and
    its folder is to be computed in 32: so much may differ."""
    write = save.write_weights

    def wrong(state: dict[str, torch.Tensor], *args: Any) -> None:
        name = "language_model.model.layers.1.mlp.down_proj.weight"
        write(state | {name: -9 * state[name]}, *args)

    monkeypatch.setattr(save, "write_weights", wrong)
    out, run = tmp_path / "hf", save_checkpoint(made / "sixteen", precision="bf16", **HEAD)
    given = [str(run), "--out", str(out), "--observations", "0", *CONFIG, *VERIFY]
    assert export.main(given) == 1
    said = capsys.readouterr().out
    assert "NOT VERIFIED" in said
    assert "episodes that differ: 3" in said
    found = json.loads((out / "verified.json").read_text(encoding="utf-8"))
    assert not found["verified"]
    assert found["tolerance"] == {"largest": 0.01, "share": 0.95}
    assert found["agreement"]["share"] < 0.95
    one = found["differ"][0]
    assert one["start"].keys() == {"task_id", "init_state_id", "seed"}
    assert one["checkpoint"].keys() == one["export"].keys() == {"success", "return", "steps"}
    assert one["equal_actions"] < 0.999
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "NOT VERIFIED" in card
    assert "| task | initial state | seed |" in card


def test_a_verification_of_another_policy_or_of_none_is_refused_before_a_checkpoint_is_read(tmp_path, capsys):
    def said(*more: str) -> str:
        assert export.main([str(tmp_path / "nothing"), "--out", str(tmp_path / "out"), *more]) == 2
        return capsys.readouterr().err

    assert "say which policy acts" in said(*CONFIG, "--verify", "env=fake", "model=fake")
    assert "expected how many episodes" in said(*CONFIG, "--verify", "env=fake", "episodes=some")
    assert "names no env" in said("--verify", "episodes=2")
    assert "are compared unperturbed" in said(*CONFIG, *VERIFY, "+perturb=robot")


def test_a_damaged_folder_is_not_opened(folder, tmp_path):
    import shutil

    shutil.copytree(folder, copied := tmp_path / "copied")
    file = copied / "value_head.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"value_head\.safetensors is damaged"):
        open_export(copied)
    facts = read_export(folder)
    assert facts.rounding == "none"
    (copied / "embodied.json").write_text(
        json.dumps(with_files(replace(facts, rounding="4 bits"), copied)), encoding="utf-8"
    )
    with pytest.raises(CheckpointError, match="rounding is '4 bits'"):
        open_export(copied)
