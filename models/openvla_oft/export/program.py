"""Writes the policy as a program (``embodied.tools.export --format torch_export | onnx | aoti``), and measures it.

    policy ─▶ DecisionProgram ─(int8)─▶ traced ─▶ file ─▶ read again and run ─▶ compared with the policy

What is compared is the file that was written, run as it will be run. Greedy and sampled answers to the same
observations must agree with those of the policy to 1e-4, else nothing is exported.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodied.errors import ConfigError
from embodied.protocols import Examples, Exported, Policy
from embodied.types import Sampling

from ...shared.exporting import MODEL, USAGE, check_program, check_undivided, made_up, megabytes, observations
from ...shared.programs.cases import Case, cases_of, differs
from ...shared.programs.facts import TOKENIZER, Facts, PromptFacts
from ...shared.programs.int8 import num_bytes, quantize_linears
from ...shared.programs.run import open_program
from ...shared.programs.write import check_tools, write
from ...shared.prompts import padded
from ..network.config import N_BINS
from ..parts import Parts
from ..tokens.processing import TEMPLATE
from .decision import DecisionProgram, Difference, Reference, difference, module_answers, policy_answers

TOLERANCE = 1e-4  # tolerance for actions, in the env's units, and for log-probs, in nats
SAMPLINGS = (Sampling(do_sample=False), Sampling(temperature=1.6))


def export_program(
    policy: Policy, parts: Parts, kind: str, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
) -> Exported:  # fmt: skip
    """Writes a program. See :meth:`embodied.protocols.Exports.export`.

    Raises:
        ConfigError: the policy cannot be written so, a package or a compiler is missing, or the program computes other
            numbers.
    """
    check_undivided(options, kind)
    quantize = options.get("quantize")
    _check(parts, kind, dtype, quantize)
    assert parts.now.env is not None
    real = examples.obs is not None
    cases = cases_of(examples if real else made_up(parts.now.env), SAMPLINGS, partial(_inputs, parts))
    module = DecisionProgram(parts, by_products=kind == "onnx")
    plain_bytes = num_bytes(module)
    if parts.settings.precision == "fp32" and quantize is None:
        wanted = [policy_answers(policy, parts.device, case.inputs, case.texts, case.sampling) for case in cases]
        loss = None
    else:
        loss = _loss(policy, parts, module, cases, quantize)
        wanted = [module_answers(module, case.inputs) for case in cases]
    files = write(kind, module, cases[0].traced(), max(parts.settings.max_prompt_length, 32), folder)
    found = _verify(kind, folder, module, cases, wanted)
    shutil.copyfile(parts.tokenizer.path, folder / TOKENIZER)
    count = sum(len(case.texts) for case in cases) // 2
    measured = {"observations": count, "real": real, "largest_difference": asdict(found), "tolerance": TOLERANCE}
    measured |= {} if loss is None else {"loss": asdict(loss)}
    _facts(policy, parts, kind, quantize, measured).write(folder, [*files, TOKENIZER])
    size = sum((folder / name).stat().st_size for name in files)
    notes = [
        _said(kind, found, count, real),
        f"size: weights {megabytes(plain_bytes)} in fp32, files {megabytes(size)}",
    ]
    if loss is not None:
        notes.append(loss.summary(quantize, parts.settings.precision, count, real))
    if kind == "aoti":
        notes.append("it is machine code: whoever loads it runs it (actor.model.trust=true)")
    rounding = quantize or ("none" if parts.settings.precision == "fp32" else "16 bits")
    return Exported("embodied", USAGE, tuple(notes), rounding=rounding, model=MODEL, measured=measured)


def _check(parts: Parts, kind: str, dtype: str, quantize: str | None) -> None:
    if parts.model.net.autoregressive:
        raise ConfigError(
            f"--format {kind} writes one pass over the network, and this policy decodes its tokens one after the other "
            "(actor.model.decoding=autoregressive)",
            "write --format hf",
        )
    check_program(dtype, quantize)
    if parts.now.env is None:
        raise ConfigError("the policy is not bound to an env", "call policy.bind(env) before it is exported")
    check_tools(kind)


# -- observations ----------------------------------------------------------------------------------------------------


def _inputs(
    parts: Parts, obs: Mapping[str, Tensor], texts: Sequence[str], sampling: Sampling, seed: int
) -> dict[str, Tensor]:
    """Inputs of the program in their order."""
    rows, drawn = len(texts), torch.Generator().manual_seed(seed)
    ids, present = padded([parts.tokenizer.encode(text) for text in texts], parts.tokenizer.pad_id)
    inputs = {
        "images": obs["images"],
        "prompt": ids,
        "present": present,
        "noise": torch.rand(rows, parts.model.net.action_tokens, generator=drawn),
        "greedy": torch.full((rows,), not sampling.do_sample),
        "temperature": torch.full((rows,), sampling.temperature),
    }
    return {**inputs, "state": obs["state"].float()} if parts.model.net.proprio_dim else inputs


# -- what is measured ------------------------------------------------------------------------------------------------


def _verify(
    kind: str, folder: Path, module: DecisionProgram, cases: Sequence[Case], wanted: Sequence[Reference]
) -> Difference:
    """Run what was written. Raises ConfigError if it differs from what it should answer."""
    program = open_program(kind, folder)
    found, first = Difference(0.0, 0.0), module.network.net.first_action_id
    for case, reference in zip(cases, wanted, strict=True):
        answers = program(case.inputs)
        found |= difference(reference, answers, case.inputs, module.meaning, first, TOLERANCE)
    if found.largest > TOLERANCE:
        gaps = f"actions by up to {found.actions:.2g}, log-probs by up to {found.logprobs:.2g} nats"
        raise differs(kind, gaps, TOLERANCE)
    return found


@dataclass(frozen=True)
class Loss:
    """How an exported program's weights change the policy's greedy answers."""

    logprobs_largest: float  # nats, of the policy's own tokens
    logprobs_mean: float
    actions_largest: float  # the env's units
    actions_mean: float
    other_tokens: int
    tokens: int

    def summary(self, quantize: str | None, precision: str, count: int, real: bool) -> str:
        """Formats the changes in a sentence."""
        what = f"{quantize} weights" if quantize else f"fp32 instead of {precision}"
        return (
            f"{what}: log-probs change by at most {self.logprobs_largest:.2g} nats (mean {self.logprobs_mean:.2g}), "
            f"greedy actions by at most {self.actions_largest:.2g} (mean {self.actions_mean:.2g}), "
            f"{self.other_tokens} of {self.tokens} tokens are others, on {observations(count, real)}"
        )


def _loss(
    policy: Policy, parts: Parts, module: DecisionProgram, cases: Sequence[Case], quantize: str | None
) -> Loss:  # fmt: skip
    """Quantise ``module`` if that is asked for, and compare it with the policy on the greedy cases."""
    greedy = [case for case in cases if not case.sampling.do_sample]
    before = [policy_answers(policy, parts.device, case.inputs, case.texts, case.sampling) for case in greedy]
    if quantize is not None:
        quantize_linears(module.network)
    after = [module_answers(module, case.inputs) for case in greedy]
    own = torch.cat([one.tokens for one in before]) - module.network.net.first_action_id
    new = torch.cat([one.tokens for one in after]) - module.network.net.first_action_id
    old_logp, new_logp = (torch.cat([r.logp for r in part]).gather(-1, own.unsqueeze(-1)) for part in (before, after))
    moved = (new_logp - old_logp).abs()
    table = module.meaning.expand(len(own), -1, -1)
    meant, means = (table.gather(-1, classes.unsqueeze(-1)) for classes in (own, new))
    changed = (means - meant).abs()
    return Loss(
        moved.max().item(), moved.mean().item(), changed.max().item(), changed.mean().item(),
        int((own != new).sum()), own.numel(),
    )  # fmt: skip


# -- what is said ----------------------------------------------------------------------------------------------------


def _facts(
    policy: Policy, parts: Parts, kind: str, quantize: str | None, measured: Mapping[str, Any]
) -> Facts:  # fmt: skip
    net, tokenizer = parts.model.net, parts.tokenizer
    assert parts.now.env is not None
    ids = (tokenizer.bos_id, tokenizer.last_id, tokenizer.pad_id)
    return Facts(
        format=kind, env=parts.now.env, prompt=PromptFacts(TEMPLATE, True, *ids, parts.settings.max_prompt_length),
        num_images=net.num_images, state_dim=net.proprio_dim, num_action_chunks=net.num_action_chunks,
        action_dim=net.action_dim, first_token=net.first_action_id, categories=N_BINS, quantize=quantize,
        policy=policy.describe(), pictures=parts.pictures(), measured=measured,
    )  # fmt: skip


def _said(kind: str, found: Difference, count: int, real: bool) -> str:
    undecided = f"; {found.undecided} tokens were undecided within that" if found.undecided else ""
    return (
        f"the written {kind} program against Python, greedy and sampled: actions differ by at most "
        f"{found.actions:.2g}, log-probs by at most {found.logprobs:.2g} nats, on {observations(count, real)}"
        f"{undecided}"
    )
