"""Code that comes with a checkpoint: whether it is needed, and whether it may be run.

It is run where two things hold: transformers has no class of its own for the network (or the tokenizer), and the key
``trust_remote_code`` permits it. A permission that is not needed changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import custom_object_save, get_class_from_dynamic_module
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

from embodied.errors import CheckpointError

from ...shared.files import read_json

OF_CHECKPOINTS = "transformers_modules"
"""Package into which transformers imports such code."""


def network_code(folder: Path, maker: str) -> str | None:
    """Returns the class (``module.Class``) of the folder's own code that transformers needs for the network; None if it
    needs none.

    Args:
        maker: ``AutoModelForCausalLM`` or another one.
    """
    said = _read(folder / "config.json")
    named = _named(said, maker)
    return None if named is None or said.get("model_type") in CONFIG_MAPPING_NAMES else named


def tokenizer_code(folder: Path) -> str | None:
    """Returns the class of the folder's own code that transformers needs for the tokenizer; None if it needs none."""
    said = _read(folder / "tokenizer_config.json")
    named, kind = _named(said, "AutoTokenizer"), said.get("tokenizer_class")
    if named is None:
        return None
    if kind is None:
        return None if _read(folder / "config.json").get("model_type") in TOKENIZER_MAPPING_NAMES else named
    known = any(tokenizer_class_from_name(name) for name in (kind, f"{kind}Fast", kind.removesuffix("Fast")))
    return None if known else named


def may_run(code: str | None, folder: Path, permitted: bool, key: str) -> bool:
    """Returns whether a checkpoint folder's own Python code is needed and permitted to run; raises if it is needed and
    not permitted.

    Args:
        code: of :func:`network_code` or :func:`tokenizer_code`.
        permitted: the value of ``key``.

    Raises:
        CheckpointError: it is needed, and is not permitted or lies elsewhere.
    """
    if code is None:
        return False
    file = f"{code.partition('.')[0]}.py"
    if "--" in code or not (folder / file).is_file():
        raise CheckpointError(
            f"{folder} needs code of its own ({code}), which does not lie in it",
            "download the folder with its Python files",
        )
    if not permitted:
        raise CheckpointError(
            f"{folder} needs code of its own ({file}), and {key} is false: transformers has no class for it",
            f"read that file; if you trust it, set {key}=true",
        )
    return True


def own_tokenizer(code: str, folder: Path) -> Any:
    """Reads the tokenizer with the class of the folder's own code, and runs no other code of it."""
    kind: Any = get_class_from_dynamic_module(code, folder, local_files_only=True)
    kind.register_for_auto_class()  # makes a saved tokenizer bring the code along
    return kind.from_pretrained(folder, local_files_only=True)


def is_own(made: Any) -> bool:
    """Returns whether a network or a tokenizer is of a class whose code came with a checkpoint."""
    return type(made).__module__.startswith(OF_CHECKPOINTS)


def save_code(network: Any, config: Any, folder: Path) -> None:
    """Copies the network's own code into a saved folder, so that it can be read again."""
    if is_own(network):
        custom_object_save(network, folder, config=config)


def own_code_fact(permitted: bool, network: Any, tokenizer: Any) -> dict[str, str]:
    """Returns a row for the console on which of the checkpoint's own code runs; empty unless it is permitted."""
    ran = [name for name, made in (("network", network), ("tokenizer", tokenizer)) if is_own(made)]
    said = f"that of the {' and the '.join(ran)} is run" if ran else "none was needed, and none was run"
    return {"code of the checkpoint": said} if permitted else {}


def _named(said: Mapping[str, Any], maker: str) -> str | None:
    classes = said.get("auto_map")
    found = classes.get(maker) if isinstance(classes, Mapping) else classes if maker == "AutoTokenizer" else None
    if isinstance(found, list):  # the slow tokenizer's and the fast one's
        found = next((one for one in reversed(found) if one), None)
    return found if isinstance(found, str) else None


def _read(file: Path) -> Mapping[str, Any]:
    return read_json(file) if file.is_file() else {}
