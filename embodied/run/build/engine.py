"""Makes the inference engine of a run, if ``rollout.backend`` asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from torch import nn

from embodied import schema
from embodied.errors import ConfigError
from embodied.learn.step.resting import RestingWeights
from embodied.observe.terminal.console import Console
from embodied.parallel.group import Group
from embodied.parallel.sharding import DTYPES, REPLICATE
from embodied.protocols import Policy, ServedByEngine
from embodied.run.build import engine_process
from embodied.run.build.policy import Model
from embodied.run.build.shares import folder_of_rank, slots_of
from embodied.runtime.engine.engine import Engine, EngineConfig
from embodied.runtime.engine.evidence import Evidence

MAX_LANES = 256  # texts that are generated at the same time unless rollout.policy_batch is set
MAX_GAP = 1e-3  # default of rollout.max_logprob_gap in nats, where everything has float32
MAX_GAP_ROUNDED = 0.1  # default where the engine computes, or its weights travel, with fewer bits


@contextmanager
def open_engine(
    config: schema.Config, processes: Group, model: Model, folder: Path, console: Console
) -> Iterator[Engine | None]:
    """Opens the inference engine of this process, which starts when it is first needed, until the block ends; None with
    ``rollout.backend=native``.

    Args:
        folder: of this process within the run's.

    Raises:
        ConfigError: no engine can serve the policy.
    """
    if config.rollout.backend == "native":
        yield None
        return
    served = check_policy(config.rollout, model)
    if config.runner.dry_run:
        yield None
        return
    where, offload = folder / "engine", config.actor.offload_weight
    served.engine_folder(where)
    phase = partial(console.progress, brief=True)
    assert isinstance(model.policy, nn.Module)
    weights = RestingWeights(model.policy, offload)
    if offload and model.device.type == "cpu":
        console.say("actor.offload_weight=true moves nothing on cpu: the weights lie in host memory already")
    asked = _config(config, min(slots_of(config, processes), MAX_LANES), model, served, where)
    evidence = _evidence(config.rollout, processes.of("rollout"))
    with closing(Engine(asked, model.policy, console.say, phase, weights, evidence)) as engine:
        yield engine


def _evidence(rollout: schema.RolloutConfig, processes: Group) -> Evidence:
    if rollout.validate_save_dir is None:
        return Evidence()
    folder = folder_of_rank(Path(rollout.validate_save_dir), processes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"rollout.validate_save_dir is {folder}, which cannot be made: {error}", "set it to a folder that can"
        ) from error
    return Evidence(folder, bool(rollout.validate_weight))


def check_policy(rollout: schema.RolloutConfig, model: Model) -> ServedByEngine:
    """Returns the policy as one that an inference engine can serve. Raises :class:`ConfigError` if it is none.

    Raises:
        ConfigError: it is no language model, has a value head, or is shared out over several processes.
    """
    policy, native = model.policy, "set rollout.backend=native"
    if not isinstance(policy, ServedByEngine):
        raise ConfigError(
            f"rollout.backend is {rollout.backend}, and {type(policy).__name__} is no causal language model: an engine "
            "cannot run it",
            f"{native}, or choose model=causal_lm",
        )
    if "value" in policy.spec.decision:
        raise ConfigError(
            f"rollout.backend is {rollout.backend}, and the policy has a value head: an engine gives no values",
            f"{native}, or actor.model.value_head=false",
        )
    if model.sharding.collective_passes:
        raise ConfigError(
            f"rollout.backend is {rollout.backend}, and the policy is shared out over the processes (fsdp2)",
            f"{native}, or {REPLICATE}",
        )
    return policy


def max_gap(config: schema.Config, policy: Policy) -> float:
    """Returns how far the engine's log-probs may be from the policy's own, nats."""
    assert isinstance(policy, ServedByEngine)
    whole = policy.engine_facts.dtype == "float32" and config.runner.weight_sync_dtype in (None, "fp32")
    return config.rollout.max_logprob_gap or (MAX_GAP if whole else MAX_GAP_ROUNDED)


def options(rollout: schema.RolloutConfig) -> dict[str, object]:
    """Collects the inference engine's own arguments that the configuration sets; the engine chooses the
    others itself."""
    own = rollout.vllm
    given = {
        "block_size": own.block_size,
        "max_num_batched_tokens": own.max_num_batched_tokens,
        "enable_chunked_prefill": own.enable_chunked_prefill,
        "swap_space": own.swap_space,
        "attention_backend": rollout.attention_backend,
    }
    return {name: value for name, value in given.items() if value is not None}


def _config(
    config: schema.Config, most: int, model: Model, served: ServedByEngine, folder: Path
) -> EngineConfig:  # fmt: skip
    rollout, facts, on_gpu = config.rollout, served.engine_facts, model.device.type == "cuda"
    travels = config.runner.weight_sync_dtype
    lanes = rollout.policy_batch or most
    setup = {
        "folder": str(folder.resolve()),
        "dtype": facts.dtype,
        "max_model_len": facts.max_tokens,
        "max_num_seqs": lanes,
        "enforce_eager": rollout.eager(lanes),
        "gpu_memory_utilization": rollout.gpu_memory_utilization,
        "tensor_parallel_size": rollout.tensor_parallel_size,
        "sleeps": rollout.enable_offload and on_gpu,
        "options": options(rollout),
    }
    return EngineConfig(
        command=engine_process.command(rollout),
        setup=setup,
        environment=engine_process.environment(rollout, model.device.index if on_gpu else None),
        logs=folder.parent / "logs",
        name=rollout.group_name,
        init_timeout_s=rollout.init_timeout_s,
        answer_timeout_s=rollout.answer_timeout_s,
        max_restarts=rollout.max_engine_restarts,
        remedy=engine_process.remedy(rollout),
        weights_dtype=None if travels is None else DTYPES[travels],
    )
