"""Writes a head as a folder that is a policy again, reads it, and compares the two (``embodied.tools.export``).

======================================  ================================================================================
base                                    in the folder
======================================  ================================================================================
none (``model=head``)                   –
``base.folder``, an export              its copy (``base/``)
``base.folder``, a checkpoint or a run  its export (``base/``); so is one that ``base._target_`` builds
``base.url``                            what identifies it. Its address is not written: whoever uses the folder names it
======================================  ================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from embodied.errors import ConfigError
from embodied.lib.targets import load_target
from embodied.protocols import Examples, Exported, Exports, HasExtraState, Policy
from embodied.types import EnvSpec

from ..shared.change import Change, change
from ..shared.exporting import check_dtype, check_plain, made_up, observations
from ..shared.files import write_json, write_weights
from .base import state_of
from .files import BASE_FOLDER, FACTS, weights_of

TOLERANCE = 1e-4  # of actions, in the env's units, and of log-probs, in nats
OF_REQUESTS = ("protocol", "num_action_chunks")
"""Arguments of a served base that say how it is asked; so does its mapping."""
WRITE = "embodied.learn.frozen.write_frozen"
OWN, AROUND = "embodied.models.head.HeadPolicy", "embodied.models.head.around_base"
USAGE = """\
# in embodied: python -m embodied.eval FOLDER
from pathlib import Path
from embodied.serving.loading import load

policy, env, _ = load(Path("FOLDER"){base})"""
SERVED = ', base="ws://HOST:PORT"'
KIND = "hf"


class Exportable(Policy, Protocol):
    """Interface of a head as its export sees it."""

    keys: Mapping[str, Any]  # that build it again; ``base`` among them if there is one

    @property
    def log_temperature(self) -> Tensor: ...
    def again(self, model_path: str, base: Any = None) -> Exportable:
        """Builds the head with the weights of a folder that was written.

        Args:
            base: stands under it.
        """
        ...


class _Base(NamedTuple):
    """What is written of a base."""

    policy: Policy  # what stands under the head that is read again
    keys: Mapping[str, Any]  # of ``model`` in ``embodied.json``
    note: str
    written: Exported | None = None  # it was exported anew


def export_head(
    policy: Exportable, env: EnvSpec, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
) -> Exported:  # fmt: skip
    """Writes the folder. See :meth:`embodied.protocols.Exports.export`.

    Raises:
        ConfigError: an option has no meaning here, the base cannot be written, or what was written decides otherwise.
    """
    check_dtype(dtype)
    check_plain(options, KIND)
    base = _base(policy, env, folder, dtype, examples, options) if "base" in policy.keys else None
    if base is None or base.written is None:
        _refuse_options(dtype, options)
    extra = policy.extra_state() if isinstance(policy, HasExtraState) else {}
    if base is not None and base.written is not None:
        extra = state_of(base.policy, env)
    module: Any = policy
    write_weights({name: tensor.cpu().contiguous() for name, tensor in weights_of(module).items()}, folder)
    write_json(folder / FACTS, {"version": 1, "extra_state": extra})
    own = {name: value for name, value in policy.keys.items() if name not in ("base", "model_path")}
    again = policy.again(str(folder), None if base is None else base.policy)
    found, real = _compared(policy, again, env, examples)
    moved = base is not None and base.written is not None and base.written.rounding != "none"
    if not moved and max(found.action_largest, found.logprob_largest) > TOLERANCE:
        raise ConfigError(
            f"the head that was written decides otherwise than the checkpoint: {found}, and at most {TOLERANCE:g} is "
            "right",
            "a base that draws its actions itself decides otherwise each time; else this is a defect of the exporter: "
            "report it",
        )
    notes = [f"read again, against the checkpoint: {found}, on {observations(found.observations, real)}"]
    model = {"_target_": OWN if base is None else AROUND, "model_path": ".", **own}
    if base is None:
        return Exported("embodied", USAGE.format(base=""), tuple(notes), model=model, measured=found.as_json())
    served = "url" in base.keys
    written = base.written
    return Exported(
        "embodied", USAGE.format(base=SERVED if served else ""),
        (base.note, *(() if written is None else written.notes), *notes), "fp32" if written is None else written.dtype,
        {**model, **({"base": dict(base.keys)} if base.keys else {})}, found.as_json(),
        "none" if written is None else written.rounding,
    )  # fmt: skip


def _base(
    head: Any, env: EnvSpec, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
) -> _Base:  # fmt: skip
    """Writes the base, or what identifies it."""
    given = {name: value for name, value in (head.keys.get("base") or {}).items() if value is not None}
    if "url" in given:
        keys = {name: given[name] for name in ("_target_", *OF_REQUESTS) if name in given}
        if (mapping := head.base.mapping) is not None:  # a file is not carried along, so its content is
            keys["mapping"] = dict(mapping.shown)
        known = ", ".join(f"{name} {value}" for name, value in head.base.weights().items() if name != "server")
        note = (
            f"it changes what a policy behind a server does ({known}), which is not in the folder: name the server by "
            "--base ws://HOST:PORT"
        )
        return _Base(head.base, {"url": None, "folder": None, **keys}, note)
    source = given.get("folder") or head.folder_of_base
    if source is None and not (isinstance(head.base, Exports) and KIND in head.base.export_formats):
        return _Base(head.base, given, f"its base is built by {given.get('_target_')}, as in the run")
    policy, written = load_target(WRITE, "_target_")(
        head.base, source, env, folder / BASE_FOLDER, dtype, examples, options
    )
    how = "a copy of" if written is None else "written from"
    note = f"the frozen base lies in {BASE_FOLDER}/, {how} {source or given.get('_target_')}"
    return _Base(policy, {}, note, written)


def _refuse_options(dtype: str, options: Mapping[str, Any]) -> None:
    """Raises ConfigError for options that nothing in the folder can keep."""
    if dtype not in ("fp32", "auto"):
        raise ConfigError(
            f"--dtype {dtype}: a head is written in fp32, and no base is written anew", "leave --dtype out"
        )
    if (size := options.get("max_shard_size")) is not None:
        raise ConfigError(
            f"--shard-size of {size} bytes: a head has one small file, and no base is written anew",
            "leave --shard-size out",
        )


def _compared(policy: Exportable, again: Any, env: EnvSpec, examples: Examples) -> tuple[Change, bool]:
    """Compares greedy decisions and their log-probs on observations, made-up ones where there are no real ones."""
    device, real = policy.log_temperature.device, examples.obs is not None
    again.to(device).eval()
    again.bind(env)
    compare = partial(change, policy, again, device=torch.device(device))
    return compare(examples if real else made_up(env)), real
