"""The policy around a program: :class:`embodied.protocols.Policy` without weights that could be trained.

Shapes: B rows, L prompt tokens, K actions of A numbers, T = K·A action tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from embodied.errors import ConfigError, SpecMismatchError
from embodied.instructions import FIELD
from embodied.types import Decision, EnvSpec, Evaluation, PolicySpec, Sampling

from ..shared.programs.facts import TOKENIZER, Facts, read
from ..shared.programs.run import Program, open_program
from ..shared.programs.write import LEAST_TOKENS
from ..shared.prompts import PromptIds, read_tokenizer


class ExportedPolicy(nn.Module):
    """A policy that runs an exported program. It runs on the CPU, wherever observations come from."""

    def __init__(self, folder: Path, facts: Facts, prompts: PromptIds, program: Program) -> None:
        super().__init__()
        self.folder, self.facts, self.prompts = folder, facts, prompts
        # In a tuple torch does not find its weights: they are no parameters, and never move.
        self._program = (program,)
        self._least = 0  # least tokens of a prompt: one length for all tasks of the bound env

    @property
    def env(self) -> EnvSpec:
        """The env that the program was made for."""
        return self.facts.env

    @property
    def spec(self) -> PolicySpec:
        """See :attr:`embodied.protocols.Policy.spec`."""
        return self.facts.spec

    def bind(self, env: EnvSpec) -> None:
        """See :meth:`embodied.protocols.Policy.bind`. The env must be like the one that the program was made for."""
        _check_fit(self.facts, env)
        self._least = self.facts.prompt.max_tokens if FIELD in env.obs else LEAST_TOKENS
        self._least = max([self._least, *map(len, self._encode(env.tasks))])

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        """See :meth:`embodied.protocols.Policy.encode_instructions`.

        Returns ``prompt_ids`` int64 [B, L] and ``prompt_present`` bool [B, L]. L is that of the longest task, or
        ``max_tokens`` if observations bring their own instructions. Only a longer sentence makes it longer.
        """
        ids, present = self.prompts.padded(self._encode(texts), self._least)
        return {"prompt_ids": ids, "prompt_present": present}

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Raises SpecMismatchError if an instruction is too long."""
        rows = [self.prompts.encode(text) for text in texts]
        for text, row in zip(texts, rows, strict=True):
            if len(row) > self.facts.prompt.max_tokens:
                raise SpecMismatchError(
                    f"the instruction '{text[:80]}…' ({len(text)} characters) is {len(row)} tokens long with its "
                    f"prompt, the program takes {self.facts.prompt.max_tokens}",
                    "shorten it, or train and export with a larger actor.model.max_prompt_length",
                )
        return rows

    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        """See :meth:`embodied.protocols.Policy.probe`. Nothing is left open."""
        return ()

    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        """See :meth:`embodied.protocols.Policy.act`."""
        self._check_sampling(sampling)
        rows, device = len(noise), noise.device
        inputs = {
            "images": obs["images"],
            "prompt": obs["prompt_ids"],
            "present": obs["prompt_present"],
            "noise": noise,
            "greedy": torch.full((rows,), not sampling.do_sample),
            "temperature": torch.full((rows,), float(sampling.temperature)),
        }
        if self.facts.state_dim:
            inputs["state"] = obs["state"].float()
        (program,) = self._program
        found = program({name: values.cpu().contiguous() for name, values in inputs.items()})
        return Decision({name: values.to(device) for name, values in found.items()})

    def _check_sampling(self, sampling: Sampling) -> None:
        if not self.facts.spec.categories and sampling.do_sample and sampling.temperature != 1:
            raise ConfigError(
                f"the program has no table of choices, and temperature is {sampling.temperature:g}",
                "set algorithm.val_sampling_params.temperature=1",
            )
        if 0 < sampling.top_k < self.facts.categories or sampling.top_p < 1:
            raise ConfigError(
                f"an exported program draws from the whole distribution, and top_k is {sampling.top_k}, top_p "
                f"{sampling.top_p:g}",
                "set algorithm.val_sampling_params.top_k=0 and algorithm.val_sampling_params.top_p=1",
            )

    def evaluate(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        """Raises ConfigError: an exported program cannot be evaluated with gradients."""
        raise ConfigError(
            f"{self.folder} is an exported program, which answers and cannot be trained",
            "train the checkpoint that it was made from: runner.ckpt_path=runs/NAME/checkpoints/NUMBER with its model",
        )

    def pictures(self) -> Mapping[str, Any]:
        """Describes how the program prepares pictures (:meth:`embodied.protocols.PreparesPictures.pictures`). Of a
        folder that does not say it, the answer names the program: so it differs from that of others."""
        if self.facts.pictures:
            return self.facts.pictures
        return {"not recorded, program": {name: noted for name, noted in self.facts.files.items() if name != TOKENIZER}}

    def sampler(self, sampling: Sampling) -> Mapping[str, Any]:
        """See :meth:`embodied.protocols.NamesSampler.sampler`. Empty of a program of action tokens."""
        found: Mapping[str, Any] = self.facts.sampler.get("sampled" if sampling.do_sample else "greedy", {})
        return found

    def describe(self) -> Mapping[str, str]:
        """See :meth:`embodied.protocols.Policy.describe`."""
        facts = self.facts
        weights = "" if facts.quantize is None else f", {facts.quantize} weights"
        shown = ("model", "parameters", "statistics")
        return {
            "program": f"{facts.format}{weights}, {self.folder}",
            **{name: facts.policy[name] for name in shown if name in facts.policy},
            "output": f"{facts.num_action_chunks} actions × {facts.action_dim}",
        }


def build(model_path: str, threads: int | None, trust: bool) -> ExportedPolicy:
    """Builds the policy. See :func:`embodied.models.exported.build_policy`."""
    folder = Path(model_path).expanduser()
    facts = read(folder)
    if facts.format == "aoti" and not trust:
        raise ConfigError(
            f"{folder} holds machine code (format aoti), which could do anything",
            "if it is your own, set actor.model.trust=true; else ask for the format onnx, which holds no code",
        )
    said = facts.prompt
    tokenizer = read_tokenizer(folder / TOKENIZER)
    prompts = PromptIds(tokenizer, said.text, said.bos_id, said.last_id, said.pad_id, said.whole)
    return ExportedPolicy(folder, facts, prompts, open_program(facts.format, folder, threads, facts.outputs))


def _check_fit(facts: Facts, env: EnvSpec) -> None:
    """Raises SpecMismatchError for the first thing in which ``env`` is not like the env of the program."""
    own, count = facts.env, facts.num_images
    read_fields = ("images", "state") if facts.state_dim else ("images",)
    for name in read_fields:
        _same(f"obs['{name}']", _field(own, name), _field(env, name))
    _same("cameras", own.cameras[:count], env.cameras[:count])
    if env.continuous != own.continuous:
        low, high = env.action_low, env.action_high
        raise SpecMismatchError(
            f"the program gives {facts.action_dim} numbers an action in {own.action_low} … {own.action_high}, the env "
            f"takes {env.action_dim} in {low} … {high}",
            "choose the env that the program was made for, or export a policy of this env",
        )


def _field(env: EnvSpec, name: str) -> str:
    spec = env.obs.get(name)
    return "nothing" if spec is None else f"{spec.dtype} {list(spec.shape)}"


def _same(what: str, wanted: object, got: object) -> None:
    if wanted != got:
        raise SpecMismatchError(
            f"{what}: the program was made for {wanted}, the env gives {got}",
            "choose the env that the program was made for, with the same cameras and sizes (env.*.init_params), or "
            "export a policy of this env",
        )
