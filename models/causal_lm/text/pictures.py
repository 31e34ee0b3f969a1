"""Prepares pictures for a vision-language model: one of fixed size gives a fixed number of tokens in the prompt.

``<image>`` in a prompt becomes what transformers' processor of the model puts there for a picture that is not split
into tiles: :func:`expanded`. Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied import instructions
from embodied.errors import CheckpointError, SpecMismatchError

from ...shared.files import read_json

KINDS = {"llava": "language_model", "internvl": "language_model", "idefics3": "text_model", "smolvlm": "text_model"}
"""``model_type`` of networks that can be run here → where the language model lies in them."""
_PLACES = "the positions of a picture's tokens have three parts (M-RoPE), and one is given here"
_BOTH_WAYS = "the tokens of a picture see each other in both directions, and attention here is causal"
_TILES = "a picture's number of tokens depends on its shape, and here it is fixed"
REFUSED = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v"), _PLACES),
    **dict.fromkeys(("gemma3", "paligemma"), _BOTH_WAYS),
    **dict.fromkeys(("llava_next", "llava_onevision", "pixtral", "mistral3"), _TILES),
    "mllama": "the language model reads pictures by layers of its own (cross-attention)",
}
"""``model_type`` of known vision-language networks → why they read no pictures here."""
FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "chat_template.json")
"""Files of a folder that only transformers' processor reads."""


@dataclass(frozen=True)
class Pictures:
    """How a vision-language checkpoint takes pictures: size, tokens, normalisation."""

    kind: str  # model_type
    size: int  # pixels of each side
    tokens: int  # tokens that a picture has in the prompt; its features replace them
    token: int  # id of these tokens
    scale: float  # a pixel's value x becomes (scale · x − mean) / std, for red, green and blue
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, folder: Path) -> Pictures | None:
        """Reads the picture settings of a checkpoint; None if its network is none of :data:`KINDS`.

        Raises:
            CheckpointError: it does not say how pictures are prepared, or has a tower for pictures of any shape.
        """
        if kind_of(folder) not in KINDS:
            return None
        from transformers import AutoConfig

        try:
            config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{folder}/config.json cannot be read: {error}", "download it again") from error
        if (tower := config.vision_config.model_type) in REFUSED:
            raise CheckpointError(
                f"{folder} has a vision tower of {tower}: {REFUSED[tower]}", "choose a checkpoint with another tower"
            )
        vision, said = config.vision_config, _prepared(folder)
        size, patch = _one(vision.image_size), _one(vision.patch_size)
        normal = said.get("do_normalize", True)
        try:
            mean, std = (said["image_mean"], said["image_std"]) if normal else ((0.0,) * 3, (1.0,) * 3)
        except KeyError as error:
            raise _unprepared(folder, f"{error} is missing") from None
        scale = said.get("rescale_factor", 1 / 255) if said.get("do_rescale", True) else 1.0
        tokens = _tokens(config, (size // patch) ** 2)
        return cls(config.model_type, size, tokens, config.image_token_id, scale, tuple(mean), tuple(std))


def processors_template(folder: Path) -> str | None:
    """Reads the chat template that older folders of :data:`KINDS` keep for the processor alone; None if
    there is none."""
    file = folder / "chat_template.json"
    return read_json(file).get("chat_template") if kind_of(folder) in KINDS and file.is_file() else None


def kind_of(folder: Path) -> str:
    """Reads the ``model_type`` of a folder's network; "" if it has no config.json."""
    file = folder / "config.json"
    return str(read_json(file).get("model_type", "")) if file.is_file() else ""


def configured_size(folder: Path) -> int | None:
    """Reads the picture size (pixels of each side) in config.json; None if it has none, or if the network reads no
    pictures."""
    if kind_of(folder) not in KINDS:
        return None
    said = read_json(folder / "config.json").get("vision_config")
    size = said.get("image_size") if isinstance(said, Mapping) else None
    return None if size is None else _one(size)


def _tokens(config: Any, patches: int) -> int:
    if config.model_type == "llava":
        first = config.vision_config.model_type.startswith("clip")  # a token of the whole picture
        return patches + first - (config.vision_feature_select_strategy == "default")
    if config.model_type == "internvl":
        return int(patches * config.downsample_ratio**2)
    return int(patches / config.scale_factor**2)


def _one(size: Any) -> int:
    """A side of a square, which may be given twice."""
    return int(size if isinstance(size, int) else size[0])


def _prepared(folder: Path) -> Mapping[str, Any]:
    for name in ("preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            said = read_json(folder / name)
            found = said.get("image_processor", said)
            if isinstance(found, Mapping) and {"image_mean", "do_normalize"} & set(found):
                return found
    raise _unprepared(folder, "there is neither preprocessor_config.json nor processor_config.json")


def _unprepared(folder: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{folder} does not say how pictures are prepared: {why}", "copy preprocessor_config.json of the model into it"
    )


def with_parts(messages: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Converts messages for chat templates of vision-language models: each content a list of texts and pictures."""
    return [{**message, "content": _parts(message["content"])} for message in messages]


def _parts(content: str) -> list[dict[str, str]]:
    texts = content.split(instructions.PICTURE)
    found: list[dict[str, str]] = [{"type": "text", "text": texts[0]}]
    for text in texts[1:]:
        found += [{"type": "image"}, {"type": "text", "text": text}]
    return [part for part in found if part.get("text") != ""] or found


def expanded(text: str, pictures: Pictures, tokenizer: Any, count: int) -> str:
    """Replaces each of ``count`` picture marks in a prompt by the picture's tokens, as the processor of
    transformers does.

    Raises:
        SpecMismatchError: the model's token for pictures stands elsewhere in the prompt, or the template left one out.
    """
    token = tokenizer.convert_ids_to_tokens(pictures.token)
    if (found := text.count(token)) != count:
        raise SpecMismatchError(
            f"a prompt has {count} times {instructions.PICTURE}, and {found} times {token} once it is put by the chat "
            f"template: '{text[:80]}…'",
            f"give a chat template that writes each picture (actor.model.chat_template), and no prompt with {token}",
        )
    before, after = "", ""
    if pictures.kind == "internvl":
        before, after = (getattr(tokenizer, name, None) or usual for name, usual in _ENDS)
    elif pictures.kind != "llava":
        before, after = "<fake_token_around_image><global-img>", "<fake_token_around_image>"
    return text.replace(token, before + token * pictures.tokens + after)


_ENDS = (("start_image_token", "<img>"), ("end_image_token", "</img>"))
