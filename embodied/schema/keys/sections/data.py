"""Problems and demonstrations: ``data.*``, ``sft.*``, ``demos.*``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from embodied.schema.keys.base import Section


class CustomClsConfig(Section):
    path: str | None = Field(
        None,
        min_length=1,
        description="File of a data set of yours, or its module; null = none. It is called with data.options, and with "
        "data_files = data.train_data_paths (or val_data_paths) if they are set. It takes the place of the files.",
    )
    name: str = Field("Dataset", pattern=r"^[A-Za-z_]\w*$", description="The class or function in it.")


class DataConfig(Section):
    type: Literal["math"] | None = Field(
        None, description="Kind of the data: math = texts, and an env of robots is refused; null = what the env takes."
    )
    train_data_paths: list[str] = Field(
        [],
        description="Text: problems of env.train, unless env.train.data is set: .jsonl, .json, .csv, .parquet files, "
        "data sets of Hugging Face (a folder, or a name on the hub), or data sets of yours (file.py:Name). In "
        "supervised training demonstrations: the same sources, or LeRobot folders, LIBERO .hdf5 files or folders of "
        "them, ManiSkill .h5 files. data=PATH is short for one.",
    )
    val_data_paths: list[str] = Field(
        [],
        description="Text: problems of env.eval, unless env.eval.data is set. Supervised training: demonstrations for "
        "the validation loss alone. Empty = data.test_size of the others; with data.val_split or val_subset, that part "
        "of them.",
    )
    test_size: float = Field(
        0.1, ge=0, description="Problems or episodes held out for evaluation or validation: a share if below 1, else a "
        "number. Of texts so many rows of each file, the same in all runs.",
    )  # fmt: skip
    train_subset: str | None = Field(None, description="Hugging Face: configuration of the data set; null = the only.")
    train_split: str | list[str] | None = Field(
        None, description="Hugging Face: split, or several; null = the only one."
    )
    train_revision: str | None = Field(
        None, description="Hugging Face: branch, tag or commit of a data set on the hub; null = its newest."
    )
    val_subset: str | None = Field(None, description="The same of val_data_paths.")
    val_split: str | list[str] | None = Field(None, description="The same of val_data_paths.")
    val_revision: str | None = Field(None, description="The same of val_data_paths.")
    custom_cls: CustomClsConfig = CustomClsConfig()
    enable_dataset_cache: bool = Field(
        True,
        description="Text: keep the index of a file (of Parquet, and of data sets of Hugging Face, a copy) in the "
        "cache folder (XDG_CACHE_HOME), for the other processes and the next run; false = each process makes its own.",
    )
    camera_keys: list[str] | None = Field(
        None, description="Names that the env's cameras have in the files, in the env's order; null = the same."
    )
    state_keys: list[str] | None = Field(
        None, description="Arrays of the files whose concatenation is the env's state; null = the layout's own."
    )
    action_key: str | None = Field(
        None,
        min_length=1,
        description="Array of the files that holds the actions (openpi's data: actions); null = the layout's own.",
    )
    rotate_images: bool | None = Field(
        None, description="Pictures of .hdf5 demonstrations are turned by 180°; null = those of LIBERO are, those of "
        "robomimic are not.",
    )  # fmt: skip
    instruction: str | None = Field(
        None,
        description="Instruction of files that have none (ManiSkill, robomimic); null = that of the env's only task.",
    )
    prompt_key: str = Field("prompt", description="Text: column of the prompt.")
    response_key: str = Field("response", description="Text: column of the demonstrated answer.")
    answer_key: str | None = Field(
        "answer",
        description="Text: column of the answer that is right; a dot leads into a column (reward_model.ground_truth); "
        "null = the data has none.",
    )
    messages_key: str | None = Field(
        None,
        description="Text: column of conversations, lists of {role, content}. Problems: it takes the place of the "
        "prompt's. Supervised training: each of the assistant's messages is a demonstrated answer. null = problems "
        "have prompts; demonstrations have conversations where there is a column 'messages'.",
    )
    data_source_key: str | None = Field(
        None, description="Text: column that verifiers and reward functions are given as data_source; null = that of "
        "this name, if there is one.",
    )  # fmt: skip
    system_prompt: str | None = Field(
        None, description="Text: message of the system before conversations that have none; null = none."
    )
    chat_template: str | None = Field(
        None, description="Text: file with a Jinja template in place of the tokenizer's chat template; null = its own."
    )
    add_generation_prompt: bool = Field(
        True, description="Text: a prompt by the chat template ends with what opens the assistant's answer."
    )
    continue_final_message: bool = Field(
        False,
        description="Text: a conversation that ends with a message of the assistant is continued within that message; "
        "false = by the chat template as any other.",
    )
    enable_thinking: bool | None = Field(
        None, description="Text: handed to the chat template, which may know it; null = not handed over."
    )
    return_raw_chat: bool = Field(
        True,
        description="Text: reward functions of TRL's and Cosmos-RL's signature and the service of reward.remote are "
        "given the prompt as the data has it, without the chat template; false = they are not. Functions of verl's "
        "signature have no parameter for it.",
    )
    return_full_prompt: bool = Field(
        False,
        description="Text: reward functions and the service of reward.remote are given the prompt as the policy reads "
        "it, too: by the chat template, with special tokens, cut where data.truncation cuts. It is full_prompt, and "
        "full_prompts in the extra_info of verl's functions. What rollout.print_outputs and log_val_generations write "
        "has it as well. The env workers then hold the policy's tokenizer.",
    )
    max_prompt_length: int | None = Field(
        None,
        ge=1,
        description="Text: longest prompt with its chat template, tokens; null = what the model's file says "
        "(actor.model.max_prompt_tokens). env=math then takes prompts of 8 bytes a token.",
    )
    truncation: Literal["error", "left", "right"] = Field(
        "error",
        description="Text: what happens with a longer prompt: refused, or cut off on that side. The env cuts to "
        "its max_prompt_bytes first.",
    )
    filter_overlong_prompts: bool = Field(
        False,
        description="Text: leave out problems whose prompt is longer, in bytes or in tokens. They are counted once, "
        "when a file is first read, and the number is said.",
    )
    filter_overlong_prompts_workers: int = Field(1, ge=1, description="Text: processes that count these tokens.")
    shuffle: bool = Field(
        True,
        description="Training goes through problems (starts) or demonstrations in a new random order each time; false "
        "= in the order of the files.",
    )
    start_sampling: Literal["even", "informative"] = Field(
        "even",
        description="How training chooses its starts. even = each once before any comes twice. informative = half of "
        "them evenly, half in proportion to how much returns of a start may differ, by what is remembered of it "
        "(algorithm.start_value); an episode's advantage is multiplied by 1 / (number of starts · chance), at most 2, "
        "so that the policy loss has the gradient of all starts; other terms (value, entropy, KL, positive_nll) are "
        "those of the starts that were drawn. The factor comes after algorithm.advantage_clip_low and _high. Used are "
        "the results before the last algorithm.max_staleness iterations.",
    )
    validation_shuffle: bool = Field(
        False, description="Text: an evaluation takes its problems in random order, the same each time; false = the "
        "first ones.",
    )  # fmt: skip
    seed: int | None = Field(
        None,
        ge=0,
        description="Seed of these orders, and of the demonstrations (not of texts in files) that test_size holds out; "
        "null = runner.seed.",
    )
    drop_last: bool = Field(
        False,
        description="Leave out those at the end of a pass through the data that do not fill an iteration (supervised: "
        "an optimizer step); false = it is filled up with the first ones of the next pass.",
    )
    rollout_batch_size: int | None = Field(
        None,
        ge=1,
        description="Text: problems of an iteration, over all processes, each answered algorithm.group_size times; "
        "null = algorithm.rollout_epoch · env.train.total_num_envs / group_size.",
    )
    val_rollout_batch_size: int | None = Field(
        None,
        ge=1,
        description="Text: problems that an evaluation works on at the same time; sets env.eval.total_num_envs to this "
        "· algorithm.val_group_size. null = env.eval.total_num_envs.",
    )
    num_workers: int | None = Field(
        None,
        ge=1,
        description="Text: processes that read problems, of each process that trains. These are the env workers, which "
        "verify answers too, so it is the same as reward.num_workers and env.num_workers; null and 0 = those "
        "say it.",
    )
    prefetch_factor: int | None = Field(
        None,
        ge=0,
        description="Supervised training: micro-batches that threads read and decode ahead while the one before is "
        "computed, over the steps of an iteration and in a validation; as many threads. The same batches in the same "
        "order. null and 0 = each is read when it is needed. Other runs read a problem when its episode begins, and "
        "refuse it.",
    )
    image_key: str | None = Field(
        None,
        description="Text: column of the pictures (one, or a list) of a problem or of a demonstration, for a "
        "vision-language model; the prompt says <image> where each belongs. null = none is read.",
    )
    options: dict[str, Any] = Field(
        {}, description="Text: keyword arguments of data sets of yours (file.py:Name, module:function, custom_cls)."
    )
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
    episodes: int = Field(
        100,
        ge=1,
        description="Episodes to record: successful ones, and mistaken ones if demos.mistakes asks for them. "
        "episodes=N is short for it.",
    )
    noise_std: float = Field(
        0.0,
        ge=0,
        description="Standard deviation of the noise on executed actions, as a share of half the range; recorded "
        "actions have none. noise_std=X is short for it.",
    )
    mistakes: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the attempts in which the expert does another thing than what is asked for (LIBERO: "
        "takes another object), e.g. to learn from careless demonstrations. They are recorded under the instruction "
        "that they do not follow, and count as episodes.",
    )
    max_attempts: int | None = Field(
        None, ge=1, description="Episodes to try at most; null = ten times demos.episodes."
    )
