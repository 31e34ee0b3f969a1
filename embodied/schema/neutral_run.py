"""The same as ``neutral.py`` for the run, its processes and its optimizer: what their keys may say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Neutral(NamedTuple):
    """What a key may say, beside null."""

    values: tuple[Any, ...]
    why: str
    fix: str = ""  # beside leaving it out
    same_as: tuple[str, ...] = ()  # keys whose values it may have, too


MEGATRON = "there is no Megatron backend"
_FSDP = "set actor.fsdp_config.strategy"
_BUCKETS = f"{MEGATRON}; fsdp2 sends the gradients of a layer while the one before it computes"
RUN: Mapping[str, Neutral] = {
    "actor.mcore_gpt": Neutral((False,), MEGATRON, _FSDP),
    "actor.spec_name": Neutral((), MEGATRON, _FSDP),
    "actor.fsdp_config.use_liger_kernel": Neutral(
        (False,), "Liger's kernels replace layers of networks from transformers, and the networks here are its own or "
        "are changed for packed texts", "set actor.use_torch_compile=true (OpenVLA-OFT)",
    ),
    "actor.optim.use_distributed_optimizer": Neutral((False,), f"{MEGATRON}; fsdp2 shares the optimizer out", _FSDP),
    "actor.optim.overlap_grad_reduce": Neutral((False,), _BUCKETS, _FSDP),
    "actor.optim.overlap_param_gather": Neutral((False,), _BUCKETS, _FSDP),
    "actor.optim.overlap_param_gather_with_optimizer_step": Neutral((False,), _BUCKETS, _FSDP),
    "actor.optim.optimizer_enable_pin": Neutral((False,), MEGATRON, "set actor.fsdp_config.offload_pin_memory"),
    "actor.optim.weight_decay_incr_style": Neutral(("constant",), "weight decay stays as it is over a run"),
    "actor.megatron.ddp_bucket_size": Neutral((), MEGATRON),
    "actor.megatron.ckpt_format": Neutral(("torch",), MEGATRON),
    "actor.megatron.use_dist_ckpt": Neutral((False,), MEGATRON),
    "actor.megatron.tp_comm_bootstrap_backend": Neutral(("nccl", "gloo"), MEGATRON),
    "actor.megatron.tp_comm_overlap_cfg": Neutral((), MEGATRON),
    "actor.megatron.use_hf_ckpt": Neutral((False,), MEGATRON, "set actor.model.model_path to the Hugging Face folder"),
    **{
        f"actor.megatron.ckpt.{name}": Neutral((), MEGATRON)
        for name in ("model", "model_type", "save_path", "use_gpu_num", "use_gpu_index", "process_num")
    },
    "runner.logger.tensorboard_queue_size": Neutral((10,), "the numbers of an iteration are written at once"),
}  # fmt: skip
"""Key → what it may say, and why nothing else."""
