"""Which files of a folder hold its weights, and what their headers say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from embodied.errors import CheckpointError, DamagedCheckpointError
from embodied.lib.files import AGAIN, check_content, inside, read_json, reading
from embodied.weights.header import Entry, read_header

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
OTHERS = {
    "pytorch_model.bin": (
        'convert it: python -c "import torch; from safetensors.torch import save_file as save; '
        "save({{k: v.clone() for k, v in torch.load('{folder}/pytorch_model.bin', weights_only=True).items()}}, "
        "'{folder}/model.safetensors', metadata={{'format': 'pt'}})\""
    ),
    "pytorch_model-*.bin": "give it in safetensors: transformers' `model.save_pretrained('DIR')` writes them",
    "consolidated*": "it is in the layout of its maker: download the files in the layout of transformers beside it",
    "*.gguf": "set actor.model.gguf_file={name} (model=causal_lm)",
    "flax_model*": "give it in safetensors: this one is of Flax",
    "tf_model*": "give it in safetensors: this one is of TensorFlow",
    "*.ckpt": "give it in safetensors: this one is of the training that made it",
    "adapter_model*": "it is an adapter: give the network in actor.model.model_path, and this folder in lora_path",
}
"""Other formats that a folder may hold its weights in → the fix."""


def weight_files(folder: Path) -> list[Path]:
    """Lists a folder's files of weights: ``model.safetensors``, or all files that its index names.

    Raises:
        CheckpointError: there are none, both are there and differ, or the index names no file of the folder.
        DamagedCheckpointError: the index is damaged, or one of its files is missing.
    """
    whole, index = inside(folder, WHOLE), inside(folder, INDEX)
    if not index.is_file():
        if not whole.is_file():
            raise _none(folder)
        return [whole]
    names = sorted(set(read_index(index).values()))
    if whole.is_file() and WHOLE not in names:
        raise CheckpointError(
            f"{folder} has its weights twice: in {WHOLE}, and in the {len(names)} files of {INDEX}",
            f"remove the one that is not to be used: {whole.name}, or {index.name} with its files",
        )
    files = [inside(folder, name) for name in names]
    if missing := [file.name for file in files if not file.is_file()]:
        raise DamagedCheckpointError(
            f"{folder} lacks {', '.join(missing[:4])}, which {INDEX} names ({len(missing)} of {len(files)} files)",
            "download or copy these files into it",
        )
    return files


def read_index(index: Path) -> dict[str, str]:
    """Reads the index of a folder of safetensors: tensor → file. Raises DamagedCheckpointError if the index has none,
    or is damaged."""
    values = read_json(index)
    with reading(index, "it has no map from tensors to files"):
        found = dict(values["weight_map"])
        if not found or not all(isinstance(name, str) for name in found.values()):
            raise ValueError(f"weight_map has {len(found)} entries, expected the name of a file for each tensor")
    for name in set(found.values()):
        inside(index.parent, name)
    return found


def read_headers(folder: Path) -> dict[Path, dict[str, Entry]]:
    """Headers of all files of :func:`weight_files`.

    Raises:
        CheckpointError: as :func:`weight_files`; or a tensor stands in two files.
        DamagedCheckpointError: a file is damaged, or lacks a tensor that the index says is in it.
    """
    headers = {file: read_header(file) for file in weight_files(folder)}
    index = inside(folder, INDEX)
    if index.is_file():
        _check_index(index, read_index(index), headers)
    return headers


def _check_index(index: Path, places: Mapping[str, str], headers: Mapping[Path, Mapping[str, Entry]]) -> None:
    found = {file.name: set(header) for file, header in headers.items()}
    if lost := [(name, file) for name, file in sorted(places.items()) if name not in found[file]]:
        name, file = lost[0]
        more = f" ({len(lost)} such tensors)" if len(lost) > 1 else ""
        raise DamagedCheckpointError(
            f"{index.parent / file} has no tensor {name}, and {index.name} says that it has{more}",
            f"the files are of different models or versions: {AGAIN}, all of them",
        )
    owners: dict[str, str] = {}
    for file, names in found.items():
        for name in names:
            if (other := owners.setdefault(name, file)) != file and name not in places:
                raise CheckpointError(
                    f"the tensor {name} stands in {other} and in {file} of {index.parent}",
                    f"the files are of different models or versions: {AGAIN}, all of them",
                )


def counted_files(folder: object) -> list[Path]:
    """Lists the files of weights that a run would load, for counting their bytes; none if ``folder`` is none, or has no
    such files.

    Raises:
        DamagedCheckpointError: a file of them is a stand-in or damaged.
    """
    path = Path(folder) if isinstance(folder, str) else None
    if path is None or not path.is_dir():
        return []
    if (path / INDEX).is_file() or (path / WHOLE).is_file():
        return weight_files(path)
    return sorted(path.glob("*.safetensors"))


def _none(folder: Path) -> CheckpointError:
    for form, fix in OTHERS.items():
        if found := sorted(file.name for file in folder.glob(form)):
            check_content(folder / found[0])
            return CheckpointError(
                f"{folder} lacks {WHOLE}; its weights are in another format: {', '.join(found[:4])}",
                fix.format(folder=folder, name=found[0]),
            )
    if inner := next((file.parent for name in (WHOLE, INDEX) for file in sorted(folder.glob(f"*/{name}"))), None):
        return CheckpointError(f"{folder} lacks {WHOLE}, and its folder {inner.name} has it", f"give {inner} instead")
    return CheckpointError(
        f"{folder} lacks {WHOLE} (and {INDEX})", "give the folder of a checkpoint with its weights, or download them"
    )
