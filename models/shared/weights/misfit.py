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
WHOLE_LAYER = 5  # tensors that each layer has at the least
VOCABULARY = ("embed_tokens.weight", TIED)


@dataclass(frozen=True)
class Misfit:
    """Names and shapes that differ between a network and the weights of a folder."""

    missing: Sequence[str]  # names that the files lack, sorted
    unknown: Sequence[str]  # names that the network lacks, sorted
    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]  # name → in the files, in the network

    def check(self, folder: Path, config: Any, key: str) -> None:
        """Raises CheckpointError if any names or shapes differ.

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
            return fix_of_names(self.missing, self.unknown)
        return self._fix_of_layers(config)

    def _fix_of_shapes(self, key: str) -> str:
        name, (there, wanted) = sorted(self.shapes.items())[0]
        of_vocabulary = all(n.endswith(VOCABULARY) and a[1:] == b[1:] for n, (a, b) in self.shapes.items())
        rows = {there[0] for there, _ in self.shapes.values()}
        if of_vocabulary and len(rows) == 1:
            return (
                f"the vocabulary of the weights has {rows.pop()} rows and config.json says {wanted[0]}: use the "
                f"config.json that was saved with the weights, or set {key}override_config.vocab_size={there[0]}"
            )
        return (
            f"config.json describes a network of other sizes than the weights have (first: {name}): use the one "
            "that was saved with them"
        )

    def _fix_of_layers(self, config: Any) -> str:
        said = config.num_hidden_layers
        lost = {int(found[1]) for name in self.missing if (found := LAYER.search(name))}
        more = {int(found[1]) for name in self.unknown if (found := LAYER.search(name))}
        if more and min(more) >= said:
            return (
                f"config.json says num_hidden_layers {said}, and the files have layers up to {max(more)}: use the "
                f"config.json that was saved with the weights"
            )
        whole = len(self.missing) >= WHOLE_LAYER * len(lost)
        if whole and lost and min(lost) > 0 and lost == set(range(min(lost), said)):
            return (
                f"config.json says num_hidden_layers {said}, and the files have {min(lost)} layers: use the one that "
                "was saved with the weights, or the files that were left out"
            )
        if self.missing:
            return "use a folder with all of the network's weights"
        return "use a folder of this architecture; what the network does not know would be left out without a word"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def fix_of_names(missing: Sequence[str], unknown: Sequence[str]) -> str:
    """Returns the fix for weights whose tensors have other names.

    Args:
        missing: names that the network has, and the files lack.
        unknown: names that the files have, and the network lacks.
    """
    if prefix := _prefix(missing, unknown):
        return f"rename the tensors in the files: take {prefix!r} from the beginning of their names"
    pairs = [(name, _like(name, unknown)) for name in missing[:64]]
    shown = "; ".join(f"{name} is perhaps {other}" for name, other in pairs if other is not None)[:300]
    return (
        f"the tensors bear other names than expected{f' ({shown})' if shown else ''}: rename them in the files, or use "
        "the folder in its usual layout"
    )


def _prefix(missing: Sequence[str], unknown: Sequence[str]) -> str | None:
    """Finds the prefix that unknown names have before missing ones; None unless there is exactly one."""
    ends = set(missing)
    found = set()
    for other in unknown:
        parts = other.split(".")
        found |= {".".join(parts[:n]) + "." for n in range(1, len(parts)) if ".".join(parts[n:]) in ends}
    return found.pop() if len(found) == 1 else None


def _like(name: str, unknown: Sequence[str]) -> str | None:
    """The unknown name that shares most of its parts with ``name``, from both ends."""

    def shared(other: str) -> int:
        return _common(name.split("."), other.split(".")) + _common(name.split(".")[::-1], other.split(".")[::-1])

    best = max(unknown, key=shared)
    return best if shared(best) > 2 else None


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
