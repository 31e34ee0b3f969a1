"""Aliases of other keys: each is null, or gives the other key its value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from embodied.errors import ConfigError
from embodied.lib.targets import arguments_of
from embodied.schema.keys.config import Config
from embodied.schema.rules.derivation import Derivation
from embodied.schema.rules.upload_checks import check_uploads

Values = Mapping[str, Any]
"""Dotted key → its value."""

_SHARDED = {"strategy": "fsdp2", "reshard_after_forward": True}
STRATEGIES: Mapping[str, Values] = {
    "full_shard": _SHARDED,
    "hybrid_shard": _SHARDED,
    "shard_grad_op": {"strategy": "fsdp2", "reshard_after_forward": False},
    "no_shard": {"strategy": "replicate"},
}
"""FSDP1's name → keys of ``actor.fsdp_config``."""
BACKEND = "actor.training_backend"
BACKENDS = {"fsdp": "fsdp2", "fsdp2": "fsdp2", "ddp": "replicate"}
"""``actor.training_backend`` → ``actor.fsdp_config.strategy``."""
OFFLOADS = ("actor.offload_optimizer", "actor.offload_reference")
"""What ``actor.enable_offload`` switches on."""
GENERATION = ("actor.fsdp_config.strategy", "fsdp")
"""Says which FSDP is meant where ``sharding_strategy`` stands beside it, and not how weights are shared out."""

BOUNDS = ("rollout.torch_compile_max_bs",)
"""Keys that ask for nothing of a model without the target."""

CANNOT = dict.fromkeys(("actor.use_torch_compile", "rollout.use_torch_compile"), ": its layers cannot be compiled")
"""Key → what it means that a model has no such key."""

SAID: Mapping[str, Callable[[Any], Values]] = {
    "runner.checkpoint.save_mode": lambda mode: {"runner.checkpoint.async_save": mode == "async"},
    "runner.checkpoint.save_interval_epochs": lambda epochs: {"runner.save_interval": epochs} if epochs else {},
    "runner.trace_verbosity": lambda level: {"rollout.trace": (False, "eval", True)[level]},
    "cluster.distributed_timeout_minutes": lambda minutes: {"cluster.timeout_s": 60 * minutes},
    "actor.fsdp_config.sharding_strategy": lambda name: {
        f"actor.fsdp_config.{key}": value for key, value in STRATEGIES[name].items()
    },
    "actor.fsdp_config.gradient_checkpointing": lambda on: {"actor.model.gradient_checkpointing": on},
    "actor.enable_offload": lambda on: dict.fromkeys(OFFLOADS, True) if on else {},
    "rollout.torch_compile_max_bs": lambda rows: {"actor.model.torch_compile_max_bs": rows},
    "rollout.use_torch_compile": lambda on: {"actor.model.torch_compile_acting": on},
    "actor.use_torch_compile": lambda on: {"actor.model.torch_compile": on},
}
"""Key → what its value says."""


def from_aliases(config: Config, command_line: Sequence[str]) -> Derivation:
    """Returns the values that alias keys give to the keys they stand for.

    Args:
        command_line: keys that stand on the command line.

    Raises:
        ConfigError: the command line has both and they differ, or the model has no such key.
    """
    found = Derivation()
    for key, says in SAID.items():
        if (value := _at(config, key)) is None:
            continue
        for target, asked in says(value).items():
            if target.startswith("actor.model.") and not _taken(config, target):
                if asked and key not in BOUNDS:
                    raise ConfigError(
                        f"{key} is {_told(value)}, and {config.actor.model.target} takes no {target}"
                        f"{CANNOT.get(key, '')}",
                        f"leave {key} out, or choose a model that has it, e.g. model=openvla_oft",
                    )
                continue
            now = _at(config, target)
            if target in command_line and now != asked and (target, now) != GENERATION:
                raise ConfigError(
                    f"{key} is {_told(value)}, which is {target} {_told(asked)}, and {target} is {_told(now)}",
                    "leave one of the two out",
                )
            found.add({target: asked}, key)
    found.add(_of_backend(config), BACKEND)
    return found


def _of_backend(config: Config) -> dict[str, Any]:
    """Returns the strategy that ``actor.training_backend`` means. Raises :class:`ConfigError` if another one is set."""
    backend, fsdp = config.actor.training_backend, config.actor.fsdp_config
    if backend is None:
        return {}
    own: str
    key, own = "actor.fsdp_config.strategy", "fsdp2" if fsdp.strategy == "fsdp" else fsdp.strategy
    if fsdp.sharding_strategy is not None:  # says what FSDP shares out, and wins over the strategy
        key, own = "actor.fsdp_config.sharding_strategy", str(STRATEGIES[fsdp.sharding_strategy]["strategy"])
    if own == BACKENDS[backend] or (key.endswith("sharding_strategy") and backend != "ddp"):
        return {}
    if own != "auto":
        said = fsdp.sharding_strategy or fsdp.strategy
        raise ConfigError(
            f"actor.training_backend is {backend}, which is strategy {BACKENDS[backend]}, and {key} is {said}",
            f"leave actor.training_backend out, or set it to {'ddp' if own == 'replicate' else 'fsdp2'}",
        )
    return {key: BACKENDS[backend]}


def check_aliases(config: Config) -> None:
    """Refuses alias keys whose values contradict the keys that they stand for. Raises :class:`ConfigError`."""
    fsdp, precision = config.actor.fsdp_config, config.actor.model.precision
    autocast = fsdp.amp_autocast
    if autocast.enabled and autocast.precision not in (None, precision):
        raise ConfigError(
            f"actor.fsdp_config.amp_autocast is enabled with {autocast.precision}, and actor.model.precision is "
            f"{precision}, which is the format that is computed in",
            f"set actor.model.precision={autocast.precision}",
        )
    if autocast.enabled and precision == "fp32":
        raise ConfigError(
            "actor.fsdp_config.amp_autocast is enabled, and actor.model.precision is fp32",
            "set actor.model.precision=bf16, or leave amp_autocast out",
        )
    if fsdp.sharding_strategy == "hybrid_shard" and fsdp.fsdp_size < 0:
        raise ConfigError(
            "actor.fsdp_config.sharding_strategy is hybrid_shard, and fsdp_size -1: how many processes share one copy?",
            "set actor.fsdp_config.fsdp_size to the processes of one machine",
        )
    if config.runner.peak_tflops is not None and not config.actor.calculate_flops:
        raise ConfigError(
            "runner.peak_tflops is set to compare an update's operations with it, and actor.calculate_flops is false",
            "set actor.calculate_flops=true, or leave runner.peak_tflops out",
        )
    check_uploads(config.runner.checkpoint)
    if config.runner.checkpoint.max_keep == 0:
        raise ConfigError("runner.checkpoint.max_keep is 0", "set it to 1 or more, or to -1 to keep all checkpoints")
    for name in ("save_contents", "load_contents"):
        if "model" not in getattr(config.runner.checkpoint, name):
            raise ConfigError(
                f"runner.checkpoint.{name} has no model", f"add it: runner.checkpoint.{name}=[model,optimizer,extra]"
            )
    sched = config.actor.lr_sched
    if sched.lr_decay_style != "wsd" and sched.lr_wsd_decay_style != "exponential":
        raise ConfigError(
            f"actor.lr_sched.lr_wsd_decay_style is set, and lr_decay_style is {sched.lr_decay_style}",
            "set actor.lr_sched.lr_decay_style=wsd, or leave lr_wsd_decay_style out",
        )
    if sched.lr_decay_style == "wsd" and sched.lr_wsd_decay_iters is None and sched.lr_decay_fraction is None:
        raise ConfigError(
            "actor.lr_sched.lr_decay_style is wsd, and nothing says how long the rates fall",
            "set actor.lr_sched.lr_wsd_decay_iters, or lr_decay_fraction",
        )
    if sched.lr_decay_style != "wsd" and sched.lr_wsd_decay_iters is not None:
        raise ConfigError(
            f"actor.lr_sched.lr_wsd_decay_iters is set, and lr_decay_style is {sched.lr_decay_style}",
            "set actor.lr_sched.lr_decay_style=wsd, or leave lr_wsd_decay_iters out",
        )


def _at(config: Config, key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        extra = getattr(found, "model_extra", None) or {}
        found = extra[part] if part in extra else getattr(found, part, None)
    return found


def _taken(config: Config, key: str) -> bool:
    model = config.actor.model
    if key.rpartition(".")[2] in (model.model_extra or {}):
        return True
    return key.rpartition(".")[2] in arguments_of(model.target, "actor.model._target_")


def _told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
