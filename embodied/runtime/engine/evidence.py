"""Compares the weights that an engine was sent with those that it read, and its log-probs with the policy's. Errors
tell what differs; files keep it where ``rollout.validate_save_dir`` asks for them.

| file of transfer N | content |
|---|---|
| ``weights_N.json`` | ``tensors``: name, and as ``sent`` and as ``read`` format, shape and CRC-32; ``differing`` |
| ``logprobs_N.json`` | ``texts``: tokens, and log-probs of the ``engine`` and of the ``policy``, nats; their gaps |
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Described = Mapping[str, Any]
"""A tensor: ``name``, ``dtype``, ``shape`` and ``checksum`` (CRC-32 of its bytes)."""

NAMED = 3  # tensors in an error
KEY = "rollout.validate_save_dir"


class Evidence:
    """Compares weights and log-probs of engine and policy, and keeps files of what does not agree; if ``first``, also
    of the first transfer that does.

    Args:
        folder: gets the files, which replace those of an earlier run; None = nothing is written.
        first: also keep the first transfer and the first comparison of log-probs.
    """

    def __init__(self, folder: Path | None = None, first: bool = False) -> None:
        self._folder, self._transfer = folder, 0
        self._first = {"weights", "logprobs"} if first else set[str]()

    def weights(self, sent: Sequence[Described], read: Sequence[Described]) -> tuple[list[str], str]:
        """Compares the tensors of a weight transfer, as sent and as read; returns differences and where they are kept.

        Returns:
            what differs, a tensor each, and where it is kept ("" = nowhere).
        """
        self._transfer += 1
        ours, theirs = ({one["name"]: one for one in side} for side in (sent, read))
        names = [*ours, *(name for name in theirs if name not in ours)]
        differing = [name for name in names if ours.get(name) != theirs.get(name)]
        tensors = [{"name": name, "sent": _facts(ours.get(name)), "read": _facts(theirs.get(name))} for name in names]
        told = [f"{name} ({_told(ours.get(name))} sent, {_told(theirs.get(name))} read)" for name in differing]
        return told, self._keep("weights", bool(differing), {"differing": differing, "tensors": tensors})

    def logprobs(
        self, tokens: Iterable[np.ndarray], engine: Iterable[np.ndarray], policy: Iterable[np.ndarray],
        gap: float, allowed: float, agree: bool,
    ) -> str:  # fmt: skip
        """Keeps the log-probs of texts [n][tokens of each], where engine and policy disagree or where they come first;
        returns where.

        Args:
            gap: mean difference, nats.
            allowed: largest such, nats.

        Returns:
            where, "" = nowhere.
        """
        texts = [
            {"tokens": list(map(int, one)), "engine": _numbers(theirs), "policy": _numbers(own)}
            for one, theirs, own in zip(tokens, engine, policy, strict=True)
        ]
        found = {"agree": agree, "mean_gap": _number(gap), "allowed_mean_gap": allowed, "texts": texts}
        return self._keep("logprobs", not agree, found)

    def _keep(self, kind: str, differ: bool, found: Mapping[str, Any]) -> str:
        if self._folder is None or not (differ or kind in self._first):
            return ""
        self._first.discard(kind)
        path = self._folder / f"{kind}_{self._transfer}.json"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"transfer": self._transfer, **found}, indent=1), encoding="utf-8")
        except OSError as error:
            return f"{path} could not be written ({error})"
        return f"what was compared is in {path}"


def remedy(kept_in: str) -> str:
    """Returns the end of an error's fix: where the compared values are kept, or which key keeps them."""
    return kept_in or f"{KEY}=FOLDER keeps what was compared"


def _facts(tensor: Described | None) -> dict[str, Any] | None:
    if tensor is None:
        return None
    return {"dtype": tensor["dtype"], "shape": tensor["shape"], "checksum": f"{tensor['checksum']:08x}"}


def _told(tensor: Described | None) -> str:
    return "not" if tensor is None else f"{tensor['dtype']} {tensor['shape']} {tensor['checksum']:08x}"


def _numbers(values: np.ndarray) -> list[float | str]:
    return [_number(float(value)) for value in values]


def _number(value: float) -> float | str:
    """A number, as JSON has it: "nan" and "inf" are texts."""
    return value if math.isfinite(value) else str(value)
