"""The result of a sample as a file and as tables.

    python tests/mutants/report.py STATE

Writes ``tests/mutants/results.json`` and prints the tables of docs/mutation.md. ``STATE/equivalent.json`` holds a
reason for each mutant that changes no promised behaviour: {number: why}.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from measure import ROOMS
from sample import everything, read_json, room_of

RESULTS = Path(__file__).with_name("results.json")
VERDICTS = ("killed", "killed by a new test", "equivalent", "survived")


def main(state: Path) -> None:
    rows = judged(state)
    RESULTS.write_text(
        "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n", encoding="utf-8"
    )
    counts = Counter((room_of(row["file"]), row["verdict"]) for row in rows)
    print("| folder | mutants | " + " | ".join(VERDICTS) + " |\n" + "|---" * (2 + len(VERDICTS)) + "|")
    for folder in (*ROOMS, "all"):
        cells = [
            sum(n for (f, v), n in counts.items() if v == verdict and folder in (f, "all")) for verdict in VERDICTS
        ]
        print(f"| {folder} | {sum(cells)} | " + " | ".join(map(str, cells)) + " |")
    for row in rows:
        if "why" in row:
            change = f"`{row['before']}` → `{row['after']}`"
            print(f"| {row['number']} | `{row['file']}:{row['line']}` | {change} | {row['why']} |")


def judged(state: Path) -> list[dict[str, Any]]:
    """One row a mutant: what it is, the verdict, the first failing test or why it is equivalent."""
    later, reasons = read_json(state / "again.json"), read_json(state / "equivalent.json")
    rows = []
    for number, found in everything(state).items():
        last = {**found, **later.get(number, {})}
        verdict = "killed" if last["verdict"] == "timeout" else last["verdict"]
        if verdict == "killed" and last.get("new"):
            verdict = "killed by a new test"
        row = {"number": int(number), "file": found["file"], "line": found["first_line"], "kind": found["kind"]}
        row |= {
            "before": found["before"],
            "after": found["after"],
            "verdict": verdict,
            "test": last["test"] or "time limit",
        }
        if verdict == "survived":
            row |= {"test": ""} | ({"verdict": "equivalent", "why": reasons[number]} if number in reasons else {})
        rows.append(row)
    return rows


if __name__ == "__main__":
    main(Path(sys.argv[1]))
