"""The conformance check for authors of policies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.algorithms.layout import Counts, Layout
from embodied.errors import SpecMismatchError
from embodied.instructions import fields_of
from embodied.parallel.modes import without_dropout
from embodied.protocols import ActorCritic, Clonable, ContinuesChunks, HasDemonstrationLoss, Policy
from embodied.random import Stream, generator
from embodied.types import ContinuousAction, DiscreteAction, EnvSpec, Evaluation, Gaussian, Noise, PolicySpec, Sampling


def check_policy(policy: Policy, env: EnvSpec, batch: int = 3, tolerance: float = 1e-4) -> None:
    """Drive every method of ``policy`` on made-up observations of ``env`` and compare with its spec.

    Checks: the spec agrees with itself; decision fields have the declared shape and dtype; actions lie within the env's
    range; equal noise gives equal decisions, and other noise others; of the noise a greedy decision reads the part that
    ``spec.noise`` names; ``evaluate`` agrees with ``act`` on the log-probs; both compute them in each declared number
    format; every trainable parameter gets a gradient; the distribution, if there is one, adds up to one, or its
    Gaussians fit the log-probs; if there is an ``encode_actions``, it gives an action's fields back; a
    ``demonstration_loss`` is [B, H], finite, differentiable, of each record alone, and a function of the noise that it
    is given; an ``act_after`` reads what is left of a chunk, and no more.

    Raises:
        SpecMismatchError: the field, what was got, and what was expected.
    """
    policy.bind(env)
    layout = _check_spec(policy.spec)
    random = torch.Generator().manual_seed(0)  # the verdict is the same every time
    obs = _observations(policy, env, batch, random)
    noise, other = (_draw(policy.spec.noise, batch, random) for _ in range(2))
    sampling = Sampling()
    lines = policy.probe(obs)
    _expect(all(isinstance(line, str) for line in lines), "probe()", repr(lines), "lines of text")
    with torch.no_grad():
        fields, again = policy.act(obs, noise, sampling).fields, policy.act(obs, noise, sampling).fields
    for name, spec in policy.spec.decision.items():
        _expect_field(name, fields.get(name), (batch, *spec.shape), spec.dtype)
        _expect(torch.equal(fields[name], again[name]), f"'{name}' under equal noise", "differs", "equal")
    _check_range(env, policy.spec, fields["actions"])
    _check_noise(policy, obs, (noise, other))
    result = policy.evaluate({**obs, **fields}, sampling)
    _check_evaluation(policy.spec, layout, result, fields, tolerance)
    _check_formats(policy, layout, obs, noise)
    _check_gradients(policy, result, layout, fields)
    if policy.spec.distribution:
        _check_distribution(policy, {**obs, **fields}, sampling, tolerance)
    if isinstance(policy, Clonable):
        _check_encoded_actions(policy, policy.spec, fields)
    if isinstance(policy, HasDemonstrationLoss):
        _check_demonstration_loss(policy, obs, fields["actions"], random)
    if isinstance(policy, ContinuesChunks):
        _check_continued(policy, obs, noise, fields["actions"])
    _check_new_sentence(policy, obs, noise)


def _check_spec(spec: PolicySpec) -> Layout:
    """Check what the runtime relies on in a spec."""
    layout = Layout(spec.elements, spec.num_action_chunks)
    for name in ("actions", "logprobs"):
        _expect(name in spec.decision, "PolicySpec.decision", f"no field '{name}'", f"a field '{name}'")
    actions, logprobs = spec.decision["actions"], spec.decision["logprobs"]
    steps = actions.shape[:1]
    _expect(steps == (spec.num_action_chunks,), "first axis of 'actions'", str(steps), f"({spec.num_action_chunks},)")
    count = 1
    for length in logprobs.shape:
        count *= length
    _expect(count == layout.size, "numbers in 'logprobs'", str(count), f"{layout.size}, one an element")
    if spec.elements.length_axis is not None:
        got = spec.decision.get("length")
        shown = "nothing" if got is None else f"{got.dtype} {got.shape}"
        _expect(shown == "int32 ()", "decision field 'length' of a length axis", shown, "int32 ()")
    _check_declared_noise(spec.noise)
    if spec.demonstration_noise is not None:
        _check_declared_noise(spec.demonstration_noise)
    for name in spec.categories:
        shown = spec.decision[name].dtype if name in spec.decision else "nothing"
        _expect(shown.startswith("int"), f"PolicySpec.categories: field '{name}'", shown, "integers")
    return layout


def _check_declared_noise(noise: Noise) -> None:
    kinds = ("uniform", "normal")
    _expect(noise.kind in kinds, "kind of a Noise", noise.kind, " or ".join(kinds))
    for name in ("uniform", "greedy"):
        count, most = getattr(noise, name), noise.shape[0] if noise.shape else 0
        _expect(0 <= count <= most, f"{name} of a Noise", str(count), f"0 to {most}, entries of its first axis")


def _check_range(env: EnvSpec, spec: PolicySpec, actions: Tensor) -> None:
    wanted, declared = env.action.field(spec.num_action_chunks), spec.decision["actions"]
    _expect(declared == wanted, "PolicySpec.decision['actions']", str(declared), f"{wanted}, which the env takes")
    if isinstance(env.action, DiscreteAction):
        inside = (actions >= 0) & (actions < env.action.num_actions)
        _expect(bool(inside.all()), "actions", f"{int((~inside).sum())} outside", f"0 to {env.action.num_actions - 1}")
        return
    if not isinstance(env.action, ContinuousAction):
        return  # any bytes are a text
    low, high = torch.tensor(env.action_low), torch.tensor(env.action_high)
    inside = (actions >= low - 1e-5) & (actions <= high + 1e-5)
    _expect(
        bool(inside.all()), "actions", f"{int((~inside).sum())} outside", f"all in {env.action_low}..{env.action_high}"
    )


def _check_noise(policy: Policy, obs: Mapping[str, Tensor], draws: tuple[Tensor, Tensor]) -> None:
    """Check that sampling depends on the noise, and a greedy decision on the part alone that the spec names."""
    (noise, other), read = draws, policy.spec.noise.greedy

    def same(one: Tensor, two: Tensor, sampling: Sampling) -> bool:
        with torch.no_grad():
            first, second = (policy.act(obs, each, sampling).fields["actions"] for each in (one, two))
        return torch.equal(first, second)

    if noise.numel():
        _expect(not same(noise, other, Sampling()), "actions under other noise", "the same", "others")
    greedy, rest = Sampling(do_sample=False), torch.cat([noise[:, :read], other[:, read:]], 1) if read else other
    part = f" behind the first {read} entries, spec.noise.greedy" if read else ""
    _expect(same(noise, rest, greedy), f"actions with do_sample=False under other noise{part}", "others", "the same")
    if read:
        what = f"actions with do_sample=False under other noise in the first {read} entries, spec.noise.greedy"
        _expect(not same(noise, other, greedy), what, "the same", "others")


def _check_new_sentence(policy: Policy, obs: Mapping[str, Tensor], noise: Tensor) -> None:
    """Check that an instruction that is in no task table is answered like any other."""
    told = _encode(policy, ["a sentence that no task of the env has"] * len(noise))
    with torch.no_grad():
        fields = policy.act({**obs, **told}, noise, Sampling()).fields
    for name, spec in policy.spec.decision.items():
        _expect_field(f"{name} of a new sentence", fields.get(name), (len(noise), *spec.shape), spec.dtype)


def _check_evaluation(
    spec: PolicySpec, layout: Layout, result: Evaluation, fields: Mapping[str, Tensor], tolerance: float
) -> None:
    got = tuple(result.logprobs.flatten(1).shape)
    expected = (len(fields["logprobs"]), layout.size)
    _expect(got == expected, "log-probs of evaluate()", str(got), f"{expected}: one an element")
    differences = (result.logprobs.detach().flatten(1) - fields["logprobs"].flatten(1)).abs()
    gap = float(differences[layout.element_mask(_counts(layout, fields))].max())
    _expect(gap <= tolerance, "log-probs of evaluate and act", f"differ by {gap:.2g}", f"at most {tolerance:.2g}")
    shown = "none" if result.entropy is None else str(tuple(result.entropy.flatten(1).shape))
    _expect(shown == (str(expected) if spec.entropy else "none"), "entropy of evaluate()", shown,
            str(expected) if spec.entropy else "none, as PolicySpec.entropy is False")  # fmt: skip


def _check_formats(policy: Policy, layout: Layout, obs: Mapping[str, Tensor], noise: Tensor) -> None:
    """Check that log-probs are numbers of each format that the spec declares."""
    for name in policy.spec.logprob_dtypes:
        sampling, dtype = Sampling(logprob_dtype=name), getattr(torch, name)
        with torch.no_grad():
            fields = policy.act(obs, noise, sampling).fields
            result = policy.evaluate({**obs, **fields}, sampling)
        counted = layout.element_mask(_counts(layout, fields))
        for method, logprobs in (("act", fields["logprobs"]), ("evaluate", result.logprobs)):
            values = logprobs.flatten(1)[counted]
            same = values.dtype == torch.float32 and torch.equal(values, values.to(dtype).float())
            _expect(same, f"log-probs of {method}()", f"{values.dtype}, not computed in {name}", f"{name}, as float32")


def _check_distribution(
    policy: Policy, records: Mapping[str, Tensor], sampling: Sampling, tolerance: float
) -> None:  # fmt: skip
    """Check that probabilities of all choices add up to 1 and that their entropy is the one that ``evaluate`` gives."""
    with torch.no_grad():
        result = policy.evaluate(records, sampling, distribution=True)
    if isinstance(result.distribution, Gaussian):
        _check_gaussian(result, result.distribution, tolerance)
        return
    logp = result.distribution
    shown = "nothing" if logp is None else f"{tuple(logp.shape)}"
    expected = tuple(result.logprobs.shape)
    fits = logp is not None and tuple(logp.shape[:2]) == expected and logp.ndim == 3
    _expect(fits, "distribution of evaluate(…, distribution=True)", shown, f"{expected} and the choices")
    assert logp is not None
    gap = float((logp.exp().sum(-1) - 1).abs().max())
    _expect(gap <= tolerance, "sum of the distribution's probabilities", f"1 ± {gap:.2g}", f"1 ± {tolerance:.2g}")
    if result.entropy is not None:
        gap = float((-(logp.exp() * logp).sum(-1) - result.entropy).abs().max())
        _expect(gap <= 10 * tolerance, "entropy and distribution", f"differ by {gap:.2g}", f"at most {10 * tolerance}")


def _check_gaussian(result: Evaluation, gaussian: Gaussian, tolerance: float) -> None:
    """Check that no log-prob exceeds the largest density of its Gaussian, and that the entropy is the Gaussian's."""
    mean, std, logp = (values.flatten(1) for values in (*gaussian, result.logprobs))
    shown, expected = f"{tuple(mean.shape)} and {tuple(std.shape)}", tuple(logp.shape)
    _expect(mean.shape == std.shape == logp.shape, "mean and std of the Gaussians", shown, f"{expected} each")
    _expect(bool((std > 0).all()), "std of the Gaussians", f"{float(std.min()):.2g}", "numbers above 0")
    over = float((logp + std.log() + math.log(2 * math.pi) / 2).max())
    _expect(over <= tolerance, "log-probs", f"{over:.2g} above the Gaussians' largest density", "none above it")
    if result.entropy is not None:
        gap = float((std.log() + math.log(2 * math.pi * math.e) / 2 - result.entropy.flatten(1)).abs().max())
        _expect(gap <= 10 * tolerance, "entropy and distribution", f"differ by {gap:.2g}", f"at most {10 * tolerance}")


def _check_encoded_actions(policy: Clonable, spec: PolicySpec, fields: Mapping[str, Tensor]) -> None:
    """Check that the encoded actions of a decision are its fields, or others that stand for the same actions."""
    exact = spec.elements.length_axis is None  # a text has many spellings in tokens
    for name, found in policy.encode_actions(fields["actions"]).items():
        _expect(name in spec.decision, f"'{name}' of encode_actions()", "no field of a decision", "one of the spec's")
        declared = spec.decision[name]
        _expect_field(f"{name} of encode_actions()", found, (len(found), *declared.shape), declared.dtype)
        if exact and declared.dtype.startswith("int"):
            differ = (found != fields[name]).float().mean().item()
            _expect(differ < 0.05, "encode_actions() of a decision's actions", f"{differ:.0%} other {name}", "the same")


def _check_demonstration_loss(
    policy: Any, obs: Mapping[str, Tensor], chunk: Tensor, random: torch.Generator
) -> None:  # fmt: skip
    what, batch, results, spec = "demonstration_loss()", len(chunk), [], policy.spec
    horizon, drawn = spec.horizon or spec.num_action_chunks, spec.demonstration_noise or spec.noise
    actions = chunk[:, torch.arange(horizon) % spec.num_action_chunks]
    noise = _draw(drawn, batch, random)
    with without_dropout(policy), torch.random.fork_rng(devices=[]):
        for seed in (0, 1):  # torch's own generator must not matter
            torch.manual_seed(seed)
            results.append(policy.demonstration_loss({**obs, "actions": actions}, actions, noise))
        first = {name: values[:1] for name, values in obs.items()}
        alone = policy.demonstration_loss({**first, "actions": actions[:1]}, actions[:1], noise[:1])
    loss, again = results
    _expect_field(what, loss, (batch, horizon), "float32")
    _expect(bool(loss.isfinite().all()), what, "numbers that are not finite", "finite ones")
    _expect(loss.requires_grad, what, "no gradient", "a loss that depends on the parameters")
    _expect(torch.equal(loss, again), f"{what} under equal noise", "another loss", "an equal one: draw nothing besides")
    _expect(
        torch.allclose(alone, loss[:1], atol=1e-4), f"{what} of one record", "another loss in a batch", "an equal one"
    )


def _check_continued(policy: Any, obs: Mapping[str, Tensor], noise: Tensor, chunk: Tensor) -> None:
    """Check that a decision goes on from the actions that are left, of which there are 1, 2, … in the rows."""
    left = torch.arange(len(chunk)) % chunk.shape[1] + 1
    counts = (torch.arange(chunk.shape[1]) < left[:, None])[..., None]
    found = []
    for beyond in (0.0, float("nan")):
        rest = torch.where(counts, chunk, beyond)
        with torch.no_grad():
            found.append(
                policy.act_after(obs, noise, Sampling(do_sample=False), rest, left, left - 1).fields["actions"]
            )
    spec = policy.spec.decision["actions"]
    _expect_field("actions of act_after()", found[0], (len(chunk), *spec.shape), spec.dtype)
    _expect(torch.equal(*found), "act_after() with other numbers behind what is left", "other actions", "the same")


def _draw(noise: Noise, batch: int, random: torch.Generator) -> Tensor:
    seed = int(torch.randint(2**62, (), generator=random))
    return torch.from_numpy(np.stack([noise.draw(generator(seed, Stream.EVAL_NOISE, 0, row)) for row in range(batch)]))


def _observations(policy: Policy, env: EnvSpec, batch: int, random: torch.Generator) -> dict[str, Tensor]:
    obs = {}
    for name in fields_of(env):
        spec = env.obs[name]
        shape = (batch, *spec.shape)
        if spec.dtype == "uint8":
            obs[name] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)
        else:
            obs[name] = torch.randn(shape, generator=random).to(getattr(torch, spec.dtype))
    texts = [env.tasks[row % len(env.tasks)] for row in range(batch)]
    return obs | _encode(policy, texts)


def _encode(policy: Policy, texts: Sequence[str]) -> dict[str, Tensor]:
    encoded = policy.encode_instructions(texts)
    for name, values in encoded.items():
        _expect(
            len(values) == len(texts), f"rows of '{name}' of encode_instructions()", str(len(values)), str(len(texts))
        )
    return dict(encoded)


def _check_gradients(policy: Policy, result: Evaluation, layout: Layout, fields: Mapping[str, Tensor]) -> None:
    """Check the gradients of all that counts when every action was executed."""
    loss = layout.reduce(result.logprobs, _counts(layout, fields), layout.levels[0]).sum()
    for part in (result.entropy, result.value):
        if part is not None:
            loss = loss + part.sum()
    loss.backward()
    without = [name for name, p in policy.named_parameters() if p.requires_grad and p.grad is None]
    if isinstance(policy, ActorCritic):  # its critics and its temperature learn by propose() and judge()
        without = [name for name in without if name.startswith("actor.")]
    _expect(not without, "gradients", f"none for {', '.join(without[:5])}", "one for every trainable parameter")


def _counts(layout: Layout, fields: Mapping[str, Tensor]) -> Counts:
    """What counts of decisions whose actions were all executed."""
    lengths = fields["length"].long() if layout.elements.length_axis is not None else None
    return Counts(torch.full((len(fields["logprobs"]),), layout.num_actions), lengths)


def _expect_field(name: str, got: Tensor | None, shape: tuple[int, ...], dtype: str) -> None:
    shown = "nothing" if got is None else f"{str(got.dtype).removeprefix('torch.')} {tuple(got.shape)}"
    _expect(shown == f"{dtype} {shape}", f"decision field '{name}'", shown, f"{dtype} {shape}")


def _expect(holds: bool, what: str, got: str, expected: str) -> None:
    if not holds:
        raise SpecMismatchError(
            f"{what}: got {got}, expected {expected}",
            "correct the policy; embodied/protocols/policy.py says what each method promises",
        )
