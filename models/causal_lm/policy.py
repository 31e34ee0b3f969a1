"""The policy that the runtime drives: :class:`embodied.protocols.Policy` on top of the network.

Shapes: B texts, P tokens of the longest prompt, n tokens of a record, L bytes of an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied import instructions
from embodied.errors import SpecMismatchError
from embodied.logprobs import LOGPROB_DTYPES
from embodied.protocols import EngineFacts, EngineText, Examples, Exported, Team
from embodied.types import ArraySpec, Decision, Elements, EnvSpec, Evaluation, Noise, PolicySpec, Sampling, TextAction

from ..shared.quantized import numbers_of
from ..shared.trained import training_modules
from . import serving
from .decoding.lane_decoding import LaneDecoding
from .evaluating import evaluate
from .files import export as exporting
from .files.own_code import own_code_fact
from .network.flops import Work, work_of
from .network.trunk import Trunk
from .network.vision import check_pictures
from .parts import Parts
from .settings import Settings
from .text.tokenizer import MORE_CHARACTERS, TextTokenizer

MOST_LANES = 256  # texts that act() makes at the same time


class CausalLMPolicy(nn.Module):
    """A causal language model, made by :func:`~embodied.models.causal_lm.build_policy`. Call ``bind`` first."""

    export_formats = exporting.KINDS  # see embodied.protocols.Exports

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.parts = parts
        # modules of this module, so that their weights are its own
        self.network, self.value_head, self.vision = parts.network, parts.value_head, parts.vision
        self._work: Work = work_of(parts.trunk)

    @property
    def tokenizer(self) -> TextTokenizer:
        return self.parts.tokenizer

    @property
    def settings(self) -> Settings:
        return self.parts.settings

    @property
    def trunk(self) -> Trunk:
        """The layers of the network, run with our attention."""
        return self.parts.trunk

    @property
    def spec(self) -> PolicySpec:
        n = self.settings.max_new_tokens
        decision = {
            "tokens": ArraySpec((n,), "int32"),
            "length": ArraySpec((), "int32"),
            "actions": ArraySpec((1, self.parts.now.max_bytes), "uint8"),
            "logprobs": ArraySpec((n,), "float32"),
        }
        if self.value_head is not None:
            decision["value"] = ArraySpec((self.settings.values,), "float32")
        untrained = self.settings.model_path is None and self.settings.lora_path is None
        return PolicySpec(
            1, decision, Elements((n,), length_axis=0), Noise((n,), "uniform"), random_weights=untrained,
            logprob_dtypes=LOGPROB_DTYPES,
        )  # fmt: skip

    def bind(self, env: EnvSpec) -> None:
        """See :meth:`embodied.protocols.Policy.bind`."""
        if not isinstance(env.action, TextAction):
            raise SpecMismatchError(
                f"the policy answers with text, the env takes a {type(env.action).__name__}",
                "choose an env that takes text (TextAction), or a policy for this env's actions",
            )
        self._check_transcripts(env)
        check_pictures(env, self.vision, self.settings.model_path)
        self.parts.now.max_bytes = env.action.max_bytes

    def _check_transcripts(self, env: EnvSpec) -> None:
        """Refuses transcripts that could have too many tokens in the midst of a run. A byte gives one token at most."""
        most, room = self.settings.max_prompt_tokens, env.obs.get(instructions.FIELD)
        if env.max_episode_steps == 1 or room is None or self.settings.truncation != "error":
            return
        size, frame = room.shape[0], self.tokenizer.frame
        if size + frame > most:
            raise SpecMismatchError(
                f"the env's transcripts grow to {size} bytes, {frame} tokens stand around them, and "
                f"actor.model.max_prompt_tokens is {most}: one of them could be too long in the midst of a run",
                f"set actor.model.max_prompt_tokens={size + frame}, a smaller max_prompt_bytes of env.train and "
                "env.eval, or actor.model.truncation=left",
            )

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        """See :meth:`embodied.protocols.Policy.encode_instructions`.

        Returns ``prompt_ids`` int32 [B, P], filled up on the right, and ``prompt_length`` int32 [B].
        """
        prompts = [self.tokenizer.prompt(text) for text in texts]
        ids = np.full((len(prompts), max(map(len, prompts))), self.tokenizer.pad_id, np.int32)
        for row, prompt in zip(ids, prompts, strict=True):
            row[: len(prompt)] = prompt
        lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32)
        return {"prompt_ids": torch.from_numpy(ids), "prompt_length": lengths}

    def encode_actions(self, actions: Tensor) -> Mapping[str, Tensor]:
        """Encode answers uint8 [B, 1, L] as fields of a decision: ``tokens`` int32 [B, n] and ``length`` int32 [B].
        The token that ends a text is the last, unless the answer is cut at n tokens."""
        n = self.settings.max_new_tokens
        rows = self.tokenizer.responses([instructions.read(row) for row in actions[:, 0].cpu().numpy()], n)
        tokens = torch.zeros(len(rows), n, dtype=torch.int32)
        for row, found in zip(tokens, rows, strict=True):
            row[: len(found)] = torch.tensor(found, dtype=torch.int32)
        lengths = torch.tensor([len(found) for found in rows], dtype=torch.int32)
        return {"tokens": tokens.to(actions.device), "length": lengths.to(actions.device)}

    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        """Warns if answers may be longer than the env takes, and if prompts have characters without a token. See
        :meth:`embodied.protocols.Policy.probe`."""
        return (*self._too_long(), *self._unknown(obs))

    def _too_long(self) -> Iterator[str]:
        ascii_alone = self.settings.model_path is None and self.settings.alphabet.isascii()
        likely = (1 if ascii_alone else 4) * self.settings.max_new_tokens  # bytes
        if (most := self.parts.now.max_bytes) < likely:
            yield (
                f"answers of more than {most} bytes are cut, and {self.settings.max_new_tokens} tokens may "
                f"have {likely}: what stands at the end, such as the result, would be lost "
                "(env.train.max_response_bytes)"
            )

    def _unknown(self, obs: Mapping[str, Tensor]) -> Iterator[str]:
        unknown = self.tokenizer.tokenizer.unk_token_id
        if self.settings.model_path is None and (obs["prompt_ids"] == unknown).any():
            yield (
                "prompts have characters that the policy reads as one, because its tokenizer has no tokens for them: "
                f"{MORE_CHARACTERS}"
            )

    def decoding(self, lanes: int, enforce_eager: bool = True) -> LaneDecoding:
        """Makes the state of ``lanes`` texts that are decoded at a time. See
        :meth:`embodied.protocols.Decodes.decoding`."""
        return LaneDecoding(self.parts, lanes, enforce_eager)

    @torch.no_grad()
    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        """See :meth:`embodied.protocols.Policy.act`."""
        lanes = min(len(noise), MOST_LANES)
        decoding = self.decoding(lanes)
        decoding.begin(sampling)
        waiting, free, row_of = list(range(len(noise))), list(range(lanes)), dict[int, int]()
        answered: list[int] = []  # rows, in the order in which they were
        parts: list[Mapping[str, Tensor]] = []
        while waiting or row_of:
            rows, waiting = waiting[: len(free)], waiting[len(free) :]
            taken, free = free[: len(rows)], free[len(rows) :]
            if rows:
                names = ("prompt_ids", "prompt_length", instructions.PICTURES)
                fields = {name: obs[name][rows] for name in names if name in obs}
                decoding.admit(taken, fields, noise[rows])
                row_of.update(zip(taken, rows, strict=True))
            if whole := decoding.step():
                parts.append(decoding.take(whole).fields)
                answered += [row_of.pop(lane) for lane in whole]
                free += whole
        back = torch.tensor(answered, device=noise.device).argsort()
        return Decision({name: torch.cat([part[name] for part in parts])[back] for name in self.spec.decision})

    def evaluate(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        """See :meth:`embodied.protocols.Policy.evaluate`. Behind the end of a text, log-probs and entropies are 0."""
        return evaluate(self.parts, records, sampling, distribution)

    def forward(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        """Calls :meth:`evaluate`, for wrappers that hook ``forward``."""
        return self.evaluate(records, sampling, distribution)

    def describe(self) -> Mapping[str, str]:
        """See :meth:`embodied.protocols.Policy.describe`."""
        total = numbers_of(self)
        trained = sum(p.numel() for p in self.parameters() if p.requires_grad)
        settings, config = self.settings, self.network.config
        source = settings.model_path or f"built at random (seed {settings.seed})"
        source += f"/{settings.gguf_file}" if settings.gguf_file else ""
        return {
            "model": f"{config.model_type} {source}",
            "parameters": f"{total:,}",
            "trained": f"{trained:,} ({100 * trained / total:.1f} %{', LoRA' if settings.is_lora else ''})",
            "precision": settings.precision,
            "tokens": f"prompt ≤ {settings.max_prompt_tokens}, response ≤ {settings.max_new_tokens}",
            "vocabulary": f"{self.trunk.vocabulary:,}",
            "prompts": "chat template" if self.tokenizer.chat else "as they are",
            **({} if self.vision is None else self.vision.describe()),
            **own_code_fact(
                settings.trust_remote_code or settings.tokenizer_trust_remote_code, self.network,
                self.tokenizer.tokenizer,
            ),
        }  # fmt: skip

    def tokens(self, records: Mapping[str, np.ndarray]) -> np.ndarray:
        """Counts the tokens of records, prompt and answer. See :meth:`embodied.protocols.CountsTokens.tokens`."""
        return records["prompt_length"].astype(np.int64) + records["length"]

    def record_rows(self) -> tuple[Tensor, int]:
        """Returns whose the tokens of the latest pass were, a prompt's those of the first text that has it. See
        :meth:`embodied.protocols.LaysOutRecords.record_rows`."""
        assert self.parts.now.record_rows is not None, "evaluate() comes first"
        return self.parts.now.record_rows

    def prompt_texts(self, prompts: Sequence[str]) -> list[str]:
        """Renders prompts as the policy reads them. See :meth:`embodied.protocols.ShowsTokens.prompt_texts`."""
        return [self.tokenizer.shown(prompt) for prompt in prompts]

    def token_texts(self, records: Mapping[str, np.ndarray]) -> list[list[str]]:
        """Decodes each sampled token of records. See :meth:`embodied.protocols.ShowsTokens.token_texts`."""
        pairs = zip(records["tokens"].tolist(), records["length"].tolist(), strict=True)
        return [self.tokenizer.pieces(tokens[:length]) for tokens, length in pairs]

    def flops(self, records: Mapping[str, np.ndarray], training: bool) -> np.ndarray:
        """Counts the FLOPs of records (:meth:`embodied.protocols.CountsFlops.flops`). The formulas are in
        :mod:`.network.flops`."""
        forward = self._work.forward(np.asarray(records["prompt_length"]), np.asarray(records["length"]))
        return forward * ((2 + (not self.settings.is_lora)) if training else 1)

    @property
    def context_parallel_size(self) -> int:
        """Number of processes that compute each text together. See :class:`embodied.protocols.SplitsTexts`."""
        return self.settings.context_parallel_size

    @contextmanager
    def splitting(self, team: Team) -> Iterator[None]:
        """Context in which a team computes each text together (:meth:`embodied.protocols.SplitsTexts.splitting`); how
        is in :mod:`.network.context_parallel`."""
        self.parts.now.team = team
        try:
            yield
        finally:
            self.parts.now.team = None

    def shard_modules(self) -> Sequence[nn.Module]:
        """Lists the FSDP units: the transformer's layers. See :class:`embodied.protocols.Shardable`."""
        return list(self.network.model.layers)

    def find_training_modules(self) -> None:
        """List the modules that behave differently in training: dropout and recomputed layers."""
        self.parts.now.training_modules = training_modules(self)

    def save(self, folder: Path) -> None:
        """Write a Hugging Face folder that ``model_path`` takes: adapters merged in float32, original tensor names."""
        from .files.save import save_folder

        save_folder(self.parts, folder)

    def export(
        self, kind: str, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
    ) -> Exported:  # fmt: skip
        """Writes the policy in one of the export formats. See :meth:`embodied.protocols.Exports.export`."""
        return exporting.export(self, self.parts, kind, folder, dtype, examples, options)

    @property
    def engine_facts(self) -> EngineFacts:
        """Number format and limits for an inference engine. See :class:`embodied.protocols.ServedByEngine`."""
        return serving.facts(self.parts)

    def engine_folder(self, folder: Path) -> None:
        """Writes configuration and tokenizer for an inference engine. See
        :meth:`embodied.protocols.ServedByEngine.engine_folder`."""
        serving.write_folder(self.parts, folder)

    def engine_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the merged weights for an inference engine. See
        :meth:`embodied.protocols.ServedByEngine.engine_weights`."""
        return serving.weights(self.parts)

    def engine_prompts(self, obs: Mapping[str, Tensor]) -> list[list[int]]:
        """Returns the prompts' tokens for an inference engine. See
        :meth:`embodied.protocols.ServedByEngine.engine_prompts`."""
        return serving.prompts(obs)

    def engine_decision(self, texts: Sequence[EngineText], sampling: Sampling) -> Decision:
        """Makes decisions of an inference engine's texts. See
        :meth:`embodied.protocols.ServedByEngine.engine_decision`."""
        return serving.decision(self.parts, texts, sampling)
