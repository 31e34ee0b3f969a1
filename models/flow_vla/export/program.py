"""Writes the policy as a program (``embodied.tools.export --format torch_export | onnx | aoti``), and measures it.

    policy ─▶ DecisionProgram ─(int8)─▶ traced ─▶ file ─▶ read again and run ─▶ compared with the policy

What is compared is the file that was written, run as it will be run. Greedy and sampled answers to the same
observations must agree with those of the policy to 1e-4, else nothing is exported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.errors import ConfigError
from embodied.protocols import Examples, Exported
from embodied.random import Stream, generator
from embodied.types import EnvSpec, Sampling

from ...shared.change import Change, change
from ...shared.exporting import MODEL, USAGE, check_program, check_undivided, made_up, megabytes, observations
from ...shared.programs.cases import Case, cases_of, differs
from ...shared.programs.facts import TOKENIZER, Facts, PromptFacts
from ...shared.programs.int8 import num_bytes, quantize_linears
from ...shared.programs.run import open_program
from ...shared.programs.write import LEAST_TOKENS, check_tools, write
from ...shared.prompts import padded_behind
from ..inputs.texts import plain_prompt
from ..parts import Parts
from .decision import DecisionProgram, Exportable, gaps, policy_answers

TOLERANCE = 1e-4  # of each field; see gaps
SAMPLINGS = {"greedy": Sampling(do_sample=False), "sampled": Sampling()}


def export_program(
    policy: Exportable, kind: str, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
) -> Exported:  # fmt: skip
    """Writes a program. See :meth:`embodied.protocols.Exports.export`.

    Raises:
        ConfigError: the policy cannot be written so, a package or a compiler is missing, or the program computes other
            numbers.
    """
    check_undivided(options, kind)
    quantize, parts = options.get("quantize"), policy.parts
    env = _check(parts, kind, dtype, quantize)
    real = examples.obs is not None
    examples = examples if real else made_up(env)
    cases = cases_of(examples, SAMPLINGS.values(), partial(_inputs, policy))
    module = DecisionProgram(policy)
    plain_bytes = num_bytes(module)
    exact = parts.settings.precision == "fp32" and quantize is None
    loss = None if exact else _loss(policy, module, examples, quantize)
    reference = policy if exact else module.policy
    wanted = [policy_answers(reference, case.inputs, case.texts, case.sampling) for case in cases]
    most = max(parts.prompt_tokens, LEAST_TOKENS + 1)
    files = write(kind, module, cases[0].traced(), most, folder, tuple(policy.spec.decision))
    found = _verify(kind, folder, cases, wanted)
    assert parts.tokenizer is not None
    parts.tokenizer.write(folder / TOKENIZER)
    count = len(examples.instructions)
    measured = {"observations": count, "real": real, "largest_difference": found, "tolerance": TOLERANCE}
    measured |= {} if loss is None else {"loss": loss.as_json()}
    _facts(policy, env, kind, quantize, measured).write(folder, [*files, TOKENIZER])
    size = sum((folder / name).stat().st_size for name in files)
    notes = [
        _said(kind, found, count, real),
        f"size: weights {megabytes(plain_bytes)} in fp32, files {megabytes(size)}",
    ]
    if loss is not None:
        what = f"{quantize} weights" if quantize else f"fp32 instead of {parts.settings.precision}"
        notes.append(f"{what}, on {observations(count, real)}: {loss}")
    if kind == "aoti":
        notes.append("it is machine code: whoever loads it runs it (actor.model.trust=true)")
    rounding = quantize or ("none" if parts.settings.precision == "fp32" else "16 bits")
    return Exported("embodied", USAGE, tuple(notes), rounding=rounding, model=MODEL, measured=measured)


def _check(parts: Parts, kind: str, dtype: str, quantize: str | None) -> EnvSpec:
    if parts.state_in_text:
        raise ConfigError(
            f"--format {kind} takes the ids of a prompt, and π0.5's prompt has the state in it, as words that are made "
            "anew for each observation",
            "write --format hf",
        )
    if parts.settings.quantization_bit is not None:
        raise ConfigError(
            f"--format {kind} writes whole weights, and those of the trunk are held in "
            f"{parts.settings.quantization_bit} bits",
            "write --format hf",
        )
    check_program(dtype, quantize)
    if parts.now.env is None:
        raise ConfigError("the policy is not bound to an env", "call policy.bind(env) before it is exported")
    check_tools(kind)
    return parts.now.env


# -- observations ----------------------------------------------------------------------------------------------------


def _inputs(
    policy: Exportable, obs: Mapping[str, Tensor], texts: Sequence[str], sampling: Sampling, first: int
) -> dict[str, Tensor]:
    """Inputs of the program in their order."""
    rows, tokenizer, declared = len(texts), policy.parts.tokenizer, policy.spec.noise
    assert tokenizer is not None
    ids, present = padded_behind([tokenizer.encode(plain_prompt(text)) for text in texts], least=LEAST_TOKENS)
    noise = [declared.draw(generator(0, Stream.MEASURED_NOISE, first + row)) for row in range(rows)]
    return {
        "images": obs["images"], "prompt": ids, "present": present, "noise": torch.from_numpy(np.stack(noise)),
        "greedy": torch.full((rows,), not sampling.do_sample), "temperature": torch.ones(rows),
        "state": obs["state"].float(),
    }  # fmt: skip


# -- what is measured ------------------------------------------------------------------------------------------------


def _verify(
    kind: str, folder: Path, cases: Sequence[Case], wanted: Sequence[Mapping[str, Tensor]]
) -> dict[str, float]:  # fmt: skip
    """Runs what was written. Raises ConfigError if it differs from what it should answer."""
    program = open_program(kind, folder, outputs=tuple(wanted[0]))
    each = [gaps(one, program(case.inputs)) for case, one in zip(cases, wanted, strict=True)]
    found = {name: max(one[name] for one in each) for name in wanted[0]}
    if max(found.values()) > TOLERANCE:
        each_gap = ", ".join(f"{name} by up to {gap:.2g}" for name, gap in found.items())
        raise differs(kind, each_gap, TOLERANCE)
    return found


def _loss(policy: Exportable, module: DecisionProgram, examples: Examples, quantize: str | None) -> Change:
    """Quantises ``module`` if that is asked for, and compares it with the policy."""
    if quantize is not None:
        quantize_linears(module.policy.model)
    device = policy.parts.device
    found = change(policy, module.policy.to(device), examples, device)
    module.policy.cpu()
    return found


# -- what is said ----------------------------------------------------------------------------------------------------


def _facts(
    policy: Exportable, env: EnvSpec, kind: str, quantize: str | None, measured: Mapping[str, Any]
) -> Facts:  # fmt: skip
    parts = policy.parts
    return Facts(
        format=kind, env=env, prompt=PromptFacts("{}\n", False, 0, 0, 0, parts.prompt_tokens, whole=True),
        num_images=max(parts.now.order) + 1, state_dim=env.obs["state"].shape[0],
        num_action_chunks=policy.spec.num_action_chunks, action_dim=env.action_dim, quantize=quantize,
        policy=policy.describe(), pictures=policy.pictures(), measured=measured, declared=policy.spec,
        sampler={name: dict(policy.sampler(sampling)) for name, sampling in SAMPLINGS.items()},
    )  # fmt: skip


def _said(kind: str, found: Mapping[str, float], count: int, real: bool) -> str:
    return (
        f"the written {kind} program against Python, greedy and sampled: actions differ by at most "
        f"{found['actions']:.2g}, log-probs by at most {found['logprobs']:.2g} nats, on {observations(count, real)}"
    )
