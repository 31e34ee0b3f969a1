"""Problems of data files with answers that can be checked, as an :class:`embodied.protocols.Env`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied.errors import ConfigError
from embodied.rows.hub import Part

from ..shared.arguments import check_range
from .problems import Selection, open_sources
from .reading import Reading
from .slot import TextEnv, as_json
from .tokens import TokenLimit

BOXED = ({"name": "boxed"},)


class MathEnv(TextEnv):
    r"""A text env of problems from data files or custom data sets, judged by a verifier.

    Observation: ``instruction`` uint8 [P], the prompt, or the conversation if the data or the options make one. If
    rows have pictures, also ``pictures`` uint8 [max_images, image_size, image_size, 3], in the order in which
    ``<image>`` stands in the prompt; behind the last one they are black.
    Action: uint8 [L], the response, which ends the episode. Reward and success: what the verifier says.

    Args:
        data: one or several of: a .jsonl, .json, .csv or .parquet file; a data set of Hugging Face, a folder or a name
            (:mod:`embodied.rows.hub`); a custom data set, ``path/to/file.py:Name`` or ``package.module:Name``
            (:mod:`embodied.rows.custom`). Each is a task, called by the file's name.
        verifier: what responses are judged by, a list of parts: ``[{name: boxed}, {name: format, pattern: …, weight:
            0.1}]`` (:mod:`embodied.envs.text.verifiers`).
        weights: relative numbers of starts, one for each of ``data``. There are as many starts as problems in all; a
            source repeats its problems, or uses a subset drawn by ``shuffle_seed``, to have its share of them. None =
            every problem is a start.
        data_args: keyword arguments of custom data sets.
        prompt_key: column of the prompt: a text, or a list of messages.
        answer_key: column of the answer; a dot leads into a column (``reward_model.ground_truth``). None = the data has
            no answers. Rows whose prompt or answer is missing or empty, or whose answer the verifier cannot read, are
            skipped; how many is said at the start.
        messages_key: column of a conversation to go on with, in place of ``prompt_key``.
        data_source_key: column that verifiers find as ``data_source`` in the problem's fields.
        system_prompt: begins the conversation, if the data does not begin it with one of its own.
        chat: a plain prompt becomes a conversation of one message (with ``system_prompt`` it always does).
        template: how a prompt, or the last message, is put: ``"{prompt}\nPut the answer into \\boxed{{}}."``. Other
            columns may be named.
        max_prompt_bytes: P. A conversation takes about 40 bytes a message more than its text.
        truncation: what happens with longer prompts: error, or cut off on the left or the right side.
        filter_overlong_prompts: leave out longer prompts.
        token_limit: leave out prompts of too many tokens, too: ``most``, ``counter``, ``options`` and ``workers`` of
            :class:`embodied.envs.text.tokens.TokenLimit`. ``data.filter_overlong_prompts`` sets it. Without it the
            policy refuses such a prompt when it comes.
        shuffle: number the problems in another order. Training draws its starts in random order anyway; evaluations
            take the first ones, and ``max_samples`` keeps the first ones.
        shuffle_seed: of that order.
        max_samples: use at most so many problems of each source.
        max_response_bytes: L; a policy cuts longer responses.
        subset, split, revision: of data sets of Hugging Face (:class:`embodied.rows.hub.Part`).
        part: all problems; train or held_out: without those that ``test_size`` holds out for evaluations, or those
            alone. Which these are depends on nothing else.
        test_size: share of the problems that is held out, or their number if it is 1 or more.
        enable_dataset_cache: keep the index of a file in the cache folder; False = each process makes its own.
        image_key: column of pictures (:mod:`embodied.rows.pictures`); None = it is not looked for. The prompt says
            ``<image>`` where each belongs, or its messages have parts ``{type: image}``.
        image_size: pixels of each side of a picture, which a policy for pictures asks for. A picture keeps its shape,
            and black fills it up. None = the launcher reads it in the model's config.json.
        max_images: most pictures of a row.

    Raises:
        ConfigError: an option is impossible.
        DatasetError: data is missing, empty or damaged, no row has such a column, or a prompt is too long.
        AssetsMissingError: a package is not installed, or no cache folder can be written.
    """

    def __init__(
        self,
        data: str | list[str] | None = None,
        verifier: Any = BOXED,
        weights: list[float] | None = None,
        data_args: Mapping[str, Any] | None = None,
        prompt_key: str = "prompt",
        answer_key: str | None = "answer",
        messages_key: str | None = None,
        data_source_key: str | None = None,
        system_prompt: str | None = None,
        chat: bool = False,
        template: str | None = None,
        max_prompt_bytes: int = 2048,
        truncation: str = "error",
        filter_overlong_prompts: bool = False,
        shuffle: bool = False,
        shuffle_seed: int = 0,
        max_samples: int | None = None,
        max_response_bytes: int = 4096,
        subset: str | None = None,
        split: str | list[str] | None = None,
        revision: str | None = None,
        part: str = "all",
        test_size: float = 0.1,
        token_limit: Mapping[str, Any] | None = None,
        enable_dataset_cache: bool = True,
        image_key: str | None = None,
        image_size: int | None = None,
        max_images: int = 1,
    ) -> None:
        reading = Reading(
            prompt_key, answer_key, messages_key, data_source_key, system_prompt, chat, template, max_prompt_bytes,
            truncation, image_key=image_key, max_images=max_images,
        )  # fmt: skip
        limit = None if token_limit is None else TokenLimit.of(token_limit)
        selection = Selection(filter_overlong_prompts, shuffle, shuffle_seed, max_samples, part, test_size, limit)
        of_hub = Part.of(subset, split, revision)
        parts = "" if callable(verifier) or answer_key is None else as_json(verifier)
        sources = open_sources(paths_of(data), data_args or {}, reading, selection, weights, of_hub, parts,
                               enable_dataset_cache)  # fmt: skip
        shown = (max_images, _size(image_size)) if any(source.pictured for source in sources) else None
        super().__init__(sources, verifier, max_prompt_bytes, max_response_bytes, pictures=shown)


def _size(image_size: int | None) -> int:
    if image_size is None:
        raise ConfigError(
            "the data has pictures, and it is not known in which size the policy reads them (env.train.image_size)",
            "choose a vision-language checkpoint whose config.json says it (vision_config.image_size), or set "
            "env.train.image_size and env.eval.image_size; or leave data.image_key out",
        )
    check_range("env.train.image_size", image_size, 1, 4096)
    return image_size


def paths_of(data: str | list[str] | None) -> list[str]:
    """Converts ``data`` to a list of data files. Raises :class:`ConfigError` if there is none."""
    if not data:
        raise ConfigError(
            "env.train.data is not set: no problems",
            "set data.train_data_paths and data.val_data_paths (or env.train.data and env.eval.data) to .jsonl, .json, "
            ".csv or .parquet files, or to data sets of Hugging Face; in supervised training env.train.data and "
            "env.eval.data, because data.* are the demonstrations",
        )
    return [data] if isinstance(data, str) else list(data)
