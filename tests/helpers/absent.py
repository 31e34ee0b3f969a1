"""Packages of the extras that are not installed here, and failures that come of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec

OF_EXTRAS = (
    "libero", "robosuite", "mujoco", "gymnasium", "mani_skill", "sapien", "pyarrow", "h5py", "math_verify",
    "reasoning_gym", "datasets", "gguf", "aiohttp", "msgpack", "prometheus_client", "websockets", "onnx", "onnxruntime",
    "onnxscript", "matplotlib", "vl_convert", "jinja2",
)  # fmt: skip
ABSENT = [name for name in OF_EXTRAS if find_spec(name) is None]


def absent_in(text: str, absent: Sequence[str]) -> str | None:
    """Which of the absent packages a failure names as missing."""
    for name in absent:
        spelled = name.replace("_", "[_-]")
        if re.search(
            rf"(No module named|[Pp]ackages?|there is no module) '?{spelled}\b|{spelled} cannot be imported", text
        ):
            return name
    return None
