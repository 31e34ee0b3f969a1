"""The policy that the runtime drives: :class:`embodied.protocols.Policy` on top of the network.

Shapes: B rows, n images, S state, T = K·A action tokens, V values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied.logprobs import LOGPROB_DTYPES
from embodied.protocols import Examples, Exported
from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Evaluation, Noise, PolicySpec, Sampling

from ..shared import sampling as drawing
from ..shared.quantized import numbers_of
from ..shared.trained import not_training, training_modules
from .export import formats as exporting
from .fit import check_fit
from .network.config import N_BINS
from .network.flops import forward_flops, training_flops
from .network.model import Inputs, ReadOut
from .parts import Parts
from .settings import Settings
from .tokens.action_tokenizer import Range, gripper_from_env
from .tokens.normalization import Statistics, action_block
from .tokens.tokenizer import PromptTokenizer

MOST_PROMPTS = 1024  # rows of the prompt table at most: a server may see any number of sentences


class OpenVLAOFTPolicy(nn.Module):
    """The OpenVLA-OFT policy, made by :func:`~embodied.models.openvla_oft.build_policy`. Call ``bind`` first."""

    _no_split_modules = ("LlamaDecoderLayer", "Block")  # units of sharding and recomputation

    export_formats = exporting.KINDS  # see embodied.protocols.Exports

    prompts: Tensor
    present: Tensor

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.parts = parts
        # modules of this module, so that their weights are its own
        self.model, self.value_head, self.pixels = parts.model, parts.value_head, parts.pixels
        self.padded = False  # True if the bound prompts differ in length
        self._tasks: tuple[str, ...] = ()  # instructions of the bound env
        self._row: dict[str, int] = {}  # instruction → row of the table of prompts
        self._least = 0  # least tokens of a prompt, for envs whose sentences are not known beforehand
        self._training_modules: list[nn.Module] = []
        self.register_buffer("prompts", torch.empty(0, 0, dtype=torch.long), persistent=False)
        self.register_buffer("present", torch.empty(0, 0, dtype=torch.bool), persistent=False)

    @property
    def env(self) -> EnvSpec | None:
        """Env that the policy is bound to."""
        return self.parts.now.env

    @property
    def tokenizer(self) -> PromptTokenizer:
        return self.parts.tokenizer

    @property
    def settings(self) -> Settings:
        return self.parts.settings

    @property
    def statistics(self) -> Statistics:
        return self.parts.now.statistics

    @property
    def spec(self) -> PolicySpec:
        net = self.model.net
        decision = {
            "action_tokens": ArraySpec((net.action_tokens,), "int32"),
            "actions": ArraySpec((net.num_action_chunks, net.action_dim), "float32"),
            "logprobs": ArraySpec((net.action_tokens,), "float32"),
        }
        if self.value_head is not None:
            decision["value"] = ArraySpec((self.settings.values,), "float32")
        untrained = self.settings.model_path is None and self.settings.lora_path is None
        return PolicySpec(
            net.num_action_chunks, decision, Elements((net.num_action_chunks, net.action_dim), action_axis=0),
            Noise((net.action_tokens,)), categories={"action_tokens": N_BINS}, random_weights=untrained,
            logprob_dtypes=LOGPROB_DTYPES,
        )  # fmt: skip

    def bind(self, env: EnvSpec) -> None:
        """See :meth:`embodied.protocols.Policy.bind`."""
        check_fit(self.model.net, env)
        self.parts.now.env, self._tasks = env, tuple(dict.fromkeys(env.tasks))
        self._least = self.settings.max_prompt_length if "instruction" in env.obs else 0
        self._tokenise(self._tasks)
        self.parts.now.action_range = self.statistics.action or self._env_range(env)

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        """See :meth:`embodied.protocols.Policy.encode_instructions`.

        Returns ``prompt`` int64 [B]: rows of the prompt table, valid until the next call. New sentences are added to
        the table. All prompts have one length: that of the longest, or ``max_prompt_length`` if observations bring
        their own instructions. Then no sentence changes what is computed for another.
        """
        if new := [text for text in dict.fromkeys(texts) if text not in self._row]:
            kept = [*self._row] if len(self._row) + len(new) <= MOST_PROMPTS else self._tasks
            self._tokenise([*kept, *(text for text in dict.fromkeys(texts) if text not in kept)])
        return {"prompt": torch.tensor([self._row[text] for text in texts])}

    def _tokenise(self, texts: Sequence[str]) -> None:
        ids, present = self.tokenizer.table(texts, self.settings.max_prompt_length, self._least)
        self.prompts, self.present = ids.to(self.prompts.device), present.to(self.prompts.device)
        self.padded = not bool(present.all())
        self._row = {text: row for row, text in enumerate(texts)}

    def use_statistics(self, name: str, values: Mapping[str, Any]) -> None:
        """Scales actions and state by these ranges from now on
        (:meth:`embodied.protocols.UsesStatistics.use_statistics`). An entry of dataset_statistics.json fits too.

        ``actor.model.action_normalization`` says which entries are used. If the gripper is converted
        (``policy_setup``), its range is the datasets': 0 closed … 1 open.
        """
        key, action = self.settings.action_normalization, action_block(name, values)
        normalization = self.statistics.normalization.of_statistics(action, key)
        used = Statistics.from_block(name, values, self.model.net, normalization)
        used = used if self.settings.policy_setup == "none" else used.with_gripper(0.0, 1.0)
        self.parts.now.statistics, self.parts.now.action_range = used, used.action

    @torch.no_grad()
    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        """See :meth:`embodied.protocols.Policy.act`."""

        def choose(logits: Tensor, position: int) -> Tensor:
            logp = drawing.log_probs(logits, sampling)
            return drawing.draw(logp, noise[:, position : position + logits.shape[1]], sampling)

        with not_training(self._training_modules):
            read, classes = self.parts.decode(self.inputs(obs), choose)
            value = self._value(read)
        logp = drawing.log_probs(read.logits, sampling)
        tokens = classes + self.model.net.first_action_id
        fields = {
            "action_tokens": tokens.int(),
            "actions": self.decode_actions(tokens),
            "logprobs": logp.gather(-1, classes.unsqueeze(-1)).squeeze(-1),
        }
        return Decision(fields if value is None else {**fields, "value": value})

    def evaluate(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        """See :meth:`embodied.protocols.Policy.evaluate`."""
        tokens = records["action_tokens"].long()
        read = self.parts.read_out(self.inputs(records), tokens)
        logp = drawing.log_probs(read.logits, sampling)
        chosen = logp.gather(-1, (tokens - self.model.net.first_action_id).unsqueeze(-1)).squeeze(-1)
        return Evaluation(chosen, drawing.entropy(logp), self._value(read), logp if distribution else None)

    def forward(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        """Calls :meth:`evaluate`, for wrappers that hook ``forward``."""
        return self.evaluate(records, sampling, distribution)

    def decode_actions(self, tokens: Tensor) -> Tensor:
        """Decodes token ids [B, T] to float32 [B, K, A] in the env's units."""
        return self.parts.decode_actions(tokens)

    def encode_actions(self, actions: Tensor) -> Mapping[str, Tensor]:
        """Encodes actions as token ids int32 [B, T]. See :meth:`embodied.protocols.Clonable.encode_actions`."""
        action_range = self.parts.now.action_range
        assert action_range is not None, "bind() comes first"
        values = action_range.normalize(gripper_from_env(actions.double(), self.settings.policy_setup))
        return {"action_tokens": self.parts.action_tokenizer.encode(values).flatten(1).int()}

    @torch.no_grad()
    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        """See :meth:`embodied.protocols.Policy.probe`."""
        from .probe import look

        with not_training(self._training_modules):
            return look(self.parts, self.inputs(obs))

    def extra_state(self) -> Mapping[str, str]:
        """Returns what the run has settled: ranges, attention mask. See :class:`embodied.protocols.HasExtraState`."""
        told_or_open = self.settings.attention != "auto" or self.parts.now.attention_open
        return {**({} if told_or_open else {"attention": self.model.net.attention}), **self.statistics.as_text()}

    def load_extra_state(self, found: Mapping[str, str]) -> None:
        """Loads what :meth:`extra_state` returned. A mask that was asked for by name stays."""
        if self.settings.attention == "auto" and "attention" in found:
            self.model.set_attention(found["attention"])
            self.parts.now.attention_open = False
        if "statistics" in found:
            values = json.loads(found["statistics"])
            self.use_statistics(values.pop("name"), values)

    def describe(self) -> Mapping[str, str]:
        """See :meth:`embodied.protocols.Policy.describe`."""
        total = numbers_of(self)
        trained = sum(p.numel() for p in self.parameters() if p.requires_grad)
        net, settings = self.model.net, self.settings
        return {
            "model": f"OpenVLA-OFT {settings.model_path or f'{settings.size}, built at random (seed {settings.seed})'}",
            "parameters": f"{total:,}",
            "trained": f"{trained:,} ({100 * trained / total:.1f} %{', LoRA' if settings.is_lora else ''})",
            "precision": settings.precision
            + (f", frozen layers in {settings.quantization_bit} bits" if settings.quantization_bit else ""),
            "attention": net.attention
            + (" (to be probed)" if self.parts.now.attention_open else "")
            + (", stop token" if net.stop_token else ", no stop token"),
            "decoding": net.decoding,
            "input": f"{net.num_images} × {net.image_size} px, state {net.proprio_dim}, prompt {self.prompts.shape[1]}",
            "output": f"{net.num_action_chunks} actions × {net.action_dim}",
            "statistics": self.statistics.describe(),
            **({"code of the checkpoint": "none was needed, and none was run"} if settings.trust_remote_code else {}),
        }

    def pictures(self) -> Mapping[str, Any]:
        """Describes how pictures are prepared. See :meth:`embodied.protocols.PreparesPictures.pictures`."""
        return self.parts.pictures()

    def flops(self, records: Mapping[str, np.ndarray], training: bool) -> np.ndarray:
        """Counts the FLOPs of records (:meth:`embodied.protocols.CountsFlops.flops`). The formulas are in
        :mod:`.network.flops`.

        The number is the same for all records, because prompts are padded to one length.
        """
        net, prompt = self.model.net, self.prompts.shape[1]
        one = forward_flops(net, prompt).total
        if training:
            one = training_flops(net, prompt, self.settings.is_lora, checkpointing=False)
        return np.full(len(records["actions"]), float(one))

    def find_training_modules(self) -> None:
        """List the modules that behave differently in training: dropout and recomputed layers.

        Without the list :meth:`act` would search all modules at every call.
        """
        self._training_modules = training_modules(self)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder that ``model_path`` takes: adapters merged in float32, original tensor names."""
        from .export.save import save_folder

        save_folder(self.parts, folder)

    def export(
        self, kind: str, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
    ) -> Exported:  # fmt: skip
        """Writes the policy in one of the export formats. See :meth:`embodied.protocols.Exports.export`."""
        return exporting.export(self, self.parts, kind, folder, dtype, examples, options)

    def inputs(self, obs: Mapping[str, Tensor]) -> Inputs:
        """Builds the network's inputs from B observations; their ``prompt`` names rows of the prompt table."""
        images, row = obs["images"][:, : self.model.net.num_images], obs["prompt"].long()
        present = self.present[row] if self.padded else None
        with self.parts.number_format():
            return Inputs(self.pixels(images), self.prompts[row], present, self._proprio(obs))

    def _value(self, read: ReadOut) -> Tensor | None:
        return None if self.value_head is None else self.value_head(read.hidden[:, 0])

    def _proprio(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        if not self.model.net.proprio_dim:
            return None
        state = obs["state"].float()
        return state if self.statistics.proprio is None else self.statistics.proprio.normalize(state)

    def _env_range(self, env: EnvSpec) -> Range:
        """Action range without statistics: the env's own. A converted gripper has the datasets' range, 0 … 1."""
        low, high = list(env.action_low), list(env.action_high)
        if self.settings.policy_setup != "none":
            low[-1], high[-1] = 0.0, 1.0
        return Range(tuple(low), tuple(high), (True,) * len(low), self.statistics.normalization.kind)
