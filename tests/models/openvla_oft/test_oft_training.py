"""What is trained, where gradients go, adapters, precision, and random initialisation."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from embodied.models.openvla_oft import build_policy
from embodied.models.shared.lora import merged_state, save_adapter, sliced_linear
from safetensors.torch import load_file, save_file

from embodied.errors import CheckpointError, ConfigError
from embodied.types import Sampling

LORA = {"is_lora": True, "lora_rank": 4}


def loss_of(policy, obs, noise, batch: int = 4):
    fields = policy.act(obs, noise, Sampling()).fields
    result = policy.evaluate({**obs, **fields}, Sampling())
    value = 0.0 if result.value is None else result.value.square().mean()
    return result.logprobs.mean() + 0.1 * result.entropy.mean() + value


def trained_names(policy) -> set[str]:
    return {name for name, p in policy.named_parameters() if p.requires_grad}


@pytest.mark.parametrize(
    "keys",
    [
        {"use_proprio": True, "value_head": True},
        {"use_proprio": True, "value_head": True, **LORA, "lora_init_weights": False},
        {**LORA, "lora_init_weights": False, "lora_modules_to_save": ["lm_head"], "gradient_checkpointing": True},
        {"gradient_checkpointing": True, "attention": "causal"},
    ],
)
def test_the_gradient_reaches_every_trained_parameter(make, observe, noise, keys) -> None:
    policy = make(**keys).train()
    loss_of(policy, observe(4), noise(4)).backward()
    for name, parameter in policy.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
        else:
            assert parameter.grad is None, name


def test_only_adapters_and_heads_are_trained(make) -> None:
    names = trained_names(make(**LORA, value_head=True, use_proprio=True))
    assert names
    assert all(".lora_" in n or n.startswith(("value_head.", "model.proprio_projector.")) for n in names)
    assert any(n.startswith("value_head.") for n in names)
    assert not any(".lora_" in n and "proprio_projector" in n for n in names)


def test_the_released_targets_are_adapted(make) -> None:
    """Fused qkv, both projections, the Conv2d patch embedding, all linears of the language model, its head."""
    adapted = {n.rsplit(".lora_A", 1)[0].rsplit(".", 1)[-1] for n in trained_names(make(**LORA)) if ".lora_A" in n}
    wanted = {"qkv", "proj", "fc1", "fc2", "fc3", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj"}
    assert adapted == {*wanted, "down_proj", "lm_head"}


def test_modules_to_save_are_trained_in_full(make) -> None:
    names = trained_names(make(**LORA, lora_modules_to_save=["lm_head"]))
    assert "model.language_model.lm_head.weight" in names
    assert all(".lora_" in n or n == "model.language_model.lm_head.weight" for n in names)


def test_freeze_pattern_and_trainable_map(make) -> None:
    frozen = trained_names(make(freeze_pattern=r"vision_backbone|embed_tokens"))
    assert frozen
    assert not any("vision_backbone" in n or "embed_tokens" in n for n in frozen)
    mapped = trained_names(make(**LORA, trainable_map={"projector": True, "vision_backbone": False}))
    assert "model.projector.fc1.base_layer.weight" in mapped
    assert not any("vision_backbone" in n for n in mapped)


@pytest.mark.parametrize(
    "keys", [{"freeze_pattern": "vission"}, {"trainable_map": {"projecter": True}}, {"freeze_pattern": "."}]
)
def test_patterns_that_match_nothing_or_all(keys) -> None:
    with pytest.raises(ConfigError):
        build_policy(**keys)


def test_the_adapter_of_lm_head_reaches_the_sliced_head(make) -> None:
    policy = make(**LORA, lora_init_weights=False)
    head, hidden = policy.model.language_model.lm_head, torch.randn(2, 56, 128)
    with torch.no_grad():
        sliced = sliced_linear(head, hidden, slice(768, 1024))
        torch.testing.assert_close(sliced, head(hidden)[..., 768:1024], atol=1e-5, rtol=1e-5)
        assert (sliced - F.linear(hidden, head.weight[768:1024])).abs().max() > 1e-2


def test_a_new_adapter_changes_nothing(make, observe, noise) -> None:
    plain, adapted = make(), make(**LORA)
    one, two = (p.act(observe(2), noise(2), Sampling()).fields["logprobs"] for p in (plain, adapted))
    assert (one - two).abs().max() <= 1e-6


def test_merging_on_a_copy_is_exact(make, observe, noise) -> None:
    adapted, plain = make(**LORA, lora_init_weights=False), make()
    plain.model.load_state_dict(merged_state(adapted.model))
    one, two = (p.act(observe(2), noise(2), Sampling()).fields["logprobs"] for p in (adapted, plain))
    torch.testing.assert_close(one, two, atol=1e-4, rtol=0)


def test_adapters_go_to_a_peft_folder_and_back(make, observe, noise, tmp_path) -> None:
    adapted = make(**LORA, lora_init_weights=False)
    save_adapter(adapted.model, tmp_path)
    assert (tmp_path / "adapter_config.json").is_file()
    again = make(**LORA, lora_path=str(tmp_path))
    one, two = (p.act(observe(2), noise(2), Sampling()).fields["logprobs"] for p in (adapted, again))
    assert torch.equal(one, two)
    with pytest.raises(CheckpointError, match="of another shape"):
        make(is_lora=True, lora_rank=8, lora_path=str(tmp_path))
    with pytest.raises(CheckpointError, match="unknown"):
        make(**LORA, lora_path=str(tmp_path), lora_target_modules=["qkv"])
    with pytest.raises(CheckpointError, match="no adapter_model"):
        make(**LORA, lora_path=str(tmp_path / "none"))


def test_a_saved_policy_has_its_adapters_beside_the_merged_weights(make, observe, noise, tmp_path) -> None:
    """Merged alone, and unmerged from base and adapters: the same policy."""
    make().save(tmp_path / "base")
    adapted = make(**LORA, lora_init_weights=False)
    adapted.save(tmp_path / "hf")
    merged = make(model_path=str(tmp_path / "hf"))
    unmerged = make(**LORA, model_path=str(tmp_path / "base"), lora_path=str(tmp_path / "hf"))
    wanted = adapted.act(observe(2), noise(2), Sampling()).fields
    assert [policy.spec.random_weights for policy in (adapted, merged, unmerged)] == [True, False, False]
    for policy, tolerance in ((merged, 1e-4), (unmerged, 1e-6)):
        fields = policy.act(observe(2), noise(2), Sampling()).fields
        assert torch.equal(fields["action_tokens"], wanted["action_tokens"])
        torch.testing.assert_close(fields["logprobs"], wanted["logprobs"], atol=tolerance, rtol=0)


def test_the_scale_of_an_adapter_is_that_of_its_training(make, tmp_path) -> None:
    """No tensor tells it: 16 or 32 would be two policies from the same numbers."""
    save_adapter(make(**LORA, lora_init_weights=False, lora_alpha=8).model, tmp_path)
    for keys, said in (({}, "lora_alpha=8"), ({"lora_alpha": 8, "lora_use_rslora": True}, "lora_use_rslora=False")):
        with pytest.raises(CheckpointError, match=said):
            make(**LORA, **keys, lora_path=str(tmp_path))
    make(**LORA, lora_alpha=8, lora_path=str(tmp_path))


def test_a_released_adapter_folder(make, observe, noise, tmp_path) -> None:
    """OFT keeps it in ``lora_adapter``, with tensors of modules that are not built and without an adapter_config.json
    of ours; a cut file is named."""
    adapted, folder = make(**LORA, lora_init_weights=False), tmp_path / "lora_adapter"
    save_adapter(adapted.model, folder)
    file = folder / "adapter_model.safetensors"
    dead = {
        f"base_model.model.vision_backbone.{layer}.lora_{side}.weight": torch.ones(4, 4)
        for layer in ("featurizer.blocks.3.attn.qkv", "fused_featurizer.attn_pool.kv", "fused_featurizer.attn_pool.q")
        for side in "AB"
    }
    save_file({**load_file(file), **dead}, file)
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 4, "init_lora_weights": "gaussian"}), encoding="utf-8"
    )
    again = make(**LORA, lora_path=str(tmp_path))
    one, two = (p.act(observe(2), noise(2), Sampling()).fields["logprobs"] for p in (adapted, again))
    assert torch.equal(one, two)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"adapter_model\.safetensors is damaged"):
        make(**LORA, lora_path=str(tmp_path))


def test_ranks_and_scales(make) -> None:
    layer = make(**LORA, lora_alpha=8).model.language_model.lm_head
    assert layer.scaling["default"] == 2.0
    assert make(is_lora=True, lora_rank=32).model.language_model.lm_head.scaling["default"] == 0.5
    assert make(**LORA, lora_alpha=8, lora_use_rslora=True).model.language_model.lm_head.scaling["default"] == 4.0
    patterned = make(**LORA, lora_rank_pattern={"qkv": 2}, lora_alpha_pattern={"qkv": 6}).model
    assert patterned.vision_backbone.featurizer.blocks[0].attn.qkv.lora_A["default"].weight.shape[0] == 2
    assert patterned.vision_backbone.featurizer.blocks[0].attn.qkv.scaling["default"] == 3.0


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_16_bits_hold_frozen_weights_and_float32_trained_ones(make, observe, noise, precision, dtype) -> None:
    policy = make(**LORA, precision=precision, value_head=True)
    dtypes = {(p.requires_grad, p.dtype) for p in policy.parameters()}
    assert dtypes == {(True, torch.float32), (False, dtype)}
    exact, obs = make(**LORA), observe(4)
    one, two = (p.act(obs, noise(4), Sampling()).fields["logprobs"] for p in (policy, exact))
    assert (one.exp() - two.exp()).abs().mean() < 0.02


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_gap_between_rollout_and_training(make, observe, noise, precision) -> None:
    """The rollout's batches of 2 against the trainer's one of 8, as train/logprob_gap has it. One forward pass serves
    both: on a CPU the gap is 0 in either format; kernels of a GPU differ between batch sizes."""
    policy, obs, uniform = make(**LORA, lora_init_weights=False, precision=precision), observe(8), noise(8)
    parts = [
        policy.act({n: t[i : i + 2] for n, t in obs.items()}, uniform[i : i + 2], Sampling()).fields
        for i in range(0, 8, 2)
    ]
    records = {**obs, **{name: torch.cat([part[name] for part in parts]) for name in parts[0]}}
    gap = policy.train().evaluate(records, Sampling()).logprobs - records["logprobs"]
    assert gap.abs().max() <= (1e-5 if precision == "fp32" else 0.05)


def test_what_bf16_arithmetic_costs(make, observe, noise) -> None:
    """The same weights in float32: what other kernels can change in bf16, and why log-probs of a bf16 rollout must not
    be compared with those of a float32 trainer. At this size 0.01 nats a token on average and 0.05 at most, of a clip
    range of 0.2."""
    keys = {**LORA, "lora_init_weights": False}
    bf16, exact, obs = make(**keys, precision="bf16"), make(**keys), observe(8)
    exact.load_state_dict({name: tensor.float() for name, tensor in bf16.state_dict().items()})
    records = {**obs, **bf16.act(obs, noise(8), Sampling()).fields}
    gap = (exact.evaluate(records, Sampling()).logprobs - records["logprobs"]).abs()
    assert 0.002 < gap.mean() < 0.03
    assert gap.max() < 0.15


def test_fp16_gradients_need_their_scale(make, observe, noise) -> None:
    """The same weights in fp16 and float32, and a loss as small as the mean over a large batch: without a scale most of
    the gradient is below fp16's smallest number, with one it is right to a few per cent."""
    keys = {"is_lora": True, "lora_rank": 4, "lora_init_weights": False}
    half, exact, obs = make(**keys, precision="fp16"), make(**keys), observe(4)
    exact.load_state_dict({name: tensor.float() for name, tensor in half.state_dict().items()})
    records = {**obs, **half.act(obs, noise(4), Sampling()).fields}

    def gradient(policy, scale: float) -> torch.Tensor:
        policy.zero_grad()
        (policy.evaluate(records, Sampling()).logprobs.sum() * 1e-7 * scale).backward()
        return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]) / scale

    right = gradient(exact, 1.0)
    errors = {scale: (gradient(half, scale) - right).norm() / right.norm() for scale in (1.0, 65536.0)}
    assert errors[65536.0] < 0.05
    assert errors[1.0] > 4 * errors[65536.0]


def test_a_few_steps_raise_the_probability_of_an_action(make, observe, noise) -> None:
    policy, obs = make(**LORA, lora_modules_to_save="lm_head"), observe(4)
    optimizer = torch.optim.Adam([p for p in policy.parameters() if p.requires_grad], lr=3e-3)
    records = {**obs, **policy.act(obs, noise(4), Sampling()).fields}
    before = policy.evaluate(records, Sampling()).logprobs.mean().item()
    for _ in range(5):
        optimizer.zero_grad()
        (-policy.evaluate(records, Sampling()).logprobs.mean()).backward()
        optimizer.step()
    assert policy.evaluate(records, Sampling()).logprobs.mean().item() > before + 0.3


def test_random_weights_are_a_function_of_the_seed_alone(make) -> None:
    keys = {**LORA, "value_head": True}
    torch.manual_seed(0)
    one, state = make(**keys, seed=3).state_dict(), torch.get_rng_state()
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state), "building must not touch the global random state"
    torch.manual_seed(99)
    two, other = make(**keys, seed=3).state_dict(), make(**keys, seed=4).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["model.projector.fc1.base_layer.weight"], other["model.projector.fc1.base_layer.weight"])


def test_a_head_more_changes_no_other_weight(make) -> None:
    plain, more = make().state_dict(), make(value_head=True, use_proprio=True).state_dict()
    assert all(torch.equal(plain[name], more[name]) for name in plain)
