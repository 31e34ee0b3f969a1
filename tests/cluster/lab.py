"""Ray nodes on this machine, each with a network, a PID and a mount namespace of its own: a machine that has no other.

    root's namespace        hub: bridge ─┬─ a 198.18.0.1 (head)     processes of a node see its own /dev/shm,
                                         ├─ b 198.18.0.2            Ray folder and process numbers; the disk
                                         └─ c 198.18.0.3            is shared, but for what is mounted over it

Addresses are of 198.18.0.0/15 (RFC 2544, benchmarks) and exist in these namespaces alone. Two raylets that share
/dev/shm and Ray's folder time out when they start together.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType
from typing import Any

import pytest
from environments import python_with

RAY = "ray[default]>=2.50"
ROOT = Path(__file__).resolve().parents[2]
HEAD = "198.18.0.1:6379"
READY_S = 240.0
LEFT_S = 3600.0  # by which a node's first process outlives its raylet, longer than all tests take on a busy machine


def interpreter(request: pytest.FixtureRequest) -> str:
    """Returns a Python with Ray beside this environment's packages. Skips the test where there cannot be one, or where
    machines cannot be made of namespaces."""
    if (reason := why_not()) is not None:
        pytest.skip(f"Ray nodes in namespaces of their own: {reason}")
    if (given := os.environ.get("EMBODIED_TEST_RAY")) is not None:
        return given
    return python_with([RAY], request.config.cache.mkdir("ray") / "env", shares=True)


def why_not() -> str | None:
    if os.geteuid() != 0:
        return "only root makes them"
    for program in ("ip", "unshare", "nsenter", "mount"):
        if shutil.which(program) is None:
            return f"{program} is not installed (iproute2, util-linux)"
    trial = subprocess.run(
        ["unshare", "--net", "--mount", "ip", "link", "add", "eb", "type", "bridge"], capture_output=True, check=False
    )
    return None if trial.returncode == 0 else f"the kernel refuses them: {trial.stderr.decode().strip()}"


def wait_for(what: Callable[[], Any], seconds: float = READY_S) -> Any:
    until = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < until, f"not within {seconds:g} s: {what}"
        time.sleep(0.2)
    return found


class Lab:
    """Nodes and their network, as a context. The first node that is started is the head of the Ray cluster."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.bin = Path(python).parent
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._ray = Path(mkdtemp(prefix="r", dir="/tmp"))  # paths of Ray's sockets must be short
        self._spaces: list[str] = []
        self._hub = self._make_space("h")

    def __enter__(self) -> Lab:
        ip("-n", self._hub, "link", "add", "hub", "type", "bridge")
        ip("-n", self._hub, "link", "set", "hub", "up")
        return self

    def __exit__(self, *error: object) -> None:
        for name in self.nodes:
            self.cut_power(name)
        for space in self._spaces:
            ip("netns", "del", space)
        shutil.rmtree(self._ray, ignore_errors=True)

    def _make_space(self, name: str) -> str:
        """Makes a network namespace, anew if there was one of the name."""
        space = f"e{name}{os.getpid()}"
        if space in self._spaces:
            ip("netns", "del", space)
            self._spaces.remove(space)
        ip("netns", "add", space)
        self._spaces.append(space)
        return space

    def machine(self, name: str, address: int) -> None:
        """Starts a machine without Ray, with a folder for Ray of its own at the usual place."""
        space = self._connect(name, address)
        self.nodes[name] = self._started(space, ["true"], "mkdir -p /tmp/ray; mount -t tmpfs none /tmp/ray", name, {})
        self.first_process(name)

    def start(
        self, name: str, address: int, cpus: int = 2, before: str = "true", env: Mapping[str, str] | None = None,
        gpus: int = 0,
    ) -> None:  # fmt: skip
        """Starts a node with the address 198.18.0.``address``, and waits until its cluster counts it.

        Args:
            gpus: that Ray takes it to have. It shows them by ``CUDA_VISIBLE_DEVICES``.
            before: shell command in its namespaces before Ray starts there.
        """
        head = not any(process.poll() is None for process in self.nodes.values())
        space = self._connect(name, address)
        command = self._ray_start(name, address, cpus, gpus, head)
        self.nodes[name] = self._started(space, command, before, name, env or {})
        ready = f"import ray; ray.init('auto', log_to_driver=False); assert {len(self.running())} == " + (
            "sum(node['Alive'] for node in ray.nodes())"
        )
        wait_for(lambda: self.run(self.running()[0], [self.python, "-c", ready]).returncode == 0)

    def _connect(self, name: str, address: int) -> str:
        """Makes the namespace of a node with its link to the hub."""
        space = self._make_space(name)
        ip("-n", space, "link", "add", "e0", "type", "veth", "peer", "name", name, "netns", self._hub)
        ip("-n", self._hub, "link", "set", "dev", name, "master", "hub", "up")
        ip("-n", space, "addr", "add", f"198.18.0.{address}/24", "dev", "e0")
        ip("-n", space, "link", "set", "e0", "up")
        ip("-n", space, "link", "set", "lo", "up")
        ip("-n", space, "route", "add", "default", "dev", "e0")  # by it a machine knows its own address
        return space

    def keep(self, name: str, address: int, **how: Any) -> None:
        """Starts a node unless it is there. With the head all nodes go: they are nothing without it."""
        head = next(iter(self.nodes), None)
        if head is not None and not self._alive(head):
            for other in self.nodes:
                self.cut_power(other)
            self.nodes.clear()
        if not (name in self.nodes and self._alive(name)):
            self.start(name, address, **how)

    def _alive(self, name: str) -> bool:
        """Returns whether the node runs, with Ray on it."""
        return self.nodes[name].poll() is None and bool(self.pids(name, "raylet/raylet"))

    def _ray_start(self, name: str, address: int, cpus: int, gpus: int, head: bool) -> list[str]:
        where = ["--head", "--port=6379", "--include-dashboard=false"] if head else [f"--address={HEAD}"]
        return [
            str(self.bin / "ray"), "start", *where, f"--node-ip-address=198.18.0.{address}",
            f"--node-name={name}", f"--num-cpus={cpus}", f"--num-gpus={gpus}", "--object-store-memory=100000000",
            "--disable-usage-stats", *([f"--temp-dir={self._ray}"] if head else []),
        ]  # fmt: skip

    def _started(
        self, space: str, command: list[str], before: str, name: str, env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """The first process of a node outlives its raylet, as that of a machine does."""
        mounts = f"mount -t tmpfs none /dev/shm; mount -t tmpfs none {self._ray}; {before}"
        again = f" || {{ ray stop --force; {shlex.join(command)}; }}"  # Ray gives a raylet 30 s to start
        script = f"{mounts}; {shlex.join(command)}{2 * again}; sleep {LEFT_S:g}"
        words = [
            "ip", "netns", "exec", space, "nice", "-n", "10", "unshare", "--pid", "--mount", "--fork", "--kill-child",
            "--mount-proc", "sh", "-c", script,
        ]  # fmt: skip
        with (self.folder / f"{name}.node.log").open("wb") as log:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(env),
                start_new_session=True,
            )

    def environment(self, env: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])
        path = os.pathsep.join([str(self.bin), os.environ["PATH"]])
        patient = {"RAY_raylet_start_wait_time_s": f"{READY_S:g}"}  # 30 s are too few on a busy machine
        return {**os.environ, "PATH": path, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **patient, **env}

    def running(self) -> list[str]:
        return [name for name, process in self.nodes.items() if process.poll() is None]

    def first_process(self, name: str) -> int:
        """Pid, outside of its namespace, of a node's first process."""
        pid = self.nodes[name].pid
        children = wait_for(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split())
        return int(children[0])

    def on(self, name: str, command: Sequence[str]) -> list[str]:
        """Returns the command line that runs ``command`` on a node."""
        first = self.first_process(name)
        return ["nsenter", f"--wd={self.folder}", "-t", str(first), "-m", "-n", "-p", "nice", "-n", "10", *command]

    def popen(self, name: str, command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.on(name, command), env=self.environment(how.pop("env", {})), **how)

    def run(self, name: str, command: Sequence[str], timeout_s: float = READY_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.on(name, command), env=self.environment(), capture_output=True, text=True, encoding="utf-8",
            check=False, timeout=timeout_s,
        )  # fmt: skip

    def pids(self, name: str, word: str) -> list[int]:
        """Pids on this machine of a node's processes that have ``word`` in their command line."""
        own, found = os.stat(f"/proc/{self.first_process(name)}/ns/pid").st_ino, []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if os.stat(process / "ns/pid").st_ino == own and word in (process / "cmdline").read_text("utf-8"):
                    found.append(int(process.name))
            except OSError:
                continue
        return sorted(found)

    def cut_power(self, name: str) -> None:
        """Ends a node with all that is in it at once."""
        process = self.nodes[name]
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, stdout=sys.stderr)
