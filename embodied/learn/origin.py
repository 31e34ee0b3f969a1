"""Origin of a checkpoint's policy: the class or function that builds it, and the env that it was trained for.

With it a folder is enough: :func:`restore` builds the policy, gives it its weights, and binds it to the env's spec. No
simulator is needed, and no configuration of the run.

    policy, env = restore(Path("runs/NAME/checkpoints/000100"))
    told = policy.encode_instructions(["open the drawer"])
    noise = torch.from_numpy(policy.spec.noise.draw(generator(0, Stream.SERVED_NOISE, 0, 0)))[None]
    decision = policy.act({**obs, **told}, noise, Sampling(do_sample=False))
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from embodied.errors import CheckpointError, ConfigError
from embodied.learn.checkpoint.loading import load
from embodied.learn.checkpoint.metadata import Meta, read_meta
from embodied.learn.step.freeze import freeze
from embodied.lib.files import reading
from embodied.lib.spec_json import from_json, to_json
from embodied.lib.targets import load_target
from embodied.protocols import Policy
from embodied.types import EnvSpec


@dataclass(frozen=True)
class Simulator:
    """Class, arguments and interpreter with which a run's workers simulated its env."""

    target: str  # dotted path of the env's class
    kwargs: Mapping[str, Any]  # its keyword arguments, values of JSON
    python: str | None = None  # the workers' interpreter; None = that of the run


@dataclass(frozen=True)
class Origin:
    """Builder, arguments and seed of a run's policy before training, and its env."""

    target: str  # dotted path of the class or function that builds the policy
    kwargs: Mapping[str, Any]  # its keyword arguments, values of JSON
    freeze_patterns: tuple[str, ...]  # parameters that are not trained, nor saved
    seed: int  # seed of the global generators when the policy was built
    env: EnvSpec
    simulator: Simulator | None = None  # None: written by a version that did not say it

    def as_json(self) -> dict[str, Any]:
        """Converts the origin to JSON values, as ``meta.json`` holds it."""
        made = {"_target_": self.target, "kwargs": dict(self.kwargs), "freeze_patterns": list(self.freeze_patterns)}
        simulated = {} if self.simulator is None else {"simulator": asdict(self.simulator)}
        return {"policy": {**made, "seed": self.seed}, "env": to_json(self.env), **simulated}


class Restored(NamedTuple):
    """A policy that answers, and the env that it is bound to."""

    policy: Policy
    env: EnvSpec


def restore(
    path: Path, device: torch.device | str = "cpu", keys: Mapping[str, Any] | None = None
) -> Restored:  # fmt: skip
    """Build the policy of a checkpoint, with the weights that its own evaluations had, bound to its env's spec.

    Files that its keyword arguments name (``model_path``) must be where they were. The global random generators are
    left as they are.

    Args:
        keys: keyword arguments in place of the run's.

    Raises:
        CheckpointError: no checkpoint there, damaged, or written before checkpoints said where they come from.
        ConfigError: what builds the policy cannot be imported.
    """
    origin = origin_of(path, read_meta(path))
    policy = _build(path, replace(origin, kwargs={**origin.kwargs, **(keys or {})}))
    freeze(policy, origin.freeze_patterns)
    policy.to(device)  # type: ignore[attr-defined]
    policy.bind(origin.env)
    load(path, policy)
    return Restored(policy, origin.env)


def _build(path: Path, origin: Origin) -> Policy:
    """On the CPU, with the numbers that its run drew; the generators are put back."""
    try:
        make = load_target(origin.target, "_target_")
    except ConfigError as error:
        raise ConfigError(
            f"checkpoint {path}: {error.message}",
            f"make '{origin.target}' importable here, as it was where the checkpoint was written: install its package, "
            "or add its folder to PYTHONPATH",
        ) from error
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        torch.default_generator.manual_seed(origin.seed)  # torch.manual_seed would seed the GPUs as well
        random.seed(origin.seed)
        np.random.seed(origin.seed % 2**32)
        return make(**origin.kwargs)
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])


def origin_of(path: Path, meta: Meta) -> Origin:
    """Reads the origin that :meth:`Origin.as_json` has written into ``meta.json``.

    Raises:
        CheckpointError: the checkpoint does not say where it comes from.
        SpecMismatchError: the env's spec is of another version.
    """
    if not meta.origin:
        raise CheckpointError(
            f"checkpoint {path} does not say what builds its policy: it was written by an earlier version",
            "resume its run for one iteration, which writes a checkpoint that does, or name the model as its run did: "
            "python -m embodied.eval … runner.ckpt_path=…",
        )
    with reading(path / "meta.json", "it does not say what builds its policy"):
        made, simulated = meta.origin["policy"], meta.origin.get("simulator")
        simulator = None if simulated is None else Simulator(**simulated)
        target, kwargs, seed = str(made["_target_"]), dict(made["kwargs"]), int(made["seed"])
        frozen = tuple(map(str, made["freeze_patterns"]))
        spec = meta.origin["env"]
    return Origin(target, kwargs, frozen, seed, from_json(spec), simulator)


def seed_generators(seed: int) -> None:
    """Seed the three global generators, from which code without a generator of its own draws. Checkpoints keep their
    state."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
