"""A random sample of mutants against the tests that run their lines.

    python tests/mutants/sample.py STATE measure ROOM       # which test runs which line (needs the package coverage)
    python tests/mutants/sample.py STATE run ROOM [--seed 1] [--count 104] [--shard 0/2] [--seconds 20]
    python tests/mutants/sample.py STATE again NUMBER,… TEST… [--new]    # with these tests, or all that run the line
    python tests/mutants/sample.py STATE survivors

STATE is a folder outside the repository; a run that was stopped goes on from what stands there. Each mutant is tried in
a process forked from one that has imported everything but the project, and in a copy of the tree.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from measure import ELSEWHERE, ONLY, ROOMS, files_of, measure
from operators import Fault, faults_of
from tree import ROOT, copy_tree

IMPORTED = (
    "numpy", "torch", "torch.distributed.checkpoint", "transformers", "transformers.models.llama.modeling_llama",
    "peft", "tokenizers", "safetensors.torch", "hydra", "omegaconf", "pydantic", "pytest", "hypothesis", "rich",
    "imageio", "PIL.Image", "tensorboard",
)  # fmt: skip


def drawn(seed: int, count: int) -> list[tuple[str, Fault]]:
    """``count`` faults of different statements, as many of each room."""
    generator = random.Random(seed)
    chosen: list[tuple[str, Fault]] = []
    for room in ROOMS:
        for file, faults in generator.sample(_statements(room), count // len(ROOMS)):
            kind = generator.choice(sorted({fault.kind for fault in faults}))
            chosen.append((file, generator.choice([fault for fault in faults if fault.kind == kind])))
    return chosen


def room_of(file: str) -> str:
    """The room of a file, from the repository's root."""
    return next(room for room in ROOMS if file.startswith(f"{room}/"))


def _statements(room: str) -> list[tuple[str, list[Fault]]]:
    return [
        (str(file.relative_to(ROOT)), faults)
        for file in sorted((ROOT / room).rglob("*.py"))
        if room not in ONLY or file.stem in ONLY[room]
        for faults in faults_of(file.read_bytes()).values()
    ]


class Coverage:
    """Which tests may see a fault, cheapest first."""

    def __init__(self, state: Path) -> None:
        values = json.loads((state / "coverage.json").read_text(encoding="utf-8"))
        self.lines, self.seconds = values["lines"], values["seconds"]

    def tests(self, file: str, fault: Fault, seconds: float) -> tuple[list[str], float]:
        """Tests for ``seconds`` at most, those of the file's own folder first, and how long they take."""
        lines = self.lines.get(file, {})
        seen = {test for line in range(fault.first_line, fault.last_line + 1) for test in lines.get(str(line), ())}
        seen = seen or self._of_files(next(tests for path, tests in ELSEWHERE.items() if file.startswith(path)))
        own = tuple(files_of(room_of(file)))
        order = sorted(seen, key=lambda test: (not test.startswith(own), self.seconds.get(test, 1.0), test))
        taken: list[str] = []
        total = 0.0
        for test in order:
            if total + self.seconds.get(test, 1.0) <= seconds or not taken:
                taken.append(test)
                total += self.seconds.get(test, 1.0)
        return taken, total

    def cost(self, tests: Sequence[str]) -> float:
        """Seconds that files or functions take; 10 for one that was not there when the others were measured."""
        return sum(sum(self.seconds[test] for test in self._of_files([name])) or 10.0 for name in tests)

    def _of_files(self, files: Sequence[str]) -> set[str]:
        return {test for test in self.seconds if test.startswith(tuple(files))}


def attempt(tree: Path, file: str, fault: Fault, tests: Sequence[str], limit: float) -> dict[str, Any]:
    """Try one mutant: ``verdict`` killed, timeout or survived, the failing ``test``, ``seconds``."""
    source = (tree / file).read_bytes()
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
        (tree / file).write_bytes(fault.apply(source))
        try:
            status = _forked(tree, tests, limit, said.fileno())
        finally:
            (tree / file).write_bytes(source)
        said.seek(0)
        lines = said.read().splitlines()
    if any("not found: " in line for line in lines):
        raise RuntimeError("\n".join(lines))
    failed = [line.split()[1] for line in lines if line.startswith(("FAILED tests/", "ERROR tests/"))]
    verdict = {None: "timeout", 0: "survived"}.get(status, "killed")
    return {"verdict": verdict, "test": (failed or [""])[0], "seconds": round(time.monotonic() - began, 1)}


def _forked(tree: Path, tests: Sequence[str], limit: float, output: int) -> int | None:
    """Run pytest in a forked process group; its exit status, or None after ``limit`` seconds."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(tree)
        sys.path[:0] = [str(tree)]
        import pytest

        status = pytest.main(["-x", "-q", "-rfE", "--tb=line", "-p", "no:cacheprovider", *tests])
        sys.stdout.flush()
        os._exit(status)
    deadline = time.monotonic() + limit
    status = None
    while status is None and time.monotonic() < deadline:
        time.sleep(0.05)
        done, code = os.waitpid(child, os.WNOHANG)
        status = (os.waitstatus_to_exitcode(code) or 0) if done else None
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # also what tests have left running
    if status is None:
        os.waitpid(child, 0)
    return status


def prepare(state: Path, name: str) -> Path:
    """Import what is not the project, make the copy of the tree."""
    for module in IMPORTED:
        __import__(module)
    sys.dont_write_bytecode = True
    tree = copy_tree(state / f"tree-{name}")
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return tree


def run(state: Path, room: str, seed: int, count: int, shard: str, seconds: float) -> None:
    """Try the room's and the shard's mutants that have not been tried."""
    part, parts = map(int, shard.split("/"))
    results = state / f"results-{part}.json"
    done = read_json(results)
    tree, coverage = prepare(state, str(part)), Coverage(state)
    for number, (file, fault) in enumerate(drawn(seed, count)):
        if number % parts != part or str(number) in done or not file.startswith(f"{room}/"):
            continue
        tests, expected = coverage.tests(file, fault, seconds)
        found = attempt(tree, file, fault, tests, 180 + 6 * expected)
        done[str(number)] = {"file": file, **asdict(fault), **found, "tests": len(tests)}
        results.write_text(json.dumps(done, indent=1), encoding="utf-8")
        print(
            f"{number:>3} {found['verdict']:<9} {found['seconds']:>6.1f} s  {file}:{fault.first_line} {found['test']}"
        )


def read_json(file: Path) -> dict[str, Any]:
    """What is in the file; nothing if there is none."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def everything(state: Path) -> dict[str, Any]:
    """What all shards have found, by number."""
    found: dict[str, Any] = {}
    for file in sorted(state.glob("results-*.json")):
        found |= read_json(file)
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def again(state: Path, numbers: Sequence[str], tests: Sequence[str], new: bool) -> None:
    """Try mutants once more; print what is found and note it in ``again.json``."""
    results = state / "again.json"
    tree, coverage, known = prepare(state, f"again-{os.getpid()}"), Coverage(state), everything(state)
    for number in numbers:
        value = known[number]
        fault = Fault(**{name: value[name] for name in Fault.__dataclass_fields__})
        chosen, expected = (tests, coverage.cost(tests)) if tests else coverage.tests(value["file"], fault, 300.0)
        found = attempt(tree, value["file"], fault, chosen, 180 + 6 * expected)
        done = read_json(results) | {number: {**found, "tests": len(chosen), "new": new}}
        results.write_text(json.dumps(done, indent=1), encoding="utf-8")
        print(number, found, flush=True)


def survivors(state: Path) -> None:
    """Print the mutants that no test has noticed."""
    found = everything(state)
    later = read_json(state / "again.json")
    for number, value in found.items():
        if {**value, **later.get(number, {})}["verdict"] == "survived":
            print(f"{number} {value['file']}:{value['first_line']} {value['kind']} ({value['tests']} tests)")
            print(f"    - {value['before']}\n    + {value['after']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("state", type=Path)
    parser.add_argument("what", choices=["measure", "run", "again", "survivors"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=104)
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--seconds", type=float, default=20.0, help="of tests for each mutant, at most")
    parser.add_argument("--new", action="store_true", help="these tests were written after the mutant had survived")
    given = parser.parse_args()
    given.state.mkdir(parents=True, exist_ok=True)
    if given.what == "measure":
        measure(given.state, given.rest[0])
    elif given.what == "run":
        run(given.state, given.rest[0], given.seed, given.count, given.shard, given.seconds)
    elif given.what == "again":
        again(given.state, given.rest[0].split(","), given.rest[1:], given.new)
    else:
        survivors(given.state)


if __name__ == "__main__":
    main()
