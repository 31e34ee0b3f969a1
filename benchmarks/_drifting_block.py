"""A small task in which late actions miss: a hand goes round a post and catches a block that drifts sideways.

    table 1 × 1 m, 20 control steps a second, at most 80 of them

        block ──▶          0.1 to 0.2 m/s, back at the edges; caught within 5 cm
          ( post )         radius 10 cm; who touches it has failed
          hand             at most 0.6 m/s

Whoever demonstrates goes round the post on either side, fast or slowly: two chunks in a row may be of two kinds.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

HERTZ, STEP = 20, 0.03  # control steps a second; metres a control step of an action of 1
POST, REACH, EDGE = 0.1, 0.05, 0.4  # metres
PIXELS = 32
X, Y = np.meshgrid(np.linspace(-0.5, 0.5, PIXELS), np.linspace(0.5, -0.5, PIXELS))
COLOURS = {"post": (40, 40, 200), "block": (255, 60, 40), "hand": (30, 230, 60)}


class DriftingBlock(gymnasium.Env[Any, Any]):
    metadata = {"render_modes": ["rgb_array"], "render_fps": HERTZ}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        box = gymnasium.spaces.Box
        self.observation_space = gymnasium.spaces.Dict(
            {"table": box(0, 255, (PIXELS, PIXELS, 3), np.uint8), "state": box(-1, 1, (3,))}
        )
        self.action_space = box(-1, 1, (2,))  # velocity of the hand

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        draw = self.np_random.uniform
        self.hand, self.block = draw((-0.05, -0.42), (0.05, -0.38)), draw((-0.3, 0.28), (0.3, 0.34))
        self.drift = draw(0.1, 0.2) / HERTZ * np.sign(draw(-1, 1))  # metres a control step
        self.side = np.sign(draw(-1, 1))  # on which whoever demonstrates passes the post
        self.pace = 1.0 if draw() < 0.5 else 0.6  # and how fast
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.hand = np.clip(self.hand + STEP * np.clip(action, -1, 1), -0.5, 0.5)
        if abs(self.block[0] + self.drift) > EDGE:
            self.drift = -self.drift
        self.block[0] += self.drift
        gap = float(np.linalg.norm(self.hand - self.block))
        touched = bool(np.linalg.norm(self.hand) < POST)
        return self._seen(), -gap, touched, False, {"is_success": gap < REACH and not touched}

    def _seen(self) -> dict[str, np.ndarray]:
        table = np.full((PIXELS, PIXELS, 3), 124, np.uint8)
        for name, place, size in (("post", (0, 0), POST), ("block", self.block, 0.06), ("hand", self.hand, 0.05)):
            table[(X - place[0]) ** 2 + (Y - place[1]) ** 2 < size**2] = COLOURS[name]
        return {"table": table, "state": np.array([*self.hand, 100 * self.drift], np.float32)}

    def render(self) -> np.ndarray:
        return self._seen()["table"].repeat(8, axis=0).repeat(8, axis=1)


class Expert:
    """Passes the post on its side, then goes to where the block will be."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self.env: Any = env.unwrapped

    def get_action(self, obs: Any) -> np.ndarray:
        env = self.env
        goal = env.block.copy()
        away = np.linalg.norm(goal - env.hand)
        goal[0] += env.drift * away / (env.pace * STEP)
        if env.hand[1] < 0.05:
            goal = np.array([env.side * (POST + 0.07), 0.07])
        wanted = (goal - env.hand) / STEP
        return wanted / max(1.0, float(np.linalg.norm(wanted)) / env.pace)


gymnasium.register("DriftingBlock-v0", entry_point=f"{__name__}:DriftingBlock", max_episode_steps=80)
