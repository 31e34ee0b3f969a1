"""A sequence classifier of Hugging Face with one logit that scores answers: a learned reward model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from embodied import instructions
from embodied.errors import CheckpointError, ConfigError, SpecMismatchError, unknown_name

from .files.load import FORMATS, UNREADABLE, folder_of, read_tokenizer, short
from .files.own_code import may_run, network_code, own_code_fact
from .files.weights import Weights

KEY = "reward.model"


class RewardModel:
    """A network that scores answers (:class:`embodied.protocols.ScoresInPasses`). Its weights are never trained.

    Args:
        network: a ``…ForSequenceClassification`` with one logit.
        tokenizer: its own; with a chat template it gets conversations, else prompt and answer end to end.
        max_length: tokens; of a longer text the beginning is left out, because the score is read at the end.
        micro_batch_size: texts of one forward pass.
        offload_weight: the network waits in host memory between two calls.
        trust_remote_code: code of the folder was permitted; it is said whether any was needed.
    """

    def __init__(
        self, network: Any, tokenizer: Any, max_length: int, micro_batch_size: int, offload_weight: bool = False,
        trust_remote_code: bool = False,
    ) -> None:  # fmt: skip
        self._network, self._tokenizer = network.eval().requires_grad_(False), tokenizer
        self._max_length, self._size, self._offload = max_length, micro_batch_size, offload_weight
        self._device, self._told = torch.device("cpu"), own_code_fact(trust_remote_code, network, tokenizer)

    @property
    def network(self) -> nn.Module:
        """The sequence classifier, to be sharded over processes. See
        :attr:`embodied.protocols.ScoresInPasses.network`."""
        return self._network

    def to(self, device: torch.device) -> RewardModel:
        """Moves the network to the device, in place; with ``offload_weight`` only while it scores."""
        self._device = device
        if not self._offload:
            self._network.to(device)
        return self

    def __call__(self, prompts: Sequence[str], responses: Sequence[str]) -> list[float]:
        """See :meth:`embodied.protocols.RewardModel.__call__`."""
        found: dict[int, float] = {}
        with self.awake():
            for batch in self.batches(prompts, responses):
                found |= self.scores(batch)
        return [found[index] for index in range(len(prompts))]

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Context with the network on its device. See :meth:`embodied.protocols.ScoresInPasses.awake`."""
        self._network.to(self._device)
        try:
            yield
        finally:
            if self._offload:
                self._network.to("cpu")

    def batches(self, prompts: Sequence[str], responses: Sequence[str]) -> list[dict[int, list[int]]]:
        """Divides texts into passes (:meth:`embodied.protocols.ScoresInPasses.batches`). Texts of like length share a
        pass; where no token is left to fill up rows with, each text has a pass of its own."""
        texts = [self.tokens(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]), reverse=True)
        found = []
        for first in range(0, len(order), self._size):
            batch = {index: texts[index] for index in order[first : first + self._size]}
            whole = self._filler([*batch.values()]) is not None
            found += [batch] if whole else [{index: tokens} for index, tokens in batch.items()]
        return found

    def tokens(self, prompt: str, response: str) -> list[int]:
        """Encodes a prompt (or conversation) with its answer, at least one token.

        Raises:
            SpecMismatchError: a conversation, and the tokenizer has no chat template.
        """
        conversation, tokenizer = instructions.messages(prompt), self._tokenizer
        if tokenizer.chat_template is None:
            if conversation is not None:
                raise SpecMismatchError(
                    "the env gives conversations, and the tokenizer of the reward model has no chat template",
                    f"give a tokenizer with one in {KEY}.tokenizer_path, or plain prompts",
                )
            ids = tokenizer(prompt + response).input_ids
        else:
            asked = conversation or [{"role": "user", "content": prompt}]
            shown = tokenizer.apply_chat_template([*asked, {"role": "assistant", "content": response}], tokenize=False)
            ids = tokenizer(shown, add_special_tokens=False).input_ids
        return ids[-self._max_length :] or [0]

    @torch.no_grad()
    def scores(self, batch: Mapping[int, list[int]]) -> dict[int, float]:
        """Scores the texts of one pass. See :meth:`embodied.protocols.ScoresInPasses.scores`."""
        found = self._logits([*batch.values()] or [[0]]).tolist()
        return dict(zip(batch, found, strict=False))  # an empty batch gives one row, which counts nothing

    def _logits(self, texts: Sequence[list[int]]) -> Tensor:
        """The logit of each text, float32 [n]."""
        with self._padding(texts) as pad:
            longest = max(map(len, texts))
            rows = [text + [pad] * (longest - len(text)) for text in texts]
            ids = torch.tensor(rows, device=self._network.device)
            places = torch.arange(longest, device=ids.device)
            there = places < torch.tensor([len(text) for text in texts], device=ids.device).unsqueeze(1)
            return self._network(input_ids=ids, attention_mask=there.long()).logits[:, 0].float()

    @contextmanager
    def _padding(self, texts: Sequence[list[int]]) -> Iterator[int]:
        """Gives the id that fills up rows. The network reads its score at the last token that is another one.

        A network without such a token is told of one that no text has, for as long as the block lasts.
        """
        config, filler = self._network.config.get_text_config(), self._filler(texts)
        assert filler is not None
        own = config.pad_token_id
        if own is not None or len(texts) == 1:
            yield filler
            return
        config.pad_token_id = filler
        try:
            yield filler
        finally:
            config.pad_token_id = None

    def _filler(self, texts: Sequence[list[int]]) -> int | None:
        """The token that fills up rows. None: the network has none, and each token of its vocabulary occurs."""
        config = self._network.config.get_text_config()
        if config.pad_token_id is not None or len(texts) == 1:
            return config.pad_token_id or 0
        used = {token for text in texts for token in text}
        return next((token for token in range(config.vocab_size) if token not in used), None)

    def describe(self) -> Mapping[str, str]:
        """A few facts for the console."""
        config = self._network.config
        count = sum(parameter.numel() for parameter in self._network.parameters())
        prompts = "as they are" if self._tokenizer.chat_template is None else "by its chat template"
        return {
            "model": f"{config.model_type} {config.name_or_path}",
            "parameters": f"{count:,}",
            "texts": f"{prompts}, at most {self._max_length} tokens",
            **self._told,
        }


def load(
    model_path: str, tokenizer_path: str | None, max_length: int, micro_batch_size: int, precision: str,
    offload_weight: bool = False, trust_remote_code: bool = False,
) -> RewardModel:  # fmt: skip
    """Builds the reward model. See :func:`embodied.models.causal_lm.build_reward_model`."""
    for name, number in (("max_length", max_length), ("micro_batch_size", micro_batch_size)):
        if number < 1:
            raise ConfigError(f"{KEY}.{name} is {number}, expected 1 or more", f"set {KEY}.{name} above 0")
    if precision not in FORMATS:
        raise unknown_name("precision", precision, FORMATS, f"{KEY}.precision")
    folder = folder_of(model_path, f"{KEY}.model_path")
    own = folder if tokenizer_path is None else folder_of(tokenizer_path, f"{KEY}.tokenizer_path")
    trusted = trust_remote_code, f"{KEY}.trust_remote_code"
    tokenizer = read_tokenizer(own, f"{KEY}.tokenizer_path", trusted)
    weights = Weights.of(folder, f"{KEY}.")
    runs = may_run(network_code(folder, "AutoModelForSequenceClassification"), folder, *trusted)
    try:
        network, loaded = weights.load(AutoModelForSequenceClassification, runs, {}, FORMATS[precision])
    except UNREADABLE as error:
        fix = "give a folder with config.json and model.safetensors of a sequence classifier"
        raise CheckpointError(f"{folder} cannot be loaded as a reward model: {short(error)}", fix) from error
    if any(name.startswith("score.") for name in loaded["missing_keys"]):
        raise CheckpointError(
            f"{folder} is no whole sequence classifier: it lacks {', '.join(sorted(loaded['missing_keys'])[:4])}",
            f"set {KEY}.model_path to the folder of a reward model, not to that of a language model",
        )
    weights.check_loaded(loaded, network.config)
    weights.check_numbers(dict(network.named_parameters()))
    if network.config.num_labels != 1:
        raise CheckpointError(
            f"{folder} has {network.config.num_labels} logits, expected the one of a reward model",
            "give a sequence classifier with num_labels 1",
        )
    return RewardModel(network, tokenizer, max_length, micro_batch_size, offload_weight, trust_remote_code)
