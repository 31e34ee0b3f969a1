"""Ends workers. That of a robot is not ended before the robot was stopped (:mod:`embodied.runtime.pool.safe_stop`)."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Collection

from embodied.errors import SafeStopError, WorkerError
from embodied.runtime.pool.process import WorkerProcess


def kill(worker: WorkerProcess) -> list[SafeStopError]:
    """Kills an env worker, after its robot was stopped. Returns the stop's error, so that other workers are ended
    before it is raised."""
    try:
        worker.kill()
    except SafeStopError as error:
        return [error]
    return []


def await_end(worker: WorkerProcess, deadline: float) -> list[SafeStopError]:
    """Waits for the end of an env worker that was told to end, and kills it at the monotonic time ``deadline``. A robot
    is stopped unless its worker has ended in order. Returns as :func:`kill` does."""
    try:
        code = worker.process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        failed = kill(worker)
        worker.process.wait()
        return failed
    return kill(worker) if code and worker.guardian is not None else []


def end(workers: Collection[WorkerProcess]) -> list[SafeStopError]:
    """Ends env workers and waits for them. Those that have not started yet have nothing to close and are killed, like
    those that do not end within 5 s. Returns as :func:`kill` does."""
    failed: list[SafeStopError] = []
    for worker in workers:
        if worker.facts is None or worker.overdue:
            failed += kill(worker)
        worker.socket.close()
    deadline = time.monotonic() + 5.0
    for worker in workers:
        failed += await_end(worker, deadline)
        worker.release()
    return failed


def press(worker: WorkerProcess) -> None:
    """Asks an env worker whose deadline has passed for its stack, or kills it. Raises if its robot cannot
    be stopped."""
    try:
        worker.press()
    except SafeStopError as failed:
        raise _because(failed, f"env worker {worker.index} did not answer in time while {worker.overdue}") from failed


def stop_robot_of(worker: WorkerProcess, error: Exception) -> None:
    """Stop the robot of a worker that has ended with ``error``, unless that was done."""
    try:
        worker.stop_robot()
    except SafeStopError as failed:
        raise _because(failed, str(getattr(error, "message", error))) from error


def _because(failed: SafeStopError, why: str) -> SafeStopError:
    return SafeStopError(f"{failed.message}\nIt was to be stopped because {why}", failed.remedy)


def not_replaced(error: Exception) -> Exception:
    """Makes the error that ends a run whose robot was stopped: its worker is not replaced."""
    if not isinstance(error, WorkerError):
        return error
    remedy = (
        "the robot was stopped (safe_stop), and its worker is not replaced by itself (EnvSpec.retry_safe is False). "
        f"See what happened; the same command goes on from what was saved.\n  {error.remedy}"
    )
    return type(error)(error.message, remedy, error.detail)
