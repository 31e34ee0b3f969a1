"""A flow policy as the runtime drives it: records, one trunk pass an observation, what is trained, statistics."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from embodied.models.flow_vla import build_policy
from embodied.models.flow_vla.network.blocks import Angles
from embodied.models.flow_vla.network.model import FlowVLA, Inputs
from embodied.models.flow_vla.policy import FlowVLAPolicy
from embodied.models.flow_vla.sampling.chains import solve
from embodied.models.flow_vla.sampling.times import beta_times
from torch import Tensor

from embodied.algorithms.layout import Counts, Layout
from embodied.errors import ConfigError
from embodied.testing import check_policy
from embodied.types import EnvSpec, Sampling

LAYOUTS = ("smolvla", "pi0", "pi05")
SMALL: Mapping[str, Any] = {
    "action_horizon": 6, "num_action_chunks": 4, "action_width": 9, "state_width": 12, "hidden_size": 32,
    "intermediate_size": 48, "expert_hidden_size": 24, "expert_intermediate_size": 40, "vision_hidden_size": 32,
    "vision_intermediate_size": 32, "num_attention_heads": 4, "max_prompt_length": 200,
}  # fmt: skip


@pytest.fixture(scope="module")
def flow(made_up_env: EnvSpec) -> Callable[..., FlowVLAPolicy]:
    """Small policies bound to the made-up env."""

    def made(layout: str = "pi0", **keys: Any) -> FlowVLAPolicy:
        policy = build_policy(layout=layout, **{**SMALL, **keys})
        policy.bind(made_up_env)
        return policy

    return made


def observed(policy: FlowVLAPolicy, rows: int, seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (rows, 2, 64, 64, 3), dtype=torch.uint8, generator=random)
    tasks = [policy.parts.now.env.tasks[row % 3] for row in range(rows)]  # type: ignore[union-attr]
    return {
        "images": images, "state": torch.randn(rows, 8, generator=random), **policy.encode_instructions(tasks)
    }  # fmt: skip


def noise_of(policy: FlowVLAPolicy, rows: int, seed: int = 1) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randn(rows, *policy.spec.noise.shape, generator=random)
    drawn[:, -1] = torch.rand(rows, generator=random)
    return drawn


@pytest.mark.parametrize(
    ("layout", "keys"),
    [
        ("smolvla", {}),
        ("pi0", {"noise_steps": "all", "value_head": True, "train_expert_only": False}),
        ("pi05", {"noise_method": "flow_noise"}),
        ("smolvla", {"noise_method": "flow_noise", "noise_steps": "all", "gradient_checkpointing": True}),
        ("pi0", {"is_lora": True, "lora_rank": 4}),
        ("pi05", {"value_head": True, "value_type": "action_level"}),
        ("pi05", {"state_in_prompt": False}),
    ],
)
def test_it_keeps_what_a_policy_promises(made_up_env: EnvSpec, layout: str, keys: Mapping[str, Any]) -> None:
    check_policy(build_policy(layout=layout, **{**SMALL, **keys}), made_up_env)


@pytest.mark.parametrize("said", [True, False])
def test_a_prompt_of_pi05_has_the_state_in_it_or_not(flow: Callable[..., FlowVLAPolicy], said: bool) -> None:
    policy = flow("pi05", state_in_prompt=said)
    first, noise = observed(policy, 2), noise_of(policy, 2)
    other = {**first, "state": first["state"] + 1}
    tokens = [policy.parts.inputs(obs).tokens for obs in (first, other)]
    acted = [policy.act(obs, noise, Sampling(do_sample=False)).fields["actions"] for obs in (first, other)]
    assert torch.equal(*tokens) is not said
    assert torch.equal(*acted) is not said


@pytest.mark.parametrize("layout", ["smolvla", "pi0"])
def test_a_state_that_stands_in_no_prompt_cannot_be_left_out_of_it(layout: str) -> None:
    with pytest.raises(ConfigError, match="a token of its own") as found:
        build_policy(layout=layout, state_in_prompt=False)
    assert "remove the key" in str(found.value)


# -- one trunk pass --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_acting_with_the_cache_is_one_pass_over_everything(flow: Callable[..., FlowVLAPolicy], layout: str) -> None:
    policy = flow(layout)
    inputs = policy.parts.inputs(observed(policy, 3))
    x, time = torch.randn(3, 6, 9, generator=torch.Generator().manual_seed(5)), torch.tensor([1.0, 0.4, 0.1])
    with torch.no_grad():
        cached = policy.model.velocity(policy.model.read(inputs), x, time)
        assert torch.allclose(cached, joint_velocity(policy.model, inputs, x, time), atol=1e-5)


def joint_velocity(model: FlowVLA, inputs: Inputs, x: Tensor, time: Tensor) -> Tensor:
    """All tokens in one pass under one mask, as training code of the original does it."""
    prefix = model.embed(inputs)
    suffix, condition = model._suffix(inputs.state, x, time)
    p, s = prefix.present.shape[1], suffix.shape[1]
    present = torch.cat([prefix.present, torch.ones(len(x), s, dtype=torch.bool)], 1)
    kinds = {"smolvla": [0] * (p - 1) + [1] + [1] * s, "pi0": [0] * p + [1, 1] + [0] * (s - 2)}
    block = torch.tensor(kinds.get(model.sizes.layout, [0] * p + [1] + [0] * (s - 1))).cumsum(0)
    allowed = (block[None, :] <= block[:, None])[None] & present[:, None, :]
    allowed = allowed | torch.eye(p + s, dtype=torch.bool)[None]  # padding sees itself
    angles = Angles.of(present.long().cumsum(1) - 1, model.sizes.head_dim)
    own = Angles.of(torch.arange(s)[None], model.sizes.head_dim)
    a, b = prefix.embeddings, suffix
    for number, layer in enumerate(model.layers):
        trunk, expert = layer.trunk, layer.expert
        na, nb = trunk.input_layernorm(a)[0], expert.input_layernorm(b, condition)[0]
        gate = expert.input_layernorm(b, condition)[1]
        ka, va = trunk.self_attn.memory(na)  # type: ignore[operator]
        last = number == model.sizes.layers - 1
        qa = None if last else trunk.self_attn.queries(na)  # type: ignore[operator]
        qb = expert.self_attn.queries(nb)  # type: ignore[operator]
        if model.sizes.crosses(number):
            keys = angles_of(angles, 0, p).rotate(ka)
            flat = (t.transpose(1, 2).flatten(2) for t in (keys, va))
            kb, vb = (
                expert.self_attn.heads(w(t))
                for w, t in zip((expert.self_attn.k_proj, expert.self_attn.v_proj), flat, strict=True)
            )  # type: ignore[operator]
            out_b = attention(own.rotate(qb), kb, vb, allowed[:, p:, :p])
            out_a = None if qa is None else attention(angles_of(angles, 0, p).rotate(qa), keys, va, allowed[:, :p, :p])
        else:
            kb, vb = expert.self_attn.memory(nb)  # type: ignore[operator]
            keys, values = angles.rotate(torch.cat([ka, kb], 2)), torch.cat([va, vb], 2)
            out_b = attention(angles_of(angles, p, p + s).rotate(qb), keys, values, allowed[:, p:])
            rows = angles_of(angles, 0, p)
            out_a = None if qa is None else attention(rows.rotate(qa), keys, values, allowed[:, :p])
        a = a if out_a is None else trunk.finish(a, out_a, None, None)  # type: ignore[operator]
        b = expert.finish(b, out_b, gate, condition)  # type: ignore[operator]
    return model.action_out_proj(model.expert_norm(b[:, -x.shape[1] :], condition)[0])


def angles_of(angles: Angles, begin: int, end: int) -> Angles:
    return Angles(angles.cos[:, :, begin:end], angles.sin[:, :, begin:end])


def attention(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Softmax written out."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    return scores.masked_fill(~allowed[:, None], -1e30).softmax(-1) @ v


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_of_a_record_in_one_pass_are_as_many_evaluations(flow: Callable[..., FlowVLAPolicy], layout: str) -> None:
    policy = flow(layout, noise_steps="all")
    calls = {"trunk": 0, "expert": 0}

    def count(module: Any, args: tuple[Any, ...]) -> None:
        calls["trunk" if len(args) < 3 else "expert"] += 1

    records = _recorded(policy, 3)
    handles = [policy.model.layers[0].register_forward_pre_hook(count)]
    whole = policy.evaluate(records, Sampling()).logprobs
    assert calls == {"trunk": 1, "expert": 1}
    assert whole.shape == (3, 4, 4, 7)
    handles[0].remove()
    for step in range(4):
        one = {**records, **{name: records[name][:, step : step + 1] for name in ("before", "after", "step")}}
        mean, std = policy._gaussians(policy.parts.field(policy.parts.read(one)), one["before"], one["step"].long())
        single = -((one["after"] - mean) ** 2) / (2 * std**2) - std.log() - 0.5 * math.log(2 * math.pi)
        assert torch.allclose(whole[:, step], single[:, 0].float(), atol=1e-5)


def _recorded(policy: FlowVLAPolicy, rows: int, seed: int = 0) -> dict[str, Tensor]:
    obs = observed(policy, rows, seed)
    return {**obs, **policy.act(obs, noise_of(policy, rows), Sampling()).fields}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_batch_of_sixteen_is_sixteen_of_one(flow: Callable[..., FlowVLAPolicy], layout: str) -> None:
    policy = flow(layout)
    obs, noise = observed(policy, 16), noise_of(policy, 16)
    whole = policy.act(obs, noise, Sampling()).fields
    with torch.no_grad():
        evaluated = policy.evaluate({**obs, **whole}, Sampling()).logprobs
    for row in range(0, 16, 5):
        one = {name: values[row : row + 1] for name, values in obs.items()}
        alone = policy.act(one, noise[row : row + 1], Sampling()).fields
        assert torch.allclose(alone["actions"], whole["actions"][row : row + 1], atol=1e-5)
        record = {name: values[row : row + 1] for name, values in whole.items()}
        with torch.no_grad():
            logprobs = policy.evaluate({**one, **record}, Sampling()).logprobs
        assert torch.allclose(logprobs, evaluated[row : row + 1], rtol=0, atol=1e-5)  # 1.3e-6 were measured


def test_equal_weights_have_the_ratio_one_in_equal_shapes(flow: Callable[..., FlowVLAPolicy]) -> None:
    policy = flow("smolvla")
    records = _recorded(policy, 5)
    first, again = (policy.evaluate(records, Sampling()).logprobs for _ in range(2))
    assert torch.equal((first - again).exp(), torch.ones_like(first))


# -- what a decision is ----------------------------------------------------------------------------------------------


def test_a_greedy_decision_is_the_ode_from_drawn_noise(flow: Callable[..., FlowVLAPolicy]) -> None:
    policy = flow("pi0", eval_steps=7)
    obs, noise = observed(policy, 2), noise_of(policy, 2)
    found = policy.act(obs, noise, Sampling(do_sample=False)).fields["actions"]
    context = policy.parts.read(obs)
    first = noise[:, : 6 * 9].view(2, 6, 9)
    with torch.no_grad():
        chunk = solve(lambda x, time: policy.model.velocity(context, x, time), first, 7)
    assert torch.allclose(
        found, chunk[:, :4, :7].clamp(-1, 1), atol=1e-6
    )  # the env's range is −1 … 1, and so are its statistics
    assert policy.sampler(Sampling(do_sample=False)) == {"sampler": "ode", "num_steps": 7}
    assert policy.sampler(Sampling())["noise_level"] == 0.5


def test_the_uniform_number_chooses_the_step(flow: Callable[..., FlowVLAPolicy]) -> None:
    policy = flow("pi0")
    noise = noise_of(policy, 4)
    noise[:, -1] = torch.tensor([0.0, 0.26, 0.5, 0.999])
    assert policy.act(observed(policy, 4), noise, Sampling()).fields["step"][:, 0].tolist() == [0, 1, 2, 3]


def test_log_probs_are_of_executed_actions_and_real_dimensions(flow: Callable[..., FlowVLAPolicy]) -> None:
    policy = flow("pi0")
    records = _recorded(policy, 3)
    assert records["logprobs"].shape == (3, 4, 7)
    obs, noise = observed(policy, 3), noise_of(policy, 3)
    links = noise[:, 6 * 9 : -1].view(3, 6, 9)
    links[:, 4:], links[:, :, 7:] = 0.0, 0.0  # draws of what is not executed, and of padding
    fields = policy.act(obs, noise, Sampling()).fields
    assert torch.equal(fields["logprobs"], records["logprobs"])


def test_nan_in_actions_that_were_not_executed_changes_nothing(flow: Callable[..., FlowVLAPolicy]) -> None:
    policy, steps = flow("pi0"), torch.tensor([2, 4, 1])
    layout = Layout(policy.spec.elements, 4)
    gradients = []
    for spoiled in (False, True):
        records = _recorded(policy, 3)
        if spoiled:
            late = torch.arange(4)[None] >= steps[:, None]
            records["after"][:, 0][late] = math.nan
        policy.zero_grad(set_to_none=True)
        found = policy.evaluate(records, Sampling()).logprobs
        layout.reduce(found, Counts(steps, None), "chunk_level").sum().backward()
        gradients.append([p.grad.clone() for p in policy.parameters() if p.grad is not None])
    assert len(gradients[0]) > 20
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_it_goes_on_from_the_chunk_before(flow: Callable[..., FlowVLAPolicy]) -> None:
    policy = flow("pi0", eval_steps=10)
    obs, noise = observed(policy, 2), noise_of(policy, 2)
    greedy = policy.act(obs, noise, Sampling(do_sample=False)).fields["actions"]
    rest = torch.full((2, 4, 7), 0.5)
    left, delay = torch.tensor([4, 1]), torch.tensor([2, 0])
    found = policy.act_after(obs, noise, Sampling(do_sample=False), rest, left, delay).fields["actions"]
    assert (found - rest)[0, :2].abs().max() < 0.05 < (greedy - rest)[0, :2].abs().max()
    assert torch.allclose(found[1, 1:], greedy[1, 1:], atol=0.2)


# -- learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_flow_matching_by_the_formula(flow: Callable[..., FlowVLAPolicy], layout: str) -> None:
    policy = flow(layout)
    obs, spec = observed(policy, 3), policy.spec.demonstration_noise
    assert spec is not None
    noise = torch.rand(3, *spec.shape, generator=torch.Generator().manual_seed(2))
    actions = torch.rand(3, 6, 7, generator=torch.Generator().manual_seed(3)) * 2 - 1
    goal = F.pad(actions, (0, 2))  # the env's range is −1 … 1
    first, t = noise[:, :-1].view(3, 6, 9), beta_times(noise[:, -1])
    x = t[:, None, None] * first + (1 - t[:, None, None]) * goal
    velocity = policy.model.velocity(policy.parts.read(obs), x, t)
    wanted = ((velocity - first + goal) ** 2)[..., :7].mean(-1)
    assert torch.allclose(policy.demonstration_loss(obs, actions, noise), wanted, atol=1e-5)
    actions[1, 4:] = math.nan
    spoiled = policy.demonstration_loss(obs, actions, noise)
    assert torch.allclose(spoiled[[0, 2]], wanted[[0, 2]], atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("lora", [False, True])
def test_a_frozen_trunk_keeps_its_bits(flow: Callable[..., FlowVLAPolicy], layout: str, lora: bool) -> None:
    policy = flow(layout, is_lora=lora, lora_rank=2)
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    context = policy.parts.read(observed(policy, 3))
    reached = [memory.keys.requires_grad for memory in context.memories]
    crossed = [policy.model.sizes.crosses(number) for number in range(4)]
    assert reached == ([True] * 4 if lora else crossed)  # the expert's own projections of it are learned
    records, optimizer = _recorded(policy, 3), torch.optim.AdamW(policy.parameters(), lr=1e-2)
    policy.evaluate(records, Sampling()).logprobs.sum().backward()
    optimizer.step()
    after = dict(policy.named_parameters())
    trunk = [n for n in before if (".trunk." in n or n.startswith("model.vision")) and ".lora_" not in n]
    assert len(trunk) > 30
    assert all(torch.equal(before[name], after[name]) for name in trunk)
    assert not torch.equal(before["model.action_out_proj.weight"], after["model.action_out_proj.weight"])


@pytest.mark.parametrize("lora", [False, True])
def test_the_projection_of_the_state_learns_through_a_frozen_trunk(
    flow: Callable[..., FlowVLAPolicy], lora: bool
) -> None:
    frozen, learns, whole = (
        flow("smolvla", **keys)
        for keys in ({}, {"train_state_proj": True, "is_lora": lora, "lora_rank": 2}, {"train_expert_only": False})
    )
    records = _recorded(frozen, 3)
    for policy in (frozen, learns, whole):
        policy.evaluate(records, Sampling()).logprobs.sum().backward()
    assert frozen.model.state_proj.weight.grad is None
    wanted, found = whole.model.state_proj.weight.grad, learns.model.state_proj.weight.grad
    assert wanted is not None
    assert wanted.abs().max() > 0
    assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-6 * float(wanted.abs().max()))  # type: ignore[arg-type]
    reached = [n for n, p in learns.named_parameters() if p.grad is not None and ".expert" not in n and "lora" not in n]
    assert not any(".trunk." in name or "vision" in name or "embed" in name for name in reached)


def test_adapters_change_nothing_at_first(flow: Callable[..., FlowVLAPolicy]) -> None:
    plain, adapted = flow("smolvla"), flow("smolvla", is_lora=True, lora_rank=2)
    obs, noise = observed(plain, 2), noise_of(plain, 2)
    one, other = (policy.act(obs, noise, Sampling()).fields["actions"] for policy in (plain, adapted))
    assert torch.equal(one, other)


def test_the_kl_to_other_weights_has_means_and_deviations(flow: Callable[..., FlowVLAPolicy]) -> None:
    policy = flow("pi0", noise_method="flow_noise", noise_steps="all")
    records = _recorded(policy, 2)
    found = policy.evaluate(records, Sampling(), distribution=True)
    gaussian = found.distribution
    assert gaussian is not None
    mean, std = gaussian
    density = torch.distributions.Normal(mean, std).log_prob(records["after"])
    assert torch.allclose(density, found.logprobs, atol=1e-4)
    assert 0.08 <= float(std.detach().min()) < float(std.detach().max()) <= 0.16
    assert found.entropy is not None
    assert torch.allclose(found.entropy, torch.distributions.Normal(mean, std).entropy(), atol=1e-6)


# -- statistics ------------------------------------------------------------------------------------------------------


def test_statistics_of_demonstrations_are_used_and_kept(flow: Callable[..., FlowVLAPolicy]) -> None:
    policy, again = (flow("pi0", normalization="mean_std") for _ in range(2))
    values = {
        "action": {"mean": [0.1] * 7, "std": [0.5] * 7, "q01": [-1.0] * 7, "q99": [1.0] * 7},
        "proprio": {"mean": [2.0] * 8, "std": [4.0] * 8},
    }
    policy.use_statistics("demos", values)
    assert json.loads(policy.extra_state()["statistics"]) == {"name": "demos", **values}
    again.load_extra_state(policy.extra_state())
    obs, noise = observed(policy, 2), noise_of(policy, 2)
    one, other = (each.act(obs, noise, Sampling()).fields["actions"] for each in (policy, again))
    assert torch.equal(one, other)
    assert torch.allclose(policy.parts.inputs(obs).state[:, :8], (obs["state"] - 2) / 4, atol=1e-6)
    with pytest.raises(ConfigError, match="lack mean, std"):
        policy.use_statistics("demos", {"action": {"q01": [-1.0] * 7, "q99": [1.0] * 7}})
