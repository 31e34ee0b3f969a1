"""Stands for Ray where it is not installed: nodes that a test makes up, and actors that are objects of this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


class RayError(Exception):
    """``cause``: what the actor has raised."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self.cause = cause


class Call:
    """A call of an actor; it has ended unless the actor waits for its CPUs."""

    def __init__(self, actor: Actor, work: Callable[[], Any]) -> None:
        self.actor, self._work = actor, work

    def result(self) -> Any:
        if self.actor.killed:
            raise RayError("The actor died unexpectedly")
        try:
            return self._work()
        except Exception as error:
            raise RayError(f"ray::call\n{type(error).__name__}: {error}", error) from error


class Method:
    def __init__(self, actor: Actor, name: str) -> None:
        self._actor, self._name = actor, name

    def remote(self, *arguments: Any) -> Call:
        actor, name = self._actor, self._name
        if name == "__ray_ready__":
            return Call(actor, lambda: True)
        return Call(actor, lambda: getattr(actor.made, name)(*arguments))


class Actor:
    """An actor on a node; ``made`` is the object itself."""

    def __init__(self, made: Any, node_id: str, cpus: int, waits: bool) -> None:
        self.made, self.node_id, self.cpus, self.waits, self.killed = made, node_id, cpus, waits, False

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)


class StandInRay:
    """The module ``ray``, with what :mod:`embodied.cluster.sim_host` uses of it.

    Args:
        nodes: name → free CPUs.
        full: names of nodes where others have taken the CPUs meanwhile, so that actors wait for ever.
    """

    def __init__(self, nodes: dict[str, float], full: tuple[str, ...] = ()) -> None:
        self._nodes, self._full = nodes, full
        self.actors: list[Actor] = []

    def install(self, patch: pytest.MonkeyPatch) -> StandInRay:
        modules = {name: ModuleType(name) for name in ("ray", "ray.util", "ray._private", "ray.exceptions")}
        modules["ray.util.scheduling_strategies"] = strategies = ModuleType("ray.util.scheduling_strategies")
        modules["ray._private.state"] = state = ModuleType("ray._private.state")
        for name in ("init", "get", "wait", "kill", "remote", "nodes"):
            setattr(modules["ray"], name, getattr(self, name))
        modules["ray"].exceptions = modules["ray.exceptions"]  # type: ignore[attr-defined]
        modules["ray.exceptions"].RayError = RayError  # type: ignore[attr-defined]
        strategies.NodeAffinitySchedulingStrategy = lambda node_id, soft: node_id  # type: ignore[attr-defined]
        state.available_resources_per_node = lambda: {  # type: ignore[attr-defined]
            f"id-{name}": {"CPU": free} for name, free in self._nodes.items()
        }
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        return self

    def init(self, **how: Any) -> None: ...

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"NodeID": f"id-{name}", "NodeName": name, "NodeManagerAddress": "127.0.0.1", "Alive": True}
            for name in self._nodes
        ]

    def remote(self, kind: type) -> Any:
        ray = self

        class Remote:
            @staticmethod
            def options(num_cpus: int, scheduling_strategy: str) -> Any:
                class WithOptions:
                    @staticmethod
                    def remote(*arguments: Any) -> Actor:
                        waits = scheduling_strategy.removeprefix("id-") in ray._full
                        ray.actors.append(Actor(kind(*arguments), scheduling_strategy, num_cpus, waits))
                        return ray.actors[-1]

                return WithOptions

        return Remote

    def get(self, call: Call, timeout: float) -> Any:
        return call.result()

    def wait(self, calls: list[Call], timeout: float) -> tuple[list[Call], list[Call]]:
        for call in calls:
            if call.actor.waits:
                self._nodes[call.actor.node_id.removeprefix("id-")] = 0.0  # Ray knows by then
            elif not call.actor.killed:
                call.result()
        return ([], calls) if any(call.actor.waits for call in calls) else (calls, [])

    def kill(self, actor: Actor) -> None:
        actor.killed = True
