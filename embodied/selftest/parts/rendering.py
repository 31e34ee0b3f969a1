"""LIBERO's picture: drawn by EGL, on the GPU where there is one, against the software renderer's."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from embodied.errors import RendererUnavailableError
from embodied.lib.targets import load_target
from embodied.observe.terminal import streams
from embodied.protocols import Env
from embodied.schema import target_kwargs
from embodied.schema.compose.compose import compose
from embodied.selftest import apart
from embodied.selftest.measured import Measured, NotRun, at_least, at_most, figure, skipped
from embodied.selftest.place import Place
from embodied.types import Start

KEYS = ("experiment=null", "env=libero_object")
RENDERERS = ("egl", "osmesa")
SOFTWARE = ("llvmpipe", "softpipe", "swrast", "swr")  # Mesa's renderers without a GPU have one of these in their names
NOT_EMPTY = 5.0  # standard deviation, of 255
CLOSE = 4.0  # mean difference, of 255: edges and textures are smoothed otherwise
SAME_PIXELS = 0.9  # share within 16 of 255


def rendering(place: Place) -> Iterator[Measured]:
    """Measures rendering: which renderer draws, whether a picture shows something, how far two pictures lie apart."""
    absent = [package for package in ("libero", "robosuite", "mujoco") if find_spec(package) is None]
    if absent:
        raise NotRun(f"LIBERO is not installed, {', '.join(absent)} is missing: pip install 'embodied-rl[libero]'")
    pictures: dict[str, np.ndarray] = {}
    for name in RENDERERS:
        file = place.folder / f"{name}.npz"
        try:
            apart.ask(__name__, name, file, place.device)
        except RendererUnavailableError as error:
            if name == "egl":
                raise
            yield skipped("egl from osmesa", f"{error.message}; {error.remedy}")
            return
        with np.load(file) as found:
            pictures[name], driver = found["images"], str(found["driver"])
        yield figure(f"{name}: drawn by", driver or "a driver without a name")
        if name == "egl" and place.on_gpu:
            software = any(word in driver.lower() for word in SOFTWARE)
            yield at_least(f"egl: drawn on the GPU, by {driver}", int(not software), 1)
        yield at_least(f"{name}: standard deviation of the picture", float(pictures[name].std()), NOT_EMPTY, "of 255")
    one, other = (pictures[name].astype(float) for name in RENDERERS)
    gap = np.abs(one - other)
    yield at_most("egl from osmesa, mean", float(gap.mean()), CLOSE, "of 255")
    yield at_least("egl from osmesa, share of numbers within 16", float((gap <= 16).mean()), SAME_PIXELS)


def draw(renderer: str, file: Path) -> None:
    """Renders the first observation of an episode and writes it to ``file``."""
    side = compose([*KEYS, f"env.train.renderer={renderer}"]).config.env.train
    env: Env = load_target(side.target, "env.train._target_")(**target_kwargs(side, "env.train"))
    facts = env.prepare()
    env.reset(Start(0, 0, 0))
    out = {name: np.zeros(field.shape, field.dtype) for name, field in env.spec.obs.items()}
    env.observe(out)
    env.close()
    np.savez(file, images=out["images"], driver=np.asarray(facts.driver))


if __name__ == "__main__":
    streams.for_log()
    sys.exit(apart.answer(draw, sys.argv[1:]))
