"""The folder of one run: makes or reopens it, locks it, and refuses one that holds a run of another configuration.

runs/NAME/  config.yaml  origins.json  metrics.jsonl  tensorboard/  checkpoints/000004/  eval/000004.json
            logs/worker-00.log  starts.jsonl  costs.json  report.html
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from embodied.errors import RunFolderError
from embodied.lib.targets import arguments_of
from embodied.lib.whole import write_whole
from embodied.schema import ProtocolConfig, defaults

MAY_CHANGE = (
    "runner.max_epochs", "runner.save_interval", "runner.save_interval_s", "runner.val_check_interval",
    "runner.resume_dir", "runner.dry_run", "runner.device_memory_gib", "runner.profiler", "runner.trace_verbosity",
    "actor.group_name", "runner.max_bad_updates", "runner.device", "runner.num_threads", "runner.output_dir",
    "runner.logger",
    "runner.checkpoint", "runner.stop_timeout_s", "runner.val_before_train", "env.eval", "env.num_workers",
    "env.init_timeout_s", "env.reset_timeout_s", "env.step_timeout_s", "env.max_worker_restarts", "env.python",
    "env.start_method", "runner.selftest",
    "env.pin_workers", "env.render_gpus", "env.channel", "env.train.video_cfg", "rollout", "cluster",
    "actor.channel", "actor.fsdp_config", "actor.training_backend", "actor.model.context_parallel_size",
    "actor.num_threads", "runner.max_steps", "reward.num_workers", "data.num_workers", "data.enable_dataset_cache",
    "env.train.enable_dataset_cache",
    "data.val_rollout_batch_size", "protocol.name", "protocol.source", "protocol.env", "protocol.sets",
    "protocol.of_model", "data.validation_shuffle", "data.filter_overlong_prompts_workers",
    "env.train.token_limit.workers", "algorithm.rollout_batch_size_per_gpu", "algorithm.val_rollout_batch_size_per_gpu",
    "actor.model.trust_remote_code", "actor.model.tokenizer_trust_remote_code", "actor.tokenizer.trust_remote_code",
    "reward.model.trust_remote_code", "reward.model.strategy", "reward.model.wrap_policy",
    "actor.tokenizer.padding_side", "actor.model.padding_side",
    "actor.calculate_flops", "algorithm.calculate_noise_scale", "algorithm.replay.path",
    *(f"actor.model.{of}{key}" for of in ("", "base.") for key in (
        "connections", "timeout_s", "connect_s", "reconnect_s", "token_file", "ca_file",
    )),
)  # fmt: skip
"""Keys whose values a resumed run may change: they change no number of the training."""

MAY_MOVE = ("actor.model.base.url",)
"""Where a policy is that a checkpoint knows by its answers. Without one, another address may be another policy."""

FIRST, LOGS = "first", "logs"
"""Folders in it of the run that came first (``runner.first``), and of what its processes print."""

LOCK = ".lock"
"""File in it that the run locks as long as it goes on."""

PROBED_S = 0.2
"""Longest that :func:`is_open` keeps a run from its lock: it has it for microseconds."""

RESULTS = ("metrics.jsonl", "checkpoints", "eval", "meta")
"""Results that bind a folder to its configuration."""


class RunFolder:
    """An open run folder. ``close`` releases its lock.

    Raises (from :meth:`open`):
        RunFolderError: cannot be written, in use by another process, or of another configuration.
    """

    def __init__(self, path: Path, lock: IO[str] | None, earlier: Mapping[str, Any] | None = None) -> None:
        self.path, self._lock = path, lock
        self.earlier = earlier  # configuration of the run whose results it has; None = it has none

    @classmethod
    def look(cls, path: Path, resolved: Mapping[str, Any]) -> RunFolder:
        """Checks a run folder as :meth:`open` does, without making, locking or writing anything."""
        check_writable(path)
        return cls(path, None, _check_same(path, resolved) if path.is_dir() else None)

    @classmethod
    def open(cls, path: Path, resolved: Mapping[str, Any]) -> RunFolder:
        """Makes or reopens ``path`` for the configuration ``resolved``, and saves it there."""
        check_writable(path)
        path.mkdir(parents=True, exist_ok=True)
        lock = _lock(path)
        try:
            earlier = _check_same(path, resolved)
        except BaseException:
            lock.close()
            raise
        write_whole(path / "config.yaml", yaml.safe_dump(dict(resolved), sort_keys=False, allow_unicode=True))
        return cls(path, lock, earlier)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()


def is_open(lock: Path) -> bool:
    """Returns whether a run holds the lock file, also a run of another machine that shares the disk."""
    try:
        with lock.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no file, or a disk without locks
        return False
    return False


def nearest_folder(path: Path) -> Path:
    """Returns the first of a path and the folders above it that is there (a file, if the path leads through one)."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())


def check_writable(path: Path, what: str = "the run's folder", key: str = "runner.output_dir") -> None:
    """Raises :class:`RunFolderError` unless ``path`` is, or can become, a folder that can be written; ``what`` and
    ``key`` name it in the error.

    Args:
        what: it is, for the message.
        key: that sets it.
    """
    existing = nearest_folder(path)
    if not existing.is_dir():
        raise RunFolderError(
            f"{existing} is a file, so {what} {path} cannot be there",
            f"set {key}" + (" or runner.experiment_name" if key == "runner.output_dir" else " to another folder"),
        )
    probe = existing / f".embodied-write-test-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise RunFolderError(
            f"cannot write to {existing}, for {what} {path}: {error.strerror}",
            f"set {key} to a folder that you may write to, or free space on its disk",
        ) from error


def _lock(path: Path) -> IO[str]:
    lock, until = (path / LOCK).open("a+", encoding="utf-8"), time.monotonic() + PROBED_S
    while not (had := _try(lock)) and time.monotonic() < until:
        time.sleep(PROBED_S / 20)
    if not had:
        lock.seek(0)
        pid = lock.read().strip() or "?"
        lock.close()
        raise RunFolderError(
            f"another process (pid {pid}) is running in {path}",
            "wait for it or end it, or set runner.experiment_name to another name",
        )
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _try(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _check_same(path: Path, resolved: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the configuration of the results in a folder; None if there are none."""
    saved = path / "config.yaml"
    if not saved.is_file():
        others = sorted(p.name for p in path.iterdir() if not p.name.startswith(".") and p.name not in (FIRST, LOGS))
        if others:
            raise RunFolderError(
                f"{path} is not empty and is no run folder (it holds {', '.join(others[:5])})",
                "set runner.experiment_name or runner.output_dir to another folder",
            )
        return None
    if not any((path / name).exists() for name in RESULTS):
        return None  # There is no result yet, so nothing can be lost or mixed up.
    try:
        before = yaml.safe_load(saved.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise RunFolderError(
            f"{saved} is damaged: {error}", "move that folder away, or set runner.experiment_name to another name"
        ) from error
    if "protocol" in resolved:  # a folder of demonstrations says of it what concerns them
        before.setdefault("protocol", defaults(ProtocolConfig))  # runs of before there were protocols
    known = resolved.get("runner", {}).get("ckpt_path") or any(path.glob("checkpoints/[0-9]*"))
    may_change = (*MAY_CHANGE, *MAY_MOVE) if known else MAY_CHANGE
    differ = [d for d in differences(before, resolved) if not d[0].startswith(may_change)]
    differ = [(key, old, new) for key, old, new in differ if old != _ABSENT or new != _default(resolved, key)]
    if differ:
        lines = "\n".join(f"  {key}: {old!r} there, {new!r} now" for key, old, new in differ[:12])
        raise RunFolderError(
            f"{path} holds a run of another configuration:\n{lines}",
            "set runner.experiment_name to a new name, or give that run's values to go on with it",
        )
    return before


_ABSENT = "(not set)"


def _default(resolved: Mapping[str, Any], key: str) -> Any:
    """Returns what a key is where nobody sets it, as it was in runs of a version that did not have the key."""
    usual, parents = defaults(), key.split(".")
    name = parents.pop()
    for parent in parents:
        usual, resolved = usual.get(parent) or {}, resolved[parent]
    if name in usual or "_target_" not in resolved:
        return usual.get(name, _ABSENT)
    named = arguments_of(resolved["_target_"], f"{'.'.join(parents)}._target_").named
    return named[name].default if name in named else _ABSENT


def differences(old: Any, new: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields ``(dotted key, old, new)`` for each value that differs between two configurations."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(k for k in new if k not in old)]:
            yield from differences(old.get(key, _ABSENT), new.get(key, _ABSENT), f"{prefix}{key}.")
    elif old != new:
        yield prefix.rstrip("."), old, new
