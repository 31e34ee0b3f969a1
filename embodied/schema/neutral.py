"""Keys of machinery that is not there: a value that asks for nothing is taken and dropped, another one is refused.

A key under ``actor.model`` or ``reward.model`` stands here for those models that do not take it themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from embodied.errors import ConfigError
from embodied.lib.targets import load_target
from embodied.schema.fixed import told as told
from embodied.schema.links import MISSING, at, without
from embodied.schema.neutral_run import MEGATRON as _MEGATRON
from embodied.schema.neutral_run import RUN, Neutral

_SPLIT = f"{_MEGATRON}, and no layer is split over devices"
_KERNEL = f"it chooses a kernel of Megatron, and {_MEGATRON}"
_EXPERTS = f"{_MEGATRON}, and experts are computed where their layer is"
_SHARE = "set actor.fsdp_config.strategy=fsdp2, which shares a policy out over the processes"
_RECOMPUTE = f"{_MEGATRON}, and each layer is recomputed as a whole or not at all"
_CHECKPOINT = "set actor.model.gradient_checkpointing=true, if the model has it"
_NETWORK = "the checkpoint's config.json says what its layers are, and all networks that can be run have this one"
_NO_ADAPTERS, _NO_SIZE = "this model has no adapters", "the sizes of this model cannot be chosen"
_LORA = "choose a model with adapters, e.g. model=openvla_oft_tiny or model=causal_lm"
_ONE_ENGINE = "an engine runs in one process that splits each layer"
_ENGINE_GPUS = "set rollout.tensor_parallel_size to the number of GPUs"
_UNDER_MODEL: Mapping[str, Neutral] = {
    "tensor_model_parallel_size": Neutral((1,), _SPLIT, _SHARE),
    "pipeline_model_parallel_size": Neutral((1,), _SPLIT, _SHARE),
    "virtual_pipeline_model_parallel_size": Neutral((1,), _SPLIT, _SHARE),
    "expert_model_parallel_size": Neutral((1,), _EXPERTS, _SHARE),
    "context_parallel_size": Neutral(
        (1,),
        "this model has short sequences, so that one device computes each",
        "set actor.model.gradient_checkpointing=true, if the model has it, to save memory",
    ),
    "sequence_parallel": Neutral((False,), _SPLIT, _SHARE),
    "megatron_checkpoint": Neutral((), _MEGATRON, "set actor.model.model_path to a Hugging Face folder"),
    "recompute_granularity": Neutral((), _RECOMPUTE, _CHECKPOINT),
    "recompute_method": Neutral((), _RECOMPUTE, _CHECKPOINT),
    "recompute_num_layers": Neutral((0,), _RECOMPUTE, _CHECKPOINT),
    "moe_layer_recompute": Neutral((False,), _RECOMPUTE, _CHECKPOINT),
    "moe_token_dispatcher_type": Neutral(("alltoall",), _EXPERTS),
    "moe_grouped_gemm": Neutral((False,), _EXPERTS),
    "moe_shared_expert_overlap": Neutral((False,), _EXPERTS),
    "activation": Neutral(("swiglu",), _NETWORK),
    "normalization": Neutral(("rmsnorm",), _NETWORK),
    "position_embedding_type": Neutral(("rope",), _NETWORK),
    "add_bias_linear": Neutral((False,), _NETWORK),
    "add_qkv_bias": Neutral((), "the checkpoint's config.json says whether attention has them"),
    "attention_softmax_in_fp32": Neutral((True,), "attention always adds up its weights in float32"),
    "use_cpu_initialization": Neutral((True,), "weights are always made, or read, in host memory"),
    "apply_rope_fusion": Neutral((False,), _KERNEL),
    "bias_activation_fusion": Neutral((False,), _KERNEL),
    "bias_dropout_fusion": Neutral((False,), _KERNEL),
    "persist_layer_norm": Neutral((False,), _KERNEL),
    "gradient_accumulation_fusion": Neutral((False,), _KERNEL),
    "batch_p2p_comm": Neutral((False,), f"{_MEGATRON}, and no pipeline of devices"),
    "variable_seq_lengths": Neutral((False,), f"{_MEGATRON}, and no pipeline of devices whose passes could differ"),
    "trust_remote_code": Neutral((False, True), "it is a permission, and this model runs no code of a checkpoint"),
    "low_cpu_mem_usage": Neutral(
        (True, False), "false is a permission to hold weights twice in host memory, of which none makes use"
    ),
    "model_revision": Neutral(
        (),
        "nothing is downloaded: it is of a name on the hub that the Hugging Face cache of this machine has",
        "give the folder of that revision in actor.model.model_path",
    ),
    "override_config": Neutral(({},), "this model has keys of its own for its sizes"),
    "attn_implementation": Neutral((), "this model does not let its attention be chosen"),
    "gradient_checkpointing": Neutral((False,), "this model cannot compute its layers again"),
    "hidden_size": Neutral((), _NO_SIZE),
    "vocab_size": Neutral((), _NO_SIZE),
    "action_dim": Neutral((), "the length of this model's actions cannot be chosen"),
    "num_action_chunks": Neutral((1,), "this model gives one action, or one text, to an observation"),
    "num_images_in_input": Neutral((0,), "this model does not let its pictures be chosen"),
    "image_size": Neutral((), "this model does not let the size of its pictures be chosen"),
    "use_proprio": Neutral((False,), "this model reads no state of a robot"),
    "proprio_dim": Neutral((), "this model reads no state of a robot"),
    "center_crop": Neutral((False,), "this model crops no pictures"),
    "unnorm_key": Neutral((), "this model has no statistics of a data set"),
    "policy_setup": Neutral(("none",), "this model knows no conventions of robots"),
    "is_lora": Neutral((False,), _NO_ADAPTERS, _LORA),
    "lora_use_rslora": Neutral((False,), _NO_ADAPTERS, _LORA),
    "lora_dropout": Neutral((0.0,), _NO_ADAPTERS, _LORA),
    "lora_init_weights": Neutral((True,), _NO_ADAPTERS, _LORA),
    **{
        f"lora_{name}": Neutral((), _NO_ADAPTERS, _LORA)
        for name in ("rank", "alpha", "path", "target_modules", "modules_to_save", "rank_pattern", "alpha_pattern")
    },
    "trainable_map": Neutral(({},), "all of this model is trained", "set actor.model.freeze_pattern"),
}
NEUTRAL: Mapping[str, Neutral] = {
    **{f"actor.model.{name}": neutral for name, neutral in _UNDER_MODEL.items()},
    **RUN,
    "reward.model.trust_remote_code": Neutral(
        (False, True), "it is a permission, and this model runs no code of a checkpoint"
    ),
    "reward.model.input_tokenizer": Neutral(
        (), "the reward model is given the conversation as text, before the policy's chat template and tokenizer",
        "set reward.model.tokenizer_path to the reward model's own tokenizer",
        same_as=("actor.tokenizer.tokenizer_model", "actor.model.model_path"),  # the policy's, which wrote the answer
    ),
    "rollout.pipeline_parallel_size": Neutral((1,), _ONE_ENGINE, _ENGINE_GPUS),
    "rollout.expert_parallel_size": Neutral((1,), _ONE_ENGINE, _ENGINE_GPUS),
    "rollout.distributed_executor_backend": Neutral(("mp",), "an engine's workers are processes of one machine"),
    "rollout.disable_log_stats": Neutral((True,), "an engine's own statistics are never printed"),
    "rollout.load_format": Neutral(
        ("auto", "dummy"), "an engine begins with random weights and is then given the policy's"
    ),
    "rollout.sglang_decode_log_interval": Neutral((), "rollout.backend sglang is not offered"),
    "rollout.vllm.quantization": Neutral(
        ("none",), "an engine is given the policy's weights after each update, in the policy's number format"
    ),
    "rollout.vllm.disable_mm_preprocessor_cache": Neutral((False,), "an engine is given texts alone"),
}  # fmt: skip
"""Key → what it may say, and why nothing else."""
_MODELS = ("actor.model", "reward.model")


def without_neutral(mapping: Mapping[str, Any]) -> tuple[dict[str, Any], list[ConfigError]]:
    """Returns the configuration without these keys, and the refusals of those with a value that asks for what is not
    there. What was given is not changed."""
    takes = {path: _takes(mapping, path) for path in _MODELS}
    found, refused = dict(mapping), []
    for key, neutral in NEUTRAL.items():
        if (value := at(mapping, key)) is MISSING:
            continue
        section, _, name = key.rpartition(".")
        if section in takes and takes[section](name):
            continue
        values = (*neutral.values, *(at(mapping, other) for other in neutral.same_as))
        if value is not None and not any(_same(value, one) for one in values):
            refused.append(_refused(key, value, neutral, at(mapping, f"{section}._target_")))
        found = without(found, key)
    return found, refused


def _refused(key: str, value: Any, neutral: Neutral, target: Any) -> ConfigError:
    only = " or ".join(map(told, (None, *neutral.values)))
    whose = "" if target is MISSING else f" of {target}"
    fix = f"leave {key} out" + (f"; {neutral.fix}" if neutral.fix else "")
    return ConfigError(f"{key}{whose} is {told(value)}, and can only be {only}: {neutral.why}", fix)


def _same(value: Any, one: Any) -> bool:
    """Whether two values are the same, with names in any case and true apart from 1."""
    if isinstance(value, str) and isinstance(one, str):
        return value.casefold() == one.casefold()
    return isinstance(value, bool) == isinstance(one, bool) and value == one


def _takes(mapping: Mapping[str, Any], path: str) -> Callable[[str], bool]:
    """Whether the model of a section takes a keyword argument itself; one that cannot be imported takes none."""
    target = at(mapping, f"{path}._target_")
    if not isinstance(target, str):
        return lambda name: False
    try:
        parameters = inspect.signature(load_target(target, f"{path}._target_")).parameters
    except (ConfigError, TypeError, ValueError):
        return lambda name: False
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    return lambda name: takes_any or name in parameters
