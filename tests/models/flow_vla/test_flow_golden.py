"""The networks compute what LeRobot 0.6.1 computes, from folders of LeRobot and openpi."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from embodied.models.flow_vla.files.names import rename
from embodied.models.flow_vla.files.statistics import read_scales
from embodied.models.flow_vla.inputs.normalization import padded
from embodied.models.flow_vla.sampling.chains import sample_all, solve
from embodied.models.flow_vla.sampling.guidance import guided, prefix_weights
from embodied.models.flow_vla.sampling.steps import log_prob, mean_of, sde_steps
from flow_golden import FOLDERS, REAL, Golden, gap, golden
from torch import Tensor

SEEN, ANSWERED = 3e-5, 1e-5  # largest differences: of embeddings, keys, values, hidden; of what is answered


@pytest.fixture(scope="module", params=FOLDERS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return golden(request.param, tmp_path_factory.mktemp("golden"))


@pytest.fixture
def velocity(case: Golden) -> Callable[[Tensor, Tensor], Tensor]:
    context = case.context()

    def compute(x: Tensor, time: Tensor) -> Tensor:
        with torch.set_grad_enabled(x.requires_grad):
            return case.model.velocity(context, x, time)

    return compute


def test_pictures_are_prepared_as_the_original_does(case: Golden) -> None:
    for camera in range(2):
        assert torch.equal(case.inputs.pixels[:, camera], case[f"out.image{camera + 1}.prepared"])


def test_states_and_actions_are_normalised_by_the_folders_own_formulas(case: Golden) -> None:
    scales = read_scales(case.folder, None)
    found = scales.state.normalize(case["in.state"]), scales.action.normalize(case["in.actions"])
    wanted = case["out.state.normalized"], case["out.actions.normalized"]
    if not case.folder.openpi:
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        return
    for one, raw, table in zip(
        found, (case["in.state"], case["in.actions"]), (scales.state, scales.action), strict=True
    ):
        first, second = (torch.tensor(table.note[name]) for name in _pair(case))
        by_hand = (raw - first) / (second + 1e-6) if case.folder.layout == "pi0" else None
        if by_hand is None:
            by_hand = (raw - first) / (second - first + 1e-6) * 2 - 1
        assert torch.equal(one, by_hand)
    assert max(gap(one, other) for one, other in zip(found, wanted, strict=True)) > 1e-7  # another eps was seen


def _pair(case: Golden) -> tuple[str, str]:
    return ("mean", "std") if case.folder.layout == "pi0" else ("q01", "q99")


def test_actions_come_back_in_the_envs_units(case: Golden) -> None:
    action = read_scales(case.folder, None).action
    assert gap(action.denormalize(case["out.chunk.10"][..., :REAL]), case["out.actions.env.10"]) < ANSWERED
    assert gap(action.denormalize(action.normalize(case["in.actions"])), case["in.actions"]) < ANSWERED
    if case.folder.openpi:
        x = case["out.chunk.10"][..., :REAL]
        first, second = (torch.tensor(action.note[name]) for name in _pair(case))
        spread = x * (second + 1e-6) if case.folder.layout == "pi0" else (x + 1) / 2 * (second - first + 1e-6)
        assert torch.equal(action.denormalize(x), spread + first)


def test_what_the_trunk_sees_and_remembers(case: Golden) -> None:
    there = case["out.prefix.mask"]
    with torch.no_grad():
        prefix, context = case.model.embed(case.inputs), case.context()
        assert int(prefix.present.sum()) == int(there.sum())
        assert gap(prefix.embeddings[prefix.present], case["out.prefix.embeddings"][there]) < SEEN
        assert context.hidden is not None
        assert gap(context.hidden[prefix.present], case["out.prefix.hidden"][there]) < SEEN
        x, shared = prefix.embeddings, case.model.prefix_pass(prefix.present)
        for number, layer in enumerate(case.model.layers):
            x, memory = layer.trunk_pass(x, shared)  # type: ignore[operator]
            for kind, found in zip(("key", "value"), memory, strict=True):
                wanted = case[f"out.prefix.{kind}.{number}"].transpose(1, 2)[there]
                assert gap(found.transpose(1, 2)[prefix.present], wanted) < SEEN


def test_velocity(case: Golden, velocity: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert gap(velocity(case["in.x_t"], case["in.time"]), case["out.velocity"]) < ANSWERED


@pytest.mark.parametrize("steps", [1, 4, 10])
def test_chunks_of_the_ode(case: Golden, velocity: Callable[[Tensor, Tensor], Tensor], steps: int) -> None:
    assert gap(solve(velocity, case["in.noise"], steps), case[f"out.chunk.{steps}"]) < ANSWERED


def test_chain_of_the_flow_sde(case: Golden, velocity: Callable[[Tensor, Tensor], Tensor]) -> None:
    steps = sde_steps(4, 0.5)
    draws = case["in.sde_noise"].transpose(0, 1)
    chain = sample_all(lambda x, time: (velocity(x, time), None), case["in.noise"], draws, steps)
    links = torch.cat([chain.before, chain.chunk[:, None]], 1)
    assert gap(links.transpose(0, 1), case["out.sde.links"]) < ANSWERED
    for number, step in enumerate(steps):
        link, after = case["out.sde.links"][number : number + 2]
        mean = mean_of(step, link, velocity(link, torch.full((2,), step.time)))
        assert gap(mean, case[f"out.sde.mean.{number}"]) < ANSWERED
        assert gap(torch.tensor(step.std).double(), case[f"out.sde.std.{number}"]) < 1e-7
        found = log_prob(after, mean, step.std)[..., :REAL]
        assert gap(found, case[f"out.sde.logprob.{number}"]) < ANSWERED


@pytest.mark.parametrize("schedule", ["LINEAR", "EXP"])
def test_guided_chunks_by_lerobots_formula(
    case: Golden, velocity: Callable[[Tensor, Tensor], Tensor], schedule: str
) -> None:
    weights = prefix_weights(schedule.lower(), delay=2, horizon=4, total=6)
    assert gap(weights, case[f"out.rtc.weights.{schedule}"]) < 1e-7
    found = guided(velocity, case["in.noise"], case["in.rtc_left_over"], weights, 4)
    assert gap(found, case[f"out.rtc.chunk.{schedule}"]) < ANSWERED


def test_guided_chunk_by_the_papers_formula(case: Golden, velocity: Callable[[Tensor, Tensor], Tensor]) -> None:
    weights = prefix_weights("linear", delay=2, horizon=4, total=6)
    found = guided(velocity, case["in.noise"], case["in.rtc_left_over"], weights, 4, jacobian=True)
    assert gap(found, case["out.rtc.chunk.jacobian"]) < ANSWERED
    assert gap(found, case["out.rtc.chunk.LINEAR"]) > 100 * ANSWERED


def test_losses_and_gradients(case: Golden) -> None:
    model = case.model
    model.zero_grad(set_to_none=True)
    actions = padded(case["out.actions.normalized"], model.sizes.action_width)
    noise, time = case["in.noise"], case["in.time"]
    x = time[:, None, None] * noise + (1 - time[:, None, None]) * actions
    elements = (model.velocity(model.read(case.inputs), x, time) - (noise - actions)) ** 2
    assert gap(elements, case["out.loss.elements"]) < SEEN  # of values up to 114
    real = elements[..., :REAL]
    assert gap(real.mean(), case["out.loss.real"]) < ANSWERED
    assert gap(real[~case["in.action_is_pad"]].mean(), case["out.loss.real.unpadded"]) < ANSWERED
    real.mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = torch.stack([g.double().square().sum() for g in gradients.values()]).sum().sqrt()
    assert abs(norm / case["out.grad_norm"] - 1) < 3e-5
    compared = [name for name in case.numbers if name.startswith("out.grad.")]
    assert len(compared) >= 13
    for name in compared:
        stored = name.removeprefix("out.grad.").removeprefix("model.")
        wanted = case[name]
        assert gap(gradients[rename([stored]).own[stored]], wanted) < 3e-5 * float(wanted.abs().max())


def test_every_tensor_is_used_or_listed_as_dead(case: Golden, tmp_path_factory: pytest.TempPathFactory) -> None:
    stored = set(case.folder.stored.plain.values())
    used = {name for name in case.folder.names.own if name not in case.dead}
    assert used | set(case.dead) == stored
    assert not used & set(case.dead)
    assert len(used) == len([*case.model.parameters()])
    name = case.folder.path.name
    lean = golden(name, tmp_path_factory.mktemp("lean"), read_out=False)
    built = {own for own, _ in lean.model.named_parameters()}
    whole = {own for own, _ in case.model.named_parameters()}
    last = f"layers.{case.model.sizes.layers - 1}.trunk."
    kept = {f"{last}{leaf}.weight" for leaf in ("input_layernorm", "self_attn.k_proj", "self_attn.v_proj")}
    assert whole - built == {n for n in whole if n.startswith((last, "trunk_norm.")) and n not in kept}
    assert len(lean.dead) == len(case.dead) + len(whole - built)
    with torch.no_grad():
        lean_velocity = lean.model.velocity(lean.context(), case["in.x_t"], case["in.time"])
        assert torch.equal(lean_velocity, case.model.velocity(case.context(), case["in.x_t"], case["in.time"]))
