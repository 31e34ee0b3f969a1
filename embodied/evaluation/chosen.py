"""Says whether a compared evaluation was chosen as the best of those that its training has made.

    runs/A@30                           one of the training's own evaluations
    runs/A-after (embodied.eval)        an evaluation of runs/A/checkpoints/000030 from starts that the training's own
                                        evaluations have too

Fresh starts need no correction: the choice did not look at them. Nor does the last evaluation of a training, which is
taken whatever it shows.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied.errors import EvaluationError
from embodied.evaluation import results
from embodied.evaluation.compare import rates
from embodied.evaluation.results import WrittenEvaluation
from embodied.lib.files import UNREADABLE, read_json
from embodied.observe import published


@dataclass(frozen=True)
class Chosen:
    """The best of a training's evaluations: where, of how many, and what its success is worth."""

    run: str
    iteration: int
    evaluations: int  # of the training, without that before its first iteration
    rate: float
    worth: float
    low: float  # 95 % interval, corrected for the choice
    high: float

    def text(self, name: str) -> str:
        """Says it in a sentence.

        Args:
            name: of the evaluation in the text.
        """
        return (
            f"warning: {name} is the best of the {self.evaluations} evaluations that {self.run} has made, and not its "
            f"last. Its {self.rate:.0%} is worth {self.worth:.0%} (corrected for the choice: {self.low:.0%} to "
            f"{self.high:.0%}). Evaluate that checkpoint on other starts (env.eval.seed) for a number without this luck"
        )


def chosen(evaluation: WrittenEvaluation) -> Chosen | None:
    """Returns of how many an evaluation is the best; None if it was not chosen, or nothing says so."""
    if (place := _training(evaluation)) is None:
        return None
    run, iteration = place
    made = {step: rate for step, rate in looks(run).items() if step > 0}
    if len(made) < 2 or iteration not in made or iteration == max(made) or made[iteration] < max(made.values()):
        return None
    if not _shares_starts(evaluation, run):
        return None
    own = rates(evaluation)[-1][1]
    successes, n = round(own.rate * own.starts), own.starts
    low, high = published.corrected(successes, n, len(made))
    return Chosen(str(run), iteration, len(made), own.rate, published.worth(successes, n, len(made)), low, high)


def looks(run: Path) -> dict[int, float]:
    """Returns success of a training's own evaluations by iteration: of its metrics, or of the evaluations' files where
    there are none."""
    found: dict[int, float] = {}
    with suppress(OSError):
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError, RecursionError, OverflowError):
                row = json.loads(line)
                found[int(row["step"])] = float(row["eval/success_rate"])
    return found or _of_files(run)


def _of_files(run: Path) -> dict[int, float]:
    found = {}
    for file in results.evaluation_files(run):
        with suppress(EvaluationError):
            found[int(file.stem)] = rates(results.read(str(file)))[-1][1].rate
    return found


def _training(evaluation: WrittenEvaluation) -> tuple[Path, int] | None:
    """Finds the training whose weights were evaluated, and after how many iterations."""
    run = evaluation.file.absolute().parent.parent
    if (run / "metrics.jsonl").is_file() or int_of(evaluation.file.stem):
        return (_shown(run), int_of(evaluation.file.stem))
    path = _checkpoint(evaluation)
    if path is None or not path.name.isdigit():
        return None
    beside = [path.parent.parent, run.parent / path.parent.parent.name]
    there = next((one for one in beside if (one / "config.yaml").is_file()), None)
    return None if there is None else (_shown(there.absolute()), int(path.name))


def int_of(stem: str) -> int:
    """Returns the iteration that the name of an evaluation's file says; 0 of another name."""
    number = stem.removesuffix(results.SAMPLED)
    return int(number) if number.isdecimal() else 0


def _shown(run: Path) -> Path:
    with suppress(ValueError):
        return run.relative_to(Path.cwd())
    return run


def _checkpoint(evaluation: WrittenEvaluation) -> Path | None:
    with suppress(*UNREADABLE, OSError):
        of: Any = read_json(evaluation.file).get("checkpoint") or {}
        return Path(of["path"])
    return None


def _shares_starts(evaluation: WrittenEvaluation, run: Path) -> bool:
    """Returns whether any start is one of the training's own evaluations; also where that is not known."""
    for file in results.evaluation_files(run):
        with suppress(EvaluationError):
            return bool(set(results.read(str(file)).outcomes) & set(evaluation.outcomes))
    return True
