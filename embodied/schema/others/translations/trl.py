"""Rules of TRL's keys: keyword arguments of ``GRPOConfig``, ``LoraConfig`` and ``GRPOTrainer``; keys of its YAML."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from embodied.schema.others.tables import Row
from embodied.schema.others.translation import Lookup, Rule, Translation, Unknown, nothing, number_of, positive
from embodied.schema.others.translations import trl_counts as counts
from embodied.schema.others.translations import trl_rewards
from embodied.schema.others.translations.trl_counts import said_by, sizes
from embodied.schema.others.values import translated

MEANS = {
    "grpo": "seq-mean-token-mean", "bnpo": "token-mean", "dapo": "token-mean", "dr_grpo": "seq-mean-token-sum-norm",
    "cispo": "token-mean",
}  # fmt: skip
"""TRL's ``loss_type`` → how the losses of tokens become one number."""
WEIGHTS = {"token_truncate": "cap", "token_mask": "mask"}
"""What bounds the weights of vLLM's tokens → ``algorithm.behav_imp_weight_mode``."""
SCALES = {"group": "grpo", "true": "grpo", "none": "dr_grpo", "false": "dr_grpo"}
SHAPES = {
    "linear": "linear", "cosine": "cosine", "cosine_with_min_lr": "cosine", "constant": "constant",
    "constant_with_warmup": "constant",
}  # fmt: skip
ADAPTERS = {
    "actor.model.lora_rank": ("r", 16, 8), "actor.model.lora_alpha": ("lora_alpha", 32, 8),
    "actor.model.lora_dropout": ("lora_dropout", 0.05, 0.0),
}  # fmt: skip
"""Our key → its name in ``LoraConfig``, what it is by default in TRL's YAML, and in ``LoraConfig``."""
LAYERS = ["q_proj", "v_proj"]
"""Layers that peft gives adapters where none are named, in the language models that are here."""


def _on(value: Any) -> bool:
    return value in (True, "True", "true")


def loss(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the loss, its mean, and whether an answer has one ratio (GSPO)."""
    name, level = str(value).lower(), str(get("importance_sampling_level") or "token").lower()
    if name not in MEANS or level not in ("token", "sequence") or (name == "cispo" and level == "sequence"):
        return Translation(how="refused", why=f"there is no loss {value} with one ratio a {level} here")
    of_engine = "tis" if _weighs(get) else "ppo"
    ours = "cispo" if name == "cispo" else "gspo" if level == "sequence" else of_engine
    of, why = sizes(get), ""
    if name == "bnpo" and of.accumulated > 1:
        why = "there each pass has a mean of its own, here the optimizer step has one"
    if name in ("dapo", "cispo") and of.spread != of.accumulated:
        why = "there tokens are counted over the whole iteration, here over the optimizer step"
    return Translation({row.ours[0]: ours, row.ours[1]: MEANS[name]}, "derived" if why else "renamed", why)


def level(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates what has one ratio, a token or an answer."""
    if isinstance(get, Unknown) and str(value).lower() == "sequence":
        return Translation({row.ours[0]: "gspo"}, "renamed")
    return Translation(how="nothing", why="loss_type says it")


def clip(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the ratio's clip. CISPO has no lower one, and its upper one is the largest weight itself."""
    low, high = "algorithm.clip_ratio_low", "algorithm.clip_ratio_high"
    number, of_high = number_of(value), row.key == "epsilon_high"
    if number is None:
        return Translation(how="nothing", why="epsilon says it")
    both = of_high or get("epsilon_high") is None
    if str(get("loss_type")).lower() == "cispo":
        if not both:
            return Translation(how="nothing", why="cispo has no lower clip, and epsilon_high is the upper one")
        if number < 1:
            return Translation(
                how="refused", why=f"the largest weight of cispo is {number:g} there, and 1 or more here"
            )
        return Translation({low: 0.999, high: round(number - 1, 12)}, "derived", "the largest weight is 1 + this here")
    return Translation({high: value} if of_high else {low: value, **({high: value} if both else {})}, "renamed")


def dual_clip(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the bound of ratios of negative advantages; below the upper clip it is another loss."""
    number = number_of(value)
    if number is None or str(get("loss_type")).lower() == "cispo":
        return Translation(how="nothing", why="nothing is set" if number is None else "cispo has none")
    upper = number_of(get("epsilon_high"))
    upper = 1 + (upper if upper is not None else number_of(get("epsilon")) or 0.2)
    if number < upper:
        return Translation(how="refused", why=f"it is below the upper clip {upper:g}, and so clips positive ones, too")
    return Translation({row.ours[0]: value}, "renamed")


def unbiased(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the ratio that the KL term is multiplied by."""
    if not isinstance(get, Unknown) and not number_of(get("beta")):
        return Translation(how="nothing", why="beta is 0")
    return Translation({row.ours[0]: _on(value)}, "renamed")


def reference(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the reference that follows the policy; here it becomes the policy, and is never mixed with it."""
    if not _on(value) or not (isinstance(get, Unknown) or number_of(get("beta"))):
        return Translation(how="nothing", why="beta is 0" if _on(value) else "it is off")
    share = number_of(get("ref_model_mixup_alpha"))
    if (0.6 if share is None else share) != 1:
        return Translation(
            how="refused",
            why="a reference becomes the policy here (ref_model_mixup_alpha 1.0), and is not mixed with it",
        )
    every = ceil(counts.count(get, "ref_model_sync_steps", 512) / sizes(get).steps)
    return Translation({row.ours[0]: every, "algorithm.reset_optimizer_with_reference": False}, "derived")


def advantage(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates what divides the advantages: GRPO or Dr. GRPO."""
    name = SCALES.get(str(value).lower())
    if name is None:
        return Translation(
            how="refused", why=f"advantages are divided by the deviation of the group, not of the {value}"
        )
    return Translation({row.ours[0]: name}, "renamed")


def precision(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the switches of the number format; bf16 is on unless fp16 is."""
    if row.key == "fp16":
        return Translation(
            {row.ours[0]: "fp16"} if _on(value) else {}, "derived" if _on(value) else "nothing", "bf16 says it"
        )
    if _on(get("fp16")):
        return Translation(how="nothing", why="fp16 says it")
    return Translation({row.ours[0]: "fp32" if value in (False, "False", "false") else "bf16"}, "derived")


def adapters(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the switch for adapters, with what TRL or peft takes where their file says no more."""
    if not _on(value):
        return Translation({row.ours[0]: False}, "renamed")
    of_script = get("peft_config.peft_type") is not None
    settings: dict[str, Any] = {row.ours[0]: True}
    for key, (name, usual, of_peft) in ADAPTERS.items():
        theirs = f"peft_config.{name}" if of_script else f"lora_{name.removeprefix('lora_')}"
        if get(theirs) is None:
            settings[key] = of_peft if of_script else usual
    if get("peft_config.target_modules" if of_script else "lora_target_modules") is None:
        settings["actor.model.lora_target_modules"] = LAYERS
    return Translation(settings, "derived", "with what their adapters have by default" if len(settings) > 1 else "")


def of_adapters(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a key of the adapters, which counts only where there are some."""
    if value is None or not (isinstance(get, Unknown) or _on(get("use_peft"))):
        return Translation(how="nothing", why="use_peft is off" if value is not None else "their default")
    return Translation({row.ours[0]: value}, "renamed")


def bits(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the switches for frozen layers in few bits."""
    number = 4 if row.key.endswith("4bit") else 8
    return Translation({row.ours[0]: number} if _on(value) else {}, "derived" if _on(value) else "nothing")


def engine(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the switch for vLLM, whose tokens get their old log-probs from the trained network in TRL."""
    if not _on(value):
        return Translation(how="nothing", why="the policy writes its answers itself")
    return Translation({row.ours[0]: "vllm", "rollout.recompute_logprobs": True}, "derived")


def _weighs(get: Lookup) -> bool:
    """Whether answers of vLLM are weighed token by token, as ``loss_type=tis`` does here."""
    on = _on(get("use_vllm")) and get("vllm_importance_sampling_correction") not in (False, "False", "false")
    return on and get("vllm_importance_sampling_mode") in WEIGHTS


def weighed(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates how answers of vLLM are weighed; here tokens are, and no whole answers."""
    if not _on(get("use_vllm")) or not _on(get("vllm_importance_sampling_correction")):
        return Translation(how="nothing", why="the policy writes its answers itself, or they are not weighed")
    if row.key.endswith("correction"):
        mode = get("vllm_importance_sampling_mode") or "sequence_mask"
        of_tokens = mode in WEIGHTS and str(get("loss_type")).lower() != "cispo"
        why = f"answers of vLLM are weighed by {mode} there, and token by token here; rollout.backend=native needs none"
        return Translation(how="nothing" if of_tokens else "refused", why="loss_type says it" if of_tokens else why)
    if not _weighs(get) or value is None:
        return Translation(how="nothing", why="vllm_importance_sampling_correction says it")
    return Translation({row.ours[0]: WEIGHTS.get(value, value)}, "renamed")


def of_engine(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a key of vLLM, which counts only where it is used."""
    if not (isinstance(get, Unknown) or _on(get("use_vllm"))):
        return Translation(how="nothing", why="use_vllm is off")
    return Translation({row.ours[0]: value}, "renamed")


def schedule(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the shape of the learning rate."""
    shape = SHAPES.get(str(value).lower().rpartition(".")[2])
    if shape is None:
        return Translation(how="refused", why=f"the rate follows no {value} here: constant, linear, cosine or wsd")
    return Translation({row.ours[0]: shape}, "renamed")


def optimizer(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the optimizer's name; AdamW's implementations are one."""
    name = str(value).lower().rpartition(".")[2]
    if name in ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw"):
        return Translation({row.ours[0]: "adamw"}, "renamed")
    return Translation(how="refused", why=f"there is no optimizer {value} here: adamw or adam")


def prompt(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the longest prompt, of which older versions of TRL keep the end."""
    if number_of(value) is None:
        return Translation(how="nothing", why="no limit but that of the model")
    return Translation({row.ours[0]: value, "data.truncation": "left"}, "derived", "of a longer prompt the end is kept")


def _files(value: Any) -> bool:
    """Whether these are files, and no name on the hub."""
    return isinstance(value, list) or str(value).endswith((".json", ".jsonl", ".csv", ".parquet"))


def problems(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates files, or a name on the hub."""
    return Translation({row.ours[0]: value if isinstance(value, list) else [value]}, "renamed")


def split(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a part of a data set of Hugging Face; files have none."""
    key = "dataset_name" if row.key == "dataset_train_split" else "eval_dataset_name"
    named = get(key) if get(key) is not None else get("dataset_name")
    evaluates = str(get("eval_strategy") or "no").lower() not in ("no", "false")
    used = row.key == "dataset_train_split" or get("eval_dataset_name") or evaluates
    if isinstance(get, Unknown):
        return Translation({row.ours[0]: value}, "renamed")
    if _files(named) or named is None or value is None or not used:
        return Translation(how="nothing", why="files have no parts" if _files(named) else "it is not used")
    more = {} if row.key == "dataset_train_split" or get(key) is not None else {"data.val_data_paths": [named]}
    return Translation({row.ours[0]: value, **more}, "derived" if more else "renamed")


def tokenizer(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the tokenizer's folder; mostly it is the model's own."""
    if value == get("model_name_or_path"):
        return Translation(how="nothing", why="the tokenizer of the model")
    return Translation({row.ours[0]: value}, "renamed")


def tokens(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a cut of the sampled distribution, in which log-probs are of the cut one here."""
    settings = translated(row.ours[0], value)
    neutral = number_of(value) in ((1.0,) if row.key != "top_k" else (0.0, None))
    why = (
        "" if neutral or isinstance(get, Unknown) else "log-probs are those of the cut distribution, there of the whole"
    )
    return Translation(settings, "renamed", why)


def trackers(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the trackers' names."""
    names = [str(name) for name in ([value] if isinstance(value, str) else value or []) if name not in ("none", "all")]
    if not names:
        return Translation(how="nothing", why="runner.logger.logger_backends says it")
    return Translation({row.ours[0]: ["jsonl", *names]}, "renamed")


RULES: Mapping[str | tuple[str, str], Rule] = {
    ("trl", key): counts.given(rule)
    for key, rule in {
        "use_peft": adapters, "lora_r": of_adapters, "lora_alpha": of_adapters, "lora_dropout": of_adapters,
        "lora_target_modules": of_adapters, "peft_config.r": of_adapters, "peft_config.lora_alpha": of_adapters,
        "peft_config.lora_dropout": of_adapters, "peft_config.target_modules": of_adapters, "load_in_4bit": bits,
        "load_in_8bit": bits, "quantization_config.load_in_4bit": bits, "quantization_config.load_in_8bit": bits,
        "bf16": precision, "fp16": precision, "dataset_train_split": split, "dataset_test_split": split,
        "reward_funcs": trl_rewards.functions, "reward_weights": said_by("reward_funcs"),
        "reward_model_name_or_path": trl_rewards.model, "max_prompt_length": prompt,
        "processing_class": tokenizer, "dataset_name": problems, "eval_dataset_name": problems, "top_p": tokens,
        "top_k": tokens,
        "repetition_penalty": tokens, "use_vllm": engine, "vllm_gpu_memory_utilization": of_engine,
        "vllm_tensor_parallel_size": of_engine, "vllm_enable_sleep_mode": of_engine,
        "vllm_importance_sampling_correction": weighed, "vllm_importance_sampling_mode": weighed,
        "vllm_importance_sampling_clip_max": weighed, "per_device_train_batch_size": counts.batch,
        "gradient_accumulation_steps": said_by("per_device_train_batch_size"),
        "steps_per_generation": said_by("num_generations"), "generation_batch_size": said_by("num_generations"),
        "num_processes": counts.processes, "num_machines": said_by("num_processes"),
        "num_generations": counts.generations, "num_generations_eval": said_by("eval_strategy"),
        "num_train_epochs": counts.passes, "max_steps": counts.iterations, "use_bias_correction_kl": unbiased,
        "sync_ref_model": reference, "ref_model_sync_steps": said_by("sync_ref_model"),
        "ref_model_mixup_alpha": said_by("sync_ref_model"), "epsilon": clip, "epsilon_high": clip, "delta": dual_clip,
        "loss_type": loss, "importance_sampling_level": level, "scale_rewards": advantage,
        "off_policy_mask_threshold": positive, "optim": optimizer, "lr_scheduler_type": schedule,
        "warmup_steps": counts.warmup, "warmup_ratio": counts.warmup, "eval_strategy": counts.evaluates,
        "eval_steps": said_by("eval_strategy"), "save_strategy": counts.saves,
        "save_steps": counts.when("save_strategy"), "report_to": trackers,
        "model_revision": nothing("a folder is read; a name on the hub has the revision that was downloaded"),
        "dtype": nothing("weights that are trained are kept in float32; actor.model.precision says what computes"),
    }.items()
}  # fmt: skip
