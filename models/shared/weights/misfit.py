"""Says what does not fit between a network and the weights of a folder, and what would help."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied.errors import CheckpointError

SHOWN = 4
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
TIED = "lm_head.weight"


@dataclass(frozen=True)
class Misfit:
    """Names and shapes that differ."""

    missing: Sequence[str]  # in the files, sorted
    unknown: Sequence[str]  # to the network, sorted
    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]  # name → in the files, in the network

    def check(self, folder: Path, config: Any, key: str) -> None:
        """Raises CheckpointError if there are any.

        Args:
            config: of the network, as transformers has it.
            key: of the section of the configuration that names the folder, with a dot at its end.
        """
        if self.missing or self.unknown or self.shapes:
            raise CheckpointError(f"{folder} {self._told()}", self._fix(config, key))

    def _told(self) -> str:
        shapes = [f"{name} {list(a)} where {list(b)} belongs" for name, (a, b) in sorted(self.shapes.items())]
        parts = []
        if self.missing:
            parts.append(f"lacks {len(self.missing)} weights: {_listed(self.missing)}")
        if self.unknown:
            parts.append(f"has {len(self.unknown)} that the network does not know: {_listed(self.unknown)}")
        if shapes:
            parts.append(f"has {len(shapes)} of another shape: {_listed(shapes)}")
        return "; it ".join(parts)

    def _fix(self, config: Any, key: str) -> str:
        if any(0 in there for there, _ in self.shapes.values()):
            return (
                "these were saved from parts of several processes (DeepSpeed ZeRO-3 leaves empty tensors): gather them "
                "first, with its zero_to_fp32.py or stage3_gather_16bit_weights_on_model_save"
            )
        if self.shapes:
            return self._fix_of_shapes(key)
        if list(self.missing) == [TIED] and not self.unknown:
            return (
                f"if the network ties its head to the embedding, set {key}override_config.tie_word_embeddings=true; "
                "else use a folder whose files have it"
            )
        if self.missing and self.unknown:
            return self._fix_of_names()
        return self._fix_of_layers(config)

    def _fix_of_shapes(self, key: str) -> str:
        name, (there, wanted) = sorted(self.shapes.items())[0]
        rows = {a[0] for n, (a, b) in self.shapes.items() if n.endswith(("embed_tokens.weight", TIED)) and a[1:] == b[1:]}
        if len(rows) == 1 and all(n.endswith(("embed_tokens.weight", TIED)) for n in self.shapes):
            return (
                f"the vocabulary of the weights has {rows.pop()} rows and config.json says {wanted[0]}: use the "
                f"config.json that was saved with the weights, or set {key}override_config.vocab_size={there[0]}"
            )
        return (
            f"config.json describes a network of other sizes than the weights have (first: {name}): use the config.json "
            "that was saved with them"
        )

    def _fix_of_names(self) -> str:
        pairs = [(name, self._like(name)) for name in self.missing]
        shown = "; ".join(f"{name} is perhaps {other}" for name, other in pairs[:2] if other is not None)
        if prefix := self._prefix():
            return f"rename the tensors in the files: take {prefix!r} from the beginning of their names"
        return (
            "the tensors bear other names than transformers gives them"
            f"{f' ({shown})' if shown else ''}: rename them, or use the folder in the layout of transformers"
        )

    def _prefix(self) -> str | None:
        """What stands in front of each unknown name that a missing one ends."""
        found = {other.removesuffix(name) for name in self.missing for other in self.unknown if other.endswith(f".{name}")}
        return found.pop() if len(found) == 1 else None

    def _like(self, name: str) -> str | None:
        """The unknown name with the most parts of ``name`` at its end."""
        parts = name.split(".")[::-1]

        def common(other: str) -> int:
            pairs = zip(parts, other.split(".")[::-1], strict=False)
            return next((i for i, (a, b) in enumerate(pairs) if a != b), len(parts))

        best = max(self.unknown, key=common)
        return best if common(best) > 1 else None

    def _fix_of_layers(self, config: Any) -> str:
        said = config.num_hidden_layers
        lost = {int(found[1]) for name in self.missing if (found := LAYER.search(name))}
        more = {int(found[1]) for name in self.unknown if (found := LAYER.search(name))}
        if more and min(more) >= said:
            return (
                f"config.json says num_hidden_layers {said}, and the files have layers up to {max(more)}: use the "
                f"config.json that was saved with the weights"
            )
        if self.missing and lost and min(lost) > 0 and lost == set(range(min(lost), said)):
            return (
                f"config.json says num_hidden_layers {said}, and the files have {min(lost)} layers: use the config.json "
                "that was saved with the weights, or the files that were left out"
            )
        if self.missing:
            return "use a folder with all of the network's weights"
        return "use a folder of this architecture; what the network does not know would be left out without a word"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"
