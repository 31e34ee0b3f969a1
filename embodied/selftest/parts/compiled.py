"""Compiled blocks against blocks as they are."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator

from embodied.selftest import learning
from embodied.selftest.measured import Measured, NotRun, at_most, few_of, figure, skipped
from embodied.selftest.place import Place
from embodied.selftest.policies import OFT, built_policy, question

ROWS = 4
COMPILERS = {"CXX": ("C++", ("g++",)), "CC": ("C", ("gcc", "clang"))}
EXACT = 5e-4  # nats: one kernel adds up what several did
GRADIENT = 5e-3  # tolerance, relative to the gradient's norm


def compiled(place: Place) -> Iterator[Measured]:
    """Measures how far the compiled small OpenVLA-OFT is from the uncompiled one, and what compiling takes."""
    need_compiler(place)
    plain, fast = built_policy(place.device, *OFT), built_policy(place.device, *OFT, "actor.model.torch_compile=true")
    asked, spec = question(plain, ROWS), plain.policy.spec
    wanted = learning.decide(plain, asked)
    began = time.monotonic()
    found = learning.decide(fast, asked)
    yield figure("the first call", time.monotonic() - began, "s")
    yield few_of("act: other tokens", *learning.other_decisions(spec, found, wanted), 0.005)
    same = learning.same_so_far(spec, found, wanted)
    yield at_most("act: log-probs", learning.largest(found["logprobs"], wanted["logprobs"], same), EXACT, "nats")
    if not place.on_gpu:
        yield skipped("update", "a CPU's compiler takes another minute for it, and the device is cpu")
        return
    records = {**asked.obs, **wanted}
    began = time.monotonic()
    step, usual = learning.learn(fast, records), learning.learn(plain, records)
    yield figure("the first update", time.monotonic() - began, "s")
    yield at_most("update: loss", abs(step.loss - usual.loss), EXACT, "nats")
    yield at_most("update: gradient", learning.relative(step.gradients, usual.gradients), GRADIENT)


def need_compiler(place: Place) -> None:
    """Raises :class:`NotRun` without the compiler that torch's own one calls: on a CPU for C++ (the kernels), on a GPU
    for C (what starts Triton's kernels)."""
    variable = "CC" if place.on_gpu else "CXX"
    language, usual = COMPILERS[variable]
    names = (os.environ[variable],) if variable in os.environ else usual
    if not any(map(shutil.which, names)):
        told = f" ({variable} is set)" if variable in os.environ else ""
        raise NotRun(f"torch.compile needs a compiler of {language}, and {' or '.join(names)} is not installed{told}")
