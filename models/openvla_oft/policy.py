"""The policy that the runtime drives: :class:`embodied.protocols.Policy` on top of the network.

Shapes: B rows, n images, S state, T = K·A action tokens, V values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied.logprobs import LOGPROB_DTYPES
from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Evaluation, Noise, PolicySpec, Sampling

from ..shared import sampling as drawing
from ..shared.compiled import CompiledBlocks, bucket, filled
from ..shared.files import FORMATS
from ..shared.offload import activations_on_host
from ..shared.quantized import numbers_of
from . import export as exporting
from .action_tokenizer import EPS, ActionTokenizer, Range, gripper_from_env, gripper_to_env
from .config import N_BINS
from .fit import check_fit
from .flops import forward_flops, training_flops
from .model import Inputs, OpenVLAOFT, ReadOut
from .normalization import Statistics, action_block
from .processing import PixelProcessor
from .settings import Settings
from .tokenizer import PromptTokenizer
from .value_head import ValueHead

MOST_PROMPTS = 1024  # rows of the prompt table at most: a server may see any number of sentences


class OpenVLAOFTPolicy(nn.Module):
    """The OpenVLA-OFT policy, made by :func:`~embodied.models.openvla_oft.build_policy`. Call ``bind`` first."""

    _no_split_modules = ("LlamaDecoderLayer", "Block")  # units of sharding and recomputation

    export_formats = exporting.KINDS  # see embodied.protocols.Exports
    export = exporting.export

    prompts: Tensor
    present: Tensor

    def __init__(
        self,
        model: OpenVLAOFT,
        tokenizer: PromptTokenizer,
        pixels: PixelProcessor,
        statistics: Statistics,
        value_head: ValueHead | None,
        settings: Settings,
    ) -> None:
        super().__init__()
        self.model = model
        self.value_head = value_head
        self.pixels = pixels
        self.tokenizer = tokenizer
        self.statistics = statistics
        self.settings = settings
        self.action_tokenizer = ActionTokenizer(model.net.vocab_size)
        self.action_range = statistics.action
        self.padded = False  # whether the bound prompts differ in length
        self.attention_open = False  # whether the mask is a guess until the first observations settle it
        self.attention_probe: dict[str, float] = {}  # attention mask → nats, once it was probed (see .probe)
        self.compiled: CompiledBlocks | None = None  # if acting or learning runs compiled blocks
        self.env: EnvSpec | None = None  # that it is bound to
        self._tasks: tuple[str, ...] = ()  # instructions of the bound env
        self._row: dict[str, int] = {}  # instruction → row of the table of prompts
        self._least = 0  # least tokens of a prompt, for envs whose sentences are not known beforehand
        self._training_modules: list[nn.Module] = []
        self.register_buffer("prompts", torch.empty(0, 0, dtype=torch.long), persistent=False)
        self.register_buffer("present", torch.empty(0, 0, dtype=torch.bool), persistent=False)

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
        self.env, self._tasks = env, tuple(dict.fromkeys(env.tasks))
        self._least = self.settings.max_prompt_length if "instruction" in env.obs else 0
        self._tokenise(self._tasks)
        self.action_range = self.statistics.action or self._env_range(env)

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
        """See :meth:`embodied.protocols.UsesStatistics.use_statistics`. An entry of dataset_statistics.json fits too.

        ``actor.model.action_normalization`` says which entries are used. If the gripper is converted
        (``policy_setup``), its range is the datasets': 0 closed … 1 open.
        """
        key, action = self.settings.action_normalization, action_block(name, values)
        normalization = self.statistics.normalization.of_statistics(action, key)
        found = Statistics.from_block(name, values, self.model.net, normalization)
        self.statistics = found if self.settings.policy_setup == "none" else found.with_gripper(0.0, 1.0)
        self.action_range = self.statistics.action

    @torch.no_grad()
    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        """See :meth:`embodied.protocols.Policy.act`."""

        def choose(logits: Tensor, position: int) -> Tensor:
            logp = drawing.log_probs(logits, sampling)
            return drawing.draw(logp, noise[:, position : position + logits.shape[1]], sampling)

        with _acting(self._training_modules):
            read, classes = self._decode(obs, choose)
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
        read = self._read_out(records, tokens)
        logp = drawing.log_probs(read.logits, sampling)
        chosen = logp.gather(-1, (tokens - self.model.net.first_action_id).unsqueeze(-1)).squeeze(-1)
        return Evaluation(chosen, drawing.entropy(logp), self._value(read), logp if distribution else None)

    def forward(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        """:meth:`evaluate`, for wrappers that hook ``forward``."""
        return self.evaluate(records, sampling, distribution)

    def decode_actions(self, tokens: Tensor) -> Tensor:
        """Token ids [B, T] → float32 [B, K, A] in the env's units."""
        net, action_range = self.model.net, self.action_range
        assert action_range is not None, "bind() comes first"
        values = self.action_tokenizer.decode(tokens).unflatten(-1, (net.num_action_chunks, net.action_dim))
        eps = 0.0 if net.autoregressive else EPS
        return gripper_to_env(action_range.unnormalize(values, eps), self.settings.policy_setup).float()

    def encode_actions(self, actions: Tensor) -> Mapping[str, Tensor]:
        """See :meth:`embodied.protocols.Clonable.encode_actions`: token ids int32 [B, T]."""
        assert self.action_range is not None, "bind() comes first"
        values = self.action_range.normalize(gripper_from_env(actions.double(), self.settings.policy_setup))
        return {"action_tokens": self.action_tokenizer.encode(values).flatten(1).int()}

    @torch.no_grad()
    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        """See :meth:`embodied.protocols.Policy.probe`."""
        from .probe import look

        with _acting(self._training_modules):
            return look(self, obs)

    def extra_state(self) -> Mapping[str, str]:
        """See :class:`embodied.protocols.HasExtraState`."""
        told_or_open = self.settings.attention != "auto" or self.attention_open
        return {**({} if told_or_open else {"attention": self.model.net.attention}), **self.statistics.as_text()}

    def load_extra_state(self, found: Mapping[str, str]) -> None:
        """See :class:`embodied.protocols.HasExtraState`. A mask that was asked for by name stays."""
        if self.settings.attention == "auto" and "attention" in found:
            self.model.set_attention(found["attention"])
            self.attention_open = False
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
            + (" (to be probed)" if self.attention_open else "")
            + (", stop token" if net.stop_token else ", no stop token"),
            "decoding": net.decoding,
            "input": f"{net.num_images} × {net.image_size} px, state {net.proprio_dim}, prompt {self.prompts.shape[1]}",
            "output": f"{net.num_action_chunks} actions × {net.action_dim}",
            "statistics": self.statistics.describe(),
            **({"code of the checkpoint": "none was needed, and none was run"} if settings.trust_remote_code else {}),
        }

    def pictures(self) -> Mapping[str, Any]:
        """See :meth:`embodied.protocols.PreparesPictures.pictures`."""
        net, settings = self.model.net, self.settings
        return {
            "image_size": [net.image_size, net.image_size], "num_images_in_input": net.num_images,
            "image_preset": settings.image_preset, "center_crop": settings.center_crop,
        }  # fmt: skip

    def flops(self, records: Mapping[str, np.ndarray], training: bool) -> np.ndarray:
        """See :meth:`embodied.protocols.CountsFlops.flops`. The formulas are in :mod:`.flops`.

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
        self._training_modules = [
            m for m in self.modules() if isinstance(m, nn.Dropout) or getattr(m, "gradient_checkpointing", False)
        ]

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder that ``model_path`` takes: adapters merged in float32, original tensor names."""
        from .save import save_folder

        save_folder(self, folder)

    def _decode(self, obs: Mapping[str, Tensor], choose: Callable[[Tensor, int], Tensor]) -> tuple[ReadOut, Tensor]:
        """Read-out and classes [B, T]. ``choose`` takes classes from logits [B, n, 256] of tokens ``position …``."""
        if not self.model.net.autoregressive:
            read = self._read_out(obs)
            return read, choose(read.logits, 0)
        with self._number_format():
            return self.model.generate(self._inputs(obs), choose)

    def _read_out(self, obs: Mapping[str, Tensor], tokens: Tensor | None = None) -> ReadOut:
        """The one forward pass behind ``act`` (without ``tokens``) and ``evaluate``."""
        with self._number_format(), self._saving():
            inputs = self._inputs(obs)
            if self.compiled is None:
                return self.model(*inputs, tokens)
            rows, given = len(inputs.prompt), (*inputs, tokens)
            on = self._runs_compiled(acting=tokens is None, rows=rows)
            with self.compiled.switched(on):
                if not on:
                    return self.model(*given)
                read = self.model(*(None if t is None else filled(t, bucket(rows)) for t in given))
            return ReadOut(read.hidden[:rows], read.logits[:rows])

    def _runs_compiled(self, acting: bool, rows: int) -> bool:
        settings = self.settings
        most = None if torch.is_grad_enabled() else settings.torch_compile_max_bs
        return (settings.acts_compiled if acting else settings.torch_compile) and (most is None or rows <= most)

    def _inputs(self, obs: Mapping[str, Tensor]) -> Inputs:
        images, row = obs["images"][:, : self.model.net.num_images], obs["prompt"].long()
        present = self.present[row] if self.padded else None
        return Inputs(self.pixels(images), self.prompts[row], present, self._proprio(obs))

    def _number_format(self) -> AbstractContextManager[Any]:
        dtype = FORMATS[self.settings.precision]
        return torch.autocast(self.prompts.device.type, dtype, enabled=dtype != torch.float32)

    def _saving(self) -> AbstractContextManager[Any]:
        """Context that decides where activations wait for the backward pass."""
        offload = self.settings.activation_offload and torch.is_grad_enabled()
        return activations_on_host(self) if offload else nullcontext()

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


@contextmanager
def _acting(modules: list[nn.Module]) -> Iterator[None]:
    """Put ``modules`` in evaluation mode inside the block."""
    modes = [module.training for module in modules]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
