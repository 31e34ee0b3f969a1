"""Which test runs each line of the code, and how long it takes: one run of the tests under coverage."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tree import ROOT, copy_tree

PARTS_OF_RUN = ("dry_runs", "dynamic_sampling", "generations_file", "places", "plans", "protocols", "run", "successes")
# The rooms that are sampled, and their tests. Of embodied/run, what counts and compares.
ROOMS: Mapping[str, tuple[str, ...]] = {
    "embodied/observe": ("tests/observe",),
    "embodied/run": (
        *(f"tests/run/test_{name}.py" for name in PARTS_OF_RUN), "tests/tools", "tests/evaluation/test_evaluation.py",
        "tests/evaluation/test_repeats.py",
    ),
    "embodied/evaluation": ("tests/evaluation", "tests/run"),
    "embodied/algorithms": ("tests/algorithms",),
    "embodied/learn": ("tests/learn",),
    "embodied/runtime": ("tests/runtime",),
    "embodied/serving": ("tests/serving",),
    "models/causal_lm": ("tests/models/causal_lm", "tests/models/test_reward_model.py"),
    "envs/text": ("tests/envs/text",),
}  # fmt: skip
ONLY = {
    "embodied/run": (
        "collector", "counting", "dynamic_sampling", "evaluate", "evaluator", "greedy_and_sampled", "iteration",
        "launches", "protocol", "sides", "successes",
    )
}  # fmt: skip
# Tests of lines that no test runs in its own process: they run in workers, in other ranks, or at import.
ELSEWHERE = {
    "embodied/runtime/worker/batch.py": ["tests/runtime/test_batch_env.py"],
    "embodied/runtime/worker/expert.py": ["tests/runtime/test_recorder.py", "tests/run/test_demos_run.py"],
    "embodied/runtime/recorder.py": ["tests/runtime/test_recorder.py", "tests/run/test_demos_run.py"],
    "embodied/runtime/pool/fork": ["tests/runtime/test_fork_server.py"],
    "embodied/runtime/channel.py": ["tests/runtime/test_channel.py", "tests/runtime/test_rollout.py"],
    "embodied/runtime/": [
        f"tests/runtime/test_{name}.py" for name in ("rollout", "final_observations", "placement", "slab", "pool")
    ],
    "embodied/algorithms/": ["tests/algorithms/"],
    "embodied/learn/cloning.py": ["tests/run/test_sft_run.py", "tests/models/openvla_oft/test_oft_cloning.py"],
    "embodied/learn/": ["tests/learn/"],
    "models/causal_lm/": ["tests/models/causal_lm/"],
    "envs/text/": ["tests/envs/text/"],
    "embodied/": ["tests/tools/", "tests/observe/", "tests/serving/"],
}
HYPOTHESIS = "hypothesis.internal.conjecture.engine.ConjectureRunner.test_function"
SETTINGS = """[run]
source = {tree}/embodied,{tree}/models,{tree}/envs
dynamic_context = test_function
data_file = {data}
"""


def measure(state: Path, room: str) -> None:
    """Run the tests of a room in a copy of the tree; :func:`read` what is found."""
    if importlib.util.find_spec("coverage") is None:
        sys.exit(
            "the package coverage is not installed; fix: pip install --target FOLDER coverage, then run this again "
            "with PYTHONPATH=FOLDER"
        )
    tree, data, settings = state / "measured", state / "coverage.data", state / "coveragerc"
    copy_tree(tree)
    settings.write_text(SETTINGS.format(tree=tree, data=data), encoding="utf-8")
    paths = [str(tree), os.environ.get("PYTHONPATH", "")]
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q"]
    command += ["-p", "no:cacheprovider", "--durations=0", "--durations-min=0", *files_of(room)]
    with (state / "measured.log").open("w", encoding="utf-8") as log:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        subprocess.run(command, cwd=tree, env=environment, stdout=log, stderr=subprocess.STDOUT)
    read(state, tree, data, state / "measured.log")


def files_of(room: str) -> list[str]:
    """The test files of a room, from the repository's root."""
    paths = [path if path.endswith(".py") else f"{path}/test_*.py" for path in ROOMS[room]]
    return sorted(str(file.relative_to(ROOT)) for path in paths for file in ROOT.glob(path))


def read(state: Path, tree: Path, data: Path, log: Path) -> None:
    """Add to ``coverage.json``: ``lines`` {file: {line: [test]}}, ``seconds`` {test: s}; a test is ``path::function``.

    Tests that failed are left out.
    """
    from coverage import CoverageData

    said = log.read_text(encoding="utf-8")
    failed = set(re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+)", said, re.MULTILINE))
    tests = {context: found - failed for context, found in _tests_by_context().items()}
    opened = CoverageData(basename=str(data))
    opened.read()
    known = state / "coverage.json"
    values = json.loads(known.read_text(encoding="utf-8")) if known.exists() else {"lines": {}, "seconds": {}}
    for file in opened.measured_files():
        lines = values["lines"].setdefault(str(Path(file).relative_to(tree)), {})
        for line, names in opened.contexts_by_lineno(file).items():
            seen = {test for name in names for test in tests.get(name, ())}
            lines[str(line)] = sorted(seen.union(lines.get(str(line), ())))
    values["seconds"] |= _seconds(said)
    known.write_text(json.dumps(values), encoding="utf-8")


def _tests_by_context() -> Mapping[str, set[str]]:
    """``module.function``, coverage's name of a test → ``path::function``; all of hypothesis' tests have one name."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in (file for room in ROOMS for file in files_of(room)):
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                given = any(ast.unparse(decorator).startswith("given(") for decorator in node.decorator_list)
                found[HYPOTHESIS if given else f"{Path(file).stem}.{node.name}"].add(f"{file}::{node.name}")
    return found


def _seconds(log: str) -> dict[str, float]:
    """Of all cases of a test together, with what was set up for them."""
    seconds: dict[str, float] = defaultdict(float)
    for amount, test in re.findall(r"^([\d.]+)s (?:setup|call|teardown) +([^\s\[]+)", log, re.MULTILINE):
        seconds[test] += float(amount)
    return dict(seconds)
