"""Demonstrations: ``data.*``, ``sft.*``, ``demos.*``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from embodied.schema.base import Section


class DataConfig(Section):
    train_data_paths: list[str] = Field(
        [],
        description="Demonstrations: LeRobot folders, LIBERO .hdf5 files or folders of them, ManiSkill .h5 files; of "
        "texts .jsonl, .json, .csv, .parquet, or module:function that gives rows. data=PATH is short for one.",
    )
    val_data_paths: list[str] = Field(
        [], description="Demonstrations for the validation loss alone; empty = data.test_size of the others."
    )
    test_size: float = Field(
        0.1, ge=0, description="Episodes held out for the validation loss: a share if below 1, else a number."
    )
    camera_keys: list[str] | None = Field(
        None, description="Names that the env's cameras have in the files, in the env's order; null = the same."
    )
    state_keys: list[str] | None = Field(
        None, description="Arrays of the files whose concatenation is the env's state; null = the layout's own."
    )
    instruction: str | None = Field(
        None, description="Instruction of files that have none (ManiSkill); null = that of the env's only task."
    )
    prompt_key: str = Field("prompt", description="Text: column of the prompt.")
    response_key: str = Field("response", description="Text: column of the demonstrated answer.")
    messages_key: str = Field(
        "messages",
        description="Text: column of conversations, lists of {role, content}; each of the assistant's messages is a "
        "demonstrated answer.",
    )
    system_prompt: str | None = Field(
        None, description="Text: message of the system before conversations that have none; null = none."
    )
    options: dict[str, Any] = Field({}, description="Text: keyword arguments of a module:function that gives rows.")
    random_crop: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Augmentation: share of a picture's area that a random crop keeps before it is enlarged again; "
        "1 = off. Models of which actor.model.center_crop is true expect 0.9.",
    )
    brightness: float = Field(
        0.0, ge=0, lt=1, description="Augmentation: pixels are multiplied by a random factor in 1 ± this; 0 = off."
    )


class SftConfig(Section):
    steps_per_iteration: int = Field(
        100, ge=1, description="Optimizer steps of an iteration (runner.max_epochs, save_interval … count those)."
    )
    statistics: Literal["auto", "quantiles", "env"] = Field(
        "auto",
        description="Ranges over which action tokens are spread: quantiles = 1 % and 99 % quantiles of the "
        "demonstrations (of the state as well), or their minimum and maximum where the policy uses those (OpenVLA-OFT "
        "with actor.model.action_normalization: bounds); env = the env's range; auto = those that the policy brings "
        "from its checkpoint, else quantiles. They are kept with every checkpoint.",
    )
    val_samples: int = Field(
        256, ge=0, description="Samples, spread over the held-out demonstrations, of the validation; 0 = none."
    )


class DemosConfig(Section):
    path: str | None = Field(None, description="Folder of the data set; null = demos/ENV.")
    episodes: int = Field(100, ge=1, description="Successful episodes to record. episodes=N is short for it.")
    noise_std: float = Field(
        0.0,
        ge=0,
        description="Standard deviation of the noise on executed actions, as a share of half the range; recorded "
        "actions have none. noise_std=X is short for it.",
    )
    max_attempts: int | None = Field(
        None, ge=1, description="Episodes to try at most; null = ten times demos.episodes."
    )
