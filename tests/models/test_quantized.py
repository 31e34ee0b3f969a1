"""Frozen layers in 8 or 4 bits: codes, gradients, training, resuming, export.

Needs bitsandbytes (125 MB), which ``make setup`` leaves out: ``test_quantized_package.py`` runs this file in an
environment that has it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from embodied.models.causal_lm import build_policy as build_text
from embodied.models.flow_vla import build_policy as build_flow
from embodied.models.openvla_oft import build_policy
from embodied.models.shared.quantized import QuantizedLinear, numbers_of, quantized_layers
from torch import nn
from torch.distributed.checkpoint import FileSystemReader

from embodied import train
from embodied.errors import ConfigError
from embodied.types import Sampling

pytest.importorskip("bitsandbytes", reason="see tests/models/test_quantized_package.py", exc_type=ImportError)
ROOT = Path(__file__).parents[2]
LORA = {"is_lora": True, "lora_rank": 4, "lora_init_weights": False}
BITS = pytest.mark.parametrize("bits", [8, 4])


@BITS
@pytest.mark.parametrize(("rows", "columns"), [(96, 64), (33, 96), (48, 304), (37, 66)])
def test_a_layer_lies_in_so_many_bits(bits, rows, columns) -> None:
    layer, weight = QuantizedLinear(columns, rows, bits), torch.randn(rows, columns)
    layer.quantize(weight)
    assert layer.weight.dtype is {8: torch.int8, 4: torch.uint8}[bits]
    assert layer.weight.nbytes == rows * columns * bits // 8
    assert numbers_of(layer) == rows * columns
    assert not layer.weight.requires_grad
    error = ((layer.dequantize(torch.float32) - weight).norm() / weight.norm()).item()
    assert error < {8: 0.008, 4: 0.11}[bits]
    if bits == 8:
        step = weight.abs().amax(1, keepdim=True) / 127
        assert ((layer.dequantize(torch.float32) - weight).abs() <= step * 0.6).all(), (
            "half a step of its row, and fp16"
        )


def test_equal_weights_have_equal_codes() -> None:
    weight, layers = torch.randn(64, 64), [QuantizedLinear(64, 64, 4) for _ in range(2)]
    for layer in layers:
        layer.quantize(weight)
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert torch.equal(layers[0].nested, layers[1].nested)


def as_floats(policy: nn.Module) -> None:
    """Puts plain layers in place of those in few bits, with the values that the codes stand for."""
    for name, layer in quantized_layers(policy).items():
        owner, _, leaf = name.rpartition(".")
        plain = nn.Linear(layer.in_features, layer.out_features, bias=False)
        plain.weight = nn.Parameter(layer.dequantize(torch.float32), requires_grad=False)
        plain.bias = layer.bias
        setattr(policy.get_submodule(owner), leaf, plain)


def gradients(policy, records) -> dict[str, torch.Tensor]:
    policy.zero_grad()
    (policy.evaluate(records, Sampling()).logprobs * torch.linspace(-1, 1, 56)).sum().backward()
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


@BITS
@pytest.mark.parametrize("recomputed", [False, True])
def test_adapters_get_the_gradients_of_the_weights_that_the_codes_stand_for(make, observe, bits, recomputed) -> None:
    policy = make(**LORA, quantization_bit=bits, gradient_checkpointing=recomputed).train()
    records = dict(observe(3))
    decided = policy.act(records, torch.rand(len(records["prompt"]), 56), Sampling())
    records |= decided.fields
    found, logprobs = gradients(policy, records), policy.evaluate(records, Sampling()).logprobs
    assert torch.equal(logprobs, records["logprobs"]), "act and evaluate are one computation"
    as_floats(policy)
    expected = gradients(policy, records)
    assert found.keys() == expected.keys()
    assert all(".lora_" in name for name in found)
    assert all(torch.allclose(found[name], expected[name], rtol=1e-4, atol=1e-7) for name in found)
    assert max(grad.abs().max() for grad in found.values()) > 0


@BITS
def test_only_the_layers_of_the_language_model_are_put_in_few_bits(make, bits) -> None:
    policy = make(**LORA, quantization_bit=bits, precision="bf16")
    assert {name.split("layers")[0] for name in quantized_layers(policy)} == {"model.language_model.model."}
    assert policy.model.language_model.lm_head.base_layer.weight.dtype is torch.bfloat16
    assert numbers_of(policy) == numbers_of(make(**LORA))
    assert f"{bits} bits" in policy.describe()["precision"]
    trained = {p.dtype for p in policy.parameters() if p.requires_grad}
    assert trained == {torch.float32}


@BITS
def test_a_folder_is_read_into_codes_and_exported_in_full(make, observe, tmp_path, bits) -> None:
    make(seed=3).save(tmp_path / "base")
    keys = {"size": None, "model_path": str(tmp_path / "base")}
    policy, plain = (make(**keys, **LORA, quantization_bit=b) for b in (bits, None))
    name, layer = next(iter(quantized_layers(policy).items()))
    base = plain.get_submodule(name).weight
    again = QuantizedLinear(layer.in_features, layer.out_features, bits)
    again.quantize(base.detach())
    assert torch.equal(again.weight, layer.weight)
    for written, one in (("quantized", policy), ("plain", plain)):
        one.save(tmp_path / written)
    files = [tmp_path / written / "model.safetensors" for written in ("quantized", "plain")]
    assert files[0].read_bytes() == files[1].read_bytes(), "adapters are merged into the base as it was"


def test_a_random_base_is_exported_in_full(make, tmp_path) -> None:
    for bits in (4, None):
        make(**LORA, quantization_bit=bits).save(tmp_path / str(bits))
    files = [tmp_path / str(bits) / "model.safetensors" for bits in (4, None)]
    assert files[0].read_bytes() == files[1].read_bytes()


@BITS
def test_texts(tmp_path, bits) -> None:
    policy, plain = (build_text(**LORA, quantization_bit=b) for b in (bits, None))
    assert len(quantized_layers(policy)) == 3 * 7
    assert numbers_of(policy) == numbers_of(plain)
    for name, one in (("quantized", policy), ("plain", plain)):
        one.save(tmp_path / name)
    files = [tmp_path / name / "model.safetensors" for name in ("quantized", "plain")]
    assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(ConfigError, match="engine"):
        policy.engine_facts()


@BITS
def test_the_trunk_of_a_flow_policy(made_up_env, tmp_path, bits) -> None:
    sizes = {"layout": "pi0", "hidden_size": 64, "vision_hidden_size": 32, "max_prompt_length": 200}
    policy, plain = (build_flow(**sizes, precision="bf16", quantization_bit=b) for b in (bits, None))
    layers = quantized_layers(policy)
    assert len(layers) == 3 * 7 + 2, "all of the trunk that is built: of its last layer keys and values"
    assert all(".trunk." in name for name in layers)
    assert numbers_of(policy) == numbers_of(plain)
    assert f"trunk in {bits} bits" in policy.describe()["precision"]
    with pytest.raises(ConfigError, match="quantization_bit"):
        build_flow(**sizes, **LORA, quantization_bit=bits, lora_modules_to_save="k_proj", train_expert_only=False)
    plain.bind(made_up_env)
    plain.save(tmp_path / "base")
    folder = {"model_path": str(tmp_path / "base"), "lora_rank": 2, "is_lora": True, "lora_init_weights": False}
    for name, more in (("quantized", {"quantization_bit": bits}), ("plain", {})):
        build_flow(**folder, **more).save(tmp_path / name)
    files = [tmp_path / name / "model.safetensors" for name in ("quantized", "plain")]
    assert files[0].read_bytes() == files[1].read_bytes(), "adapters are merged into the base as it was"


def test_weights_in_few_bits_are_not_trained() -> None:
    for keys in ({"trainable_map": {"language_model.model.layers.0": True}}, {"lora_modules_to_save": "o_proj"}):
        with pytest.raises(ConfigError, match="quantization_bit = 4"):
            build_policy(**LORA, quantization_bit=4, **keys)


RUN = (
    "env=fake", "model=openvla_oft_tiny", "tracker=jsonl", "runner.device=cpu", "env.train.max_episode_steps=8",
    "algorithm.adv_type=raw", "runner.save_interval=1", "runner.val_check_interval=-1", "actor.optim.lr=0.01",
    "runner.experiment_name=run", "env.eval.video_cfg.save_video=false",
)  # fmt: skip


def saved(folder: str, iteration: int) -> Path:
    return Path(folder, "runs", "run", "checkpoints", f"{iteration:06d}")


def tensors_in(checkpoint: Path) -> dict[str, bytes]:
    """Bytes of the tensors; what stands beside them has times and a random name."""
    return {file.name: file.read_bytes() for file in checkpoint.rglob("*.distcp")}


@BITS
def test_a_run_saves_what_is_trained_and_goes_on_to_the_same_bits(tmp_path, monkeypatch, bits) -> None:
    args = [*RUN, f"+actor.model.quantization_bit={bits}", "--config-dir", str(ROOT / "tests" / "config")]
    for folder in ("whole", "cut"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "whole")
    assert train.main([*args, "runner.max_epochs=2"]) == 0
    monkeypatch.chdir(tmp_path / "cut")
    assert train.main([*args, "runner.max_epochs=1"]) == 0
    assert train.main([*args, "runner.max_epochs=2", "runner.resume_dir=auto"]) == 0
    monkeypatch.chdir(tmp_path)
    names = FileSystemReader(saved("whole", 2)).read_metadata().state_dict_metadata.keys()
    assert any(".lora_A." in name for name in names)
    assert not any("base_layer" in name or name.endswith((".scale", ".nested")) for name in names)
    assert tensors_in(saved("whole", 1)) != tensors_in(saved("whole", 2))
    assert tensors_in(saved("whole", 2)) == tensors_in(saved("cut", 2))


@pytest.mark.parametrize(("more", "total"), [((), 7.8), (("actor.model.quantization_bit=8",), 10.91)])
def test_libero_12gb_takes_what_the_docs_say(tmp_path, more, total) -> None:
    from embodied.parallel.group import Group
    from embodied.run.build.preflight import check
    from embodied.run.memory import say
    from embodied.schema.compose.compose import compose

    asked = ["experiment=libero_12gb", "env=fake", "runner.dry_run=true", f"runner.output_dir={tmp_path}", *more]
    checked = check(compose(asked, "train", [str(ROOT / "tests" / "config")]), Group())
    found = say.plan(checked.config, checked.sides, Group(), checked.demonstrations)
    assert round(found.taken.on_device / 2**30, 2) == pytest.approx(total, abs=0.05)


def test_a_dry_run_counts_codes_and_scales(tmp_path) -> None:
    from embodied.parallel.group import Group
    from embodied.run.build.preflight import check
    from embodied.run.memory import counting
    from embodied.schema.compose.compose import compose

    def counted(*more: str, **keys: int):
        args = [*RUN, f"runner.output_dir={tmp_path}", "actor.model.precision=bf16", *more]
        checked = check(compose(args, "train", [str(ROOT / "tests" / "config")]), Group())
        return counting.count(checked.config, checked.sides, Group(), checked.demonstrations, **keys)

    plain, few = counted(), {bits: counted(f"+actor.model.quantization_bit={bits}") for bits in (8, 4)}
    layers = quantized_layers(few[8].policy)
    numbers, rows = (sum(count(one) for one in layers.values()) for count in (_numbers, _rows))
    assert plain.weights.all - few[8].weights.all == 2 * numbers - (numbers + 4 * rows)
    scales = 1024 + sum(
        one.scale.nbytes + one.nested.nbytes + 4 for one in quantized_layers(few[4].policy).values()
    )  # fmt: skip
    assert plain.weights.all - few[4].weights.all == 2 * numbers - (numbers // 2 + scales)
    for bits, found in few.items():
        without = counted(f"+actor.model.quantization_bit={bits}", limit=0)
        assert (without.weights, without.passes) == (found.weights, found.passes), "tensors without memory"
        assert found.why_not is None


def _numbers(layer: QuantizedLinear) -> int:
    return layer.shape.numel()


def _rows(layer: QuantizedLinear) -> int:
    return layer.out_features
