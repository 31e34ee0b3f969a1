"""Adds up the memory that a run takes at its fullest moment: on the policy's device, and on the machine.

The one place that adds. What a policy and its passes take is counted elsewhere (:mod:`embodied.run.memory.counting`, or
from the headers of files). It is needed by ``runner.dry_run``, by the doctor, and before a run by the check of a large
checkpoint (:func:`large`): counting passes takes too long for every run. Needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied import schema
from embodied.parallel.group import EVERY_ROLE, Group, Role
from embodied.run.build.given import Sides
from embodied.run.build.workers.worker_memory import UNKNOWN, WorkerMemory, memories_of
from embodied.run.memory.reward_memory import BYTES, RewardMemory, of_reward_model
from embodied.weights.header import read_header
from embodied.weights.listing import counted_files

QUANTIZED: Mapping[Any, float] = {8: 1, 4: 0.5 + 1 / 64 + 4 / 64 / 256}  # a weight, with its part of the scales
CONTEXT = 3 * 2**28  # bytes of a GPU that CUDA and its libraries take; not measured, as there was no GPU
LARGE = 2**31  # bytes of weights in files from which on a policy is not built to be counted


@dataclass(frozen=True)
class Weights:
    """Bytes of a policy's weights, and of those that are trained."""

    all: int
    trained: int | None  # None: not known without building it
    value_head: int = 0  # bytes of the value head, a part of ``trained``

    @property
    def optimizer(self) -> int:
        """Bytes of Adam's two moments."""
        return 2 * (self.trained or 0)


@dataclass(frozen=True)
class Pass:
    """Bytes that a forward and backward pass of a micro-batch adds, beside gradients."""

    saved: int  # live between forward and backward
    most: int  # peak, ``saved`` included
    logits: int = 0  # part of the peak: tensors over all choices of an element

    @property
    def temporary(self) -> int:
        """Bytes beside the saved ones that the pass needs at its fullest."""
        return max(self.most - self.saved, 0)


@dataclass(frozen=True)
class Passes:
    """Bytes counted for the forward and backward passes of a policy."""

    act: int  # bytes that a call of the policy adds, with the rows of rollout.policy_batch
    update: Pass | None  # None: nothing is trained, or it could not be counted
    checkpointed: bool | None = None  # True: ``update`` recomputes activations; None: the policy has no such switch
    otherwise: Pass | None = None  # the same pass with the switch in its other position
    graphs: int = 0  # bytes that CUDA graphs of a call of the policy keep beside it; 0 = there are none


@dataclass(frozen=True)
class Gathered:
    """Bytes of sharded weights and gradients that a process holds at times, beside its own shards (see
    :mod:`.shards`)."""

    act: int = 0  # weights that are gathered while the policy acts
    update: int = 0  # weights that are gathered at the fullest moment of a pass
    gradients: int = 0  # gradients that are not summed yet, with the buffer in which they are sent
    summed: int = 0  # the buffer in which replicas sum all gradients
    on_host: bool = False  # the process's own parts lie in host memory, where the policy is on a GPU


NOTHING = Gathered()
OF_POLICY = ("weights", "trained weights", "value head")
"""Parts that are the policy itself."""


@dataclass(frozen=True)
class Footprint:
    """Bytes of each part of a process at the fullest moment of a run, on device and host."""

    moment: str
    device: Mapping[str, int]  # tensors on the policy's device
    host: Mapping[str, int]  # host memory of the policy's process, without ``device``
    pools: tuple[WorkerMemory, ...]  # env workers
    unknown: tuple[str, ...] = ()  # names of parts that are not counted

    @property
    def on_device(self) -> int:
        """Bytes of device memory."""
        return sum(self.device.values())

    @property
    def on_host(self) -> int:
        """Bytes of host memory that the policy's process takes, without tensors on the device."""
        return sum(self.host.values())

    @property
    def workers(self) -> int:
        """Bytes of all env workers."""
        return sum(pool.all for pool in self.pools)


def footprint(
    config: schema.Config, sides: Sides, processes: Group, weights: Weights, slab: int | None,
    passes: Passes | None = None, process: int = 0, allocator: int = 0, optimizer_steps: int | None = None,
    on_gpu: bool = False, gathered: Gathered = NOTHING, engine: int | None = None,
    roles: frozenset[Role] = EVERY_ROLE, received: int = 0,
) -> Footprint:  # fmt: skip
    """Adds up the memory that a process of a run takes at its fullest moment.

    Args:
        slab: bytes; None = not known.
        passes: None = not counted.
        process: bytes of the process without tensors: Python, torch, libraries.
        allocator: bytes that the C library keeps between tensors while passes are made.
        optimizer_steps: of the whole run; None = many.
        on_gpu: the policy is on a GPU; copies of what is saved are then on the machine.
        weights: of this process, where several share the policy.
        gathered: what it holds besides.
        engine: bytes of the GPU that an inference engine takes while it generates; None = there is no engine.
        roles: of the process. One that does not act has no slab (``slab`` 0), and one that does not train no optimizer.
        received: bytes of records that other processes collect and this one trains on, at most.
    """
    learns, acts = not config.runner.only_eval and "train" in roles, "rollout" in roles
    parts = _lasting(config, weights) if learns else _acting(weights, roles)
    parts |= _ahead(config, weights, received)
    more = _moments(config, weights, passes, learns, optimizer_steps, on_gpu)
    _add_gathered(more, gathered)
    _add_engine(more, engine if on_gpu else None, config.rollout.enable_offload)
    if not acts:
        more.pop("act")
    judges = acts and _judges(config)
    judge = of_reward_model(config.reward.model, processes.of("rollout").size) if judges else None
    if judge is not None:
        _add_reward_model(parts, more, judge, on_gpu)
    copies = {name: found.pop("copy of what is saved", 0) for name, found in more.items()}
    resting = _resting(config, parts) if on_gpu else {}
    apart = _apart(parts, more, weights) if on_gpu and gathered.on_host else {}
    early, rests = _before_first_step(optimizer_steps), _moments_of_rest(config)
    there = {name: _without(parts, resting if name in rests else (), name in early) for name in more}
    copied = dict.fromkeys(more, 0) if on_gpu else copies
    fullest = max(more, key=lambda name: sum((*there[name].values(), *more[name].values(), copied[name])))
    host = {"process": process, "slab": slab or 0, "records of others": received, **resting, **apart}
    if engine is not None and on_gpu and config.rollout.enable_offload:
        host["weights of the engine that sleeps"] = weights.all
    if learns and (together := schema.context_parallel_size(config)) > 1:
        host["records of the team"] = together * (slab or 0)
    if judge is not None and judge.waits and on_gpu:
        host["reward model"] = judge.held
    host |= {"copy of what is saved": max(copies.values()) if on_gpu else copies[fullest], "allocator": allocator}
    device = {**there[fullest], **more[fullest], **({"CUDA": CONTEXT} if on_gpu else {})}
    pools = tuple(memories_of(config, sides, processes)) if acts else ()
    lacks = {
        "adapters and their optimizer state": weights.trained is None,
        "slab": slab is None,
        "activations": passes is None or (learns and not passes.update),
        "passes of the reward model" if judge else "the reward model": judges,
        "the engine's process": engine is not None and not on_gpu,
        "what CUDA keeps of its graphs beside tensors": on_gpu and passes is not None and passes.graphs > 0,
        "simulators": UNKNOWN in (pool.says for pool in pools),
    }
    return Footprint(fullest, device, host, pools, tuple(filter(lacks.get, lacks)))


def _ahead(config: schema.Config, weights: Weights, received: int) -> dict[str, int]:
    """Counts the weights on their way to processes that only collect, of a process that trains on what they send."""
    return {"weights that go ahead": weights.trained or 0} if received and config.algorithm.max_staleness else {}


def _judges(config: schema.Config) -> bool:
    """Whether a reward model scores the answers of a run."""
    return config.reward.use_reward_model and not (config.runner.only_eval or config.runner.task.supervised)


def _acting(weights: Weights, roles: frozenset[Role]) -> dict[str, int]:
    """Bytes that a process that does not learn holds at all times."""
    arriving = {} if "train" in roles else {"weights that arrive": weights.trained or 0}
    return {"weights": weights.all, **arriving}


def _lasting(config: schema.Config, weights: Weights) -> dict[str, int]:
    """Bytes that a learner holds at all times. Gradients are not among them: they last from first pass to step."""
    trained = weights.trained or 0
    parts = {"weights": weights.all - trained, "trained weights": trained - weights.value_head}
    parts |= {"value head": weights.value_head, "optimizer": weights.optimizer}
    parts["average"] = trained if config.actor.optim.ema_decay is not None else 0
    parts["reference"] = trained if config.algorithm.kl_beta else 0
    parts["weights that act"] = trained * sets_that_act(config)
    return parts


def sets_that_act(config: schema.Config) -> int:
    """Counts the copies of the trained weights that the policies that act in training have of their own."""
    if config.runner.only_eval or config.runner.task.supervised:
        return 0
    return max(config.algorithm.max_staleness, int(config.runner.weight_sync_interval > 1))


def _resting(config: schema.Config, parts: Mapping[str, int]) -> dict[str, int]:
    """Parts of a GPU that wait in host memory while the policy, or an engine, acts. Their host memory is kept for the
    next time."""
    wanted = {"optimizer": config.actor.offload_optimizer, "reference": config.actor.offload_reference}
    wanted |= dict.fromkeys(OF_POLICY, weights_rest(config))
    return {part: parts[part] for part, on in wanted.items() if on and parts.get(part)}


def _moments_of_rest(config: schema.Config) -> tuple[str, ...]:
    """Moments in which parts wait in host memory. With a lag a reward model scores beside an update."""
    return ("act",) if config.algorithm.max_staleness else ("act", "score")


def weights_rest(config: schema.Config) -> bool:
    """Returns whether the policy's weights wait in host memory while an engine acts."""
    return config.actor.offload_weight and config.rollout.backend != "native"


def _without(parts: Mapping[str, int], resting: Container[str], early: bool) -> dict[str, int]:
    """Returns the lasting parts on the GPU: without resting ones, and without the optimizer before its first step."""
    return {name: size for name, size in parts.items() if name not in resting and not (early and name == "optimizer")}


def _before_first_step(optimizer_steps: int | None) -> tuple[str, ...]:
    """Moments that a run only has before its optimizer holds anything."""
    return ("update", "act", "score") if optimizer_steps == 1 else ()


def _moments(
    config: schema.Config, weights: Weights, passes: Passes | None, learns: bool, optimizer_steps: int | None,
    on_gpu: bool,
) -> dict[str, dict[str, int]]:  # fmt: skip
    """Returns the bytes that each moment of a run adds to the lasting ones."""
    found = {"act": {"activations": passes.act if passes else 0}}
    found["act"]["CUDA graphs"] = passes.graphs if passes and on_gpu else 0
    if not learns:  # else the weights are on the device in an update, which has all else besides
        return found | ({"handing over weights": {}} if weights_rest(config) else {})
    runner, trained = config.runner, weights.trained or 0
    one = trained + weights.optimizer + (trained if config.actor.optim.ema_decay is not None else 0)
    one += trained * sets_that_act(config)
    copy = one if runner.checkpoint.async_save else 0
    kept = copy if runner.max_epochs > 1 and runner.save_interval != 1 else 0  # copy for a stop between two saves
    update = passes.update if passes else None
    saved, logits = (update.saved, min(update.logits, update.most)) if update else (0, 0)
    found["update"] = {"activations": max(saved - logits, 0), "logits": logits, "copy of what is saved": kept}
    found["update"]["temporary"] = update.most - found["update"]["activations"] - logits if update else 0
    found["update"]["gradients"] = trained
    if config.algorithm.max_staleness and sets_that_act(config) and passes:
        found["update"]["a call of the policy beside it"] = passes.act
    found["act"]["copy of what is saved"] = kept
    lasts = not config.actor.offload_grad  # gradients stay until the next update begins
    found["act"]["gradients"] = trained if lasts else 0
    # On a GPU Adam steps over all tensors at once, and its square roots take as much as the gradients.
    found["step"] = {"gradients": trained, "temporary": trained if on_gpu else 0, "copy of what is saved": kept}
    # A copy is written while the run goes on, into the next update's first passes if it takes as long.
    found["save"] = {"gradients": trained if copy or lasts else 0, "copy of what is saved": copy}
    return found


def _add_gathered(more: dict[str, dict[str, int]], gathered: Gathered) -> None:
    more["act"]["gathered weights"] = gathered.act
    if "update" in more:  # the pass was counted with temporary gradients of its own
        left = max(0, more["update"]["temporary"] - gathered.gradients)
        more["update"] |= {"gathered weights": gathered.update, "gradients to be summed": gathered.gradients}
        more["update"]["temporary"] = left
    if gathered.summed:
        step = more["step"]
        more["sum"] = {**step, "temporary": gathered.summed}


def _add_engine(more: dict[str, dict[str, int]], engine: int | None, sleeps: bool) -> None:
    """Adds an engine: while it generates, and else where it does not sleep."""
    if engine is not None:
        for moment, parts in more.items():
            parts["engine"] = engine if moment == "act" or not sleeps else 0


def _add_reward_model(
    parts: dict[str, int], more: dict[str, dict[str, int]], judge: RewardMemory, on_gpu: bool
) -> None:
    """Adds a reward model, and the moment in which it scores: after the policy has acted, with a lag in an update."""
    lags = "a call of the policy beside it" in more.get("update", {})
    more["score"] = {**more["update"]} if lags else {k: size for k, size in more["act"].items() if k != "activations"}
    more["score"]["gathered weights of the reward model"] = judge.gathered
    if judge.waits and on_gpu:
        more["score"]["reward model"] = judge.held
    else:
        parts["reward model"] = judge.held


def _apart(parts: dict[str, int], more: dict[str, dict[str, int]], weights: Weights) -> dict[str, int]:
    """Takes a process's own parts of what is trained away from the GPU; gives what the host has then."""
    names = ("trained weights", "value head", "optimizer", "average", "reference", "weights that act")
    found = {name: parts.pop(name) for name in names if parts.get(name)}
    for moment in more.values():
        moment.pop("gradients", None)
    return {**found, "gradients": weights.trained or 0}


def of_files(kwargs: Mapping[str, Any]) -> Weights | None:
    """Counts the bytes of a large checkpoint's weights from the headers of its files; None if there is none, or a small
    one."""
    total = sum(_bytes_of(file, kwargs) for file in counted_files(kwargs.get("model_path")))
    if total < LARGE:
        return None
    return Weights(total, None if kwargs.get("is_lora") else total)


def large(config: schema.Config, processes: Group) -> Weights | None:
    """Returns the weights of the large checkpoint that a run loads in one process. None: it is small, or several
    processes share it; the run loads none; or it is a dry run, which counts everything."""
    runner = config.runner
    if runner.dry_run or runner.answers is not None or processes.size > 1:
        return None
    return of_files(schema.target_kwargs(config.actor.model, "actor.model"))


def in_files(kwargs: Mapping[str, Any]) -> int:
    """Bytes of the weights in a checkpoint's files, which the page cache holds while they are mapped."""
    return sum(file.stat().st_size for file in counted_files(kwargs.get("model_path")))


def readable(size: int) -> str:
    """Formats bytes as text.

    >>> readable(3 * 2**29), readable(3 * 2**19)
    ('1.50 GiB', '1.5 MiB')
    """
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def _bytes_of(file: Path, kwargs: Mapping[str, Any]) -> int:
    """Bytes that the tensors of a file take in the formats of a configuration."""
    usual = BYTES.get(str(kwargs.get("precision")), 4)
    few = QUANTIZED.get(kwargs.get("quantization_bit"), usual)
    return sum(
        math.ceil(math.prod(entry.shape) * (few if _is_linear(name, entry.shape) else usual))
        for name, entry in read_header(file).items()
    )


def _is_linear(name: str, shape: Sequence[int]) -> bool:
    """Returns whether a tensor is a linear weight in a language model's layers: only these are quantised."""
    return ".layers." in f".{name}" and len(shape) == 2
