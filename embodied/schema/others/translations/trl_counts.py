"""Rules of TRL's counts. TRL counts answers, passes of one process and optimizer steps; here prompts of an iteration,
answers of an optimizer step and iterations are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from embodied.schema.others.tables import Row
from embodied.schema.others.translation import Lookup, Rule, Translation, Unknown, number_of
from embodied.schema.others.values import translated


@dataclass(frozen=True)
class Sizes:
    """TRL's batch sizes: answers of a pass, processes, passes of an optimizer step and of an iteration, and how often
    an iteration's answers are used."""

    answers: int
    processes: int
    accumulated: int
    spread: int
    reused: int

    @property
    def of_step(self) -> int:
        """Answers of an optimizer step."""
        return self.answers * self.processes * self.accumulated

    @property
    def collected(self) -> int | None:
        """Answers of an iteration; None if optimizer steps and iterations do not come out even."""
        if self.spread % self.accumulated == 0:
            return self.answers * self.processes * self.spread
        return self.of_step if self.accumulated % self.spread == 0 and self.reused == 1 else None

    @property
    def steps(self) -> float:
        """Optimizer steps of an iteration."""
        return self.reused * max(1.0, self.spread / self.accumulated)


def sizes(get: Lookup) -> Sizes:
    """Reads TRL's batch sizes; where their file says none, those that TRL takes."""
    answers, accumulated = count(get, "per_device_train_batch_size", 8), count(get, "gradient_accumulation_steps", 1)
    processes = count(get, "num_processes", 1)
    spread = count(get, "steps_per_generation", accumulated)
    if whole := number_of(get("generation_batch_size")):
        spread = max(1, int(whole) // (answers * processes))
    return Sizes(answers, processes, accumulated, spread, count(get, "num_iterations", 1))


def count(get: Lookup, key: str, usual: int) -> int:
    number = number_of(get(key))
    return usual if number is None else max(1, int(number))


def batch(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the answers of a pass of one process, and with them the answers of an optimizer step."""
    if isinstance(get, Unknown):
        why = "actor.global_batch_size is this · processes · gradient_accumulation_steps"
        return Translation({row.ours[0]: value}, "derived", why)
    of = sizes(get)
    told = f"answers {of.answers} · processes {of.processes} · passes of an optimizer step {of.accumulated}"
    return Translation({row.ours[0]: of.answers, row.ours[1]: of.of_step}, "derived", told)


def given(rule: Rule) -> Rule:
    """Makes the rule for a key of which a hint may ask without a value: nothing is said of that then."""

    def of_value(row: Row, value: Any, get: Lookup) -> Translation:
        unknown = value is None and isinstance(get, Unknown)
        return Translation(how="nothing") if unknown else rule(row, value, get)

    return of_value


def said_by(name: str) -> Rule:
    """Makes the rule for a key that is a factor in what ``name`` says."""

    def rule(row: Row, value: Any, get: Lookup) -> Translation:
        if isinstance(get, Unknown):
            return Translation(how="derived", why=f"it is a factor: TRL counts by {name}")
        return Translation(how="nothing", why=f"{name} says it")

    return rule


def generations(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the answers to each prompt, and with them the prompts of an iteration."""
    number = number_of(value)
    if number is None or isinstance(get, Unknown):
        return Translation({row.ours[0]: value}, "renamed")
    of, settings = sizes(get), {row.ours[0]: int(number)}
    if of.collected is None or of.collected % int(number):
        why = (
            f"answers are made for {of.spread} passes, an optimizer step has {of.accumulated}, and each prompt "
            f"{number:g} answers: that comes out even in no number of prompts"
        )
        return Translation(settings, "extra", why)
    settings["data.rollout_batch_size"] = of.collected // int(number)
    return Translation(settings, "derived", f"{of.collected} answers of an iteration / {number:g} to each prompt")


def processes(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates accelerate's processes, which are counted over all machines."""
    number, machines = int(number_of(value) or 1), count(get, "num_machines", 1)
    if number == 1:
        return Translation(how="nothing", why="one process")
    if number % machines:
        return Translation(how="refused", why=f"{number} processes cannot be equally many on {machines} machines")
    nodes = {"cluster.num_nodes": machines} if machines > 1 else {}
    return Translation({"cluster.num_gpus_per_node": number // machines, **nodes}, "derived")


def iterations(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates a number of optimizer steps into iterations."""
    number = number_of(value)
    if number is None or number <= 0:
        return Translation(how="nothing", why="nothing is set")
    if isinstance(get, Unknown):
        return Translation(how="derived", why="optimizer steps / those of an iteration")
    each = sizes(get).steps
    return Translation({row.ours[0]: ceil(number / each)}, "derived", f"{number:g} optimizer steps / {each:g} each")


def passes(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates passes over the problems; :mod:`embodied.migrate.texts` makes iterations of them."""
    if isinstance(get, Unknown):
        return Translation(how="derived", why="TRL counts passes over the data, and here iterations are counted")
    if (number_of(get("max_steps")) or 0) > 0:
        return Translation(how="nothing", why="max_steps says it")
    return Translation({row.ours[0]: value}, "renamed")


def when(strategy: str) -> Rule:
    """Makes the rule for the optimizer steps between two evaluations or checkpoints, which ``strategy`` switches."""

    def rule(row: Row, value: Any, get: Lookup) -> Translation:
        chosen = str(get(strategy) or ("steps" if strategy == "save_strategy" else "no")).lower()
        if not isinstance(get, Unknown) and chosen != "steps":
            return Translation(how="nothing", why=f"{strategy} is {chosen}")
        if (number_of(value) or 0) < 1:
            return Translation(how="extra", why=f"a share of the run: set {row.ours[0]} to a number of iterations")
        return iterations(row, value, get)

    return rule


def saves(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates when checkpoints are written."""
    never = str(value).lower() == "no"
    return Translation({row.ours[0]: -1} if never else {}, "derived" if never else "nothing", "save_steps says it")


def evaluates(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates when evaluations are; in TRL they sample as the training does, several answers to each prompt."""
    kind = str(value).lower()
    if kind in ("no", "false"):
        return Translation({row.ours[0]: -1}, "derived", "there are none")
    settings: dict[str, Any] = {"algorithm.val_sampling_params.do_sample": True}
    for name in ("temperature", "top_p", "top_k", "repetition_penalty"):
        if (number := get(name)) is not None:
            settings |= translated(f"algorithm.val_sampling_params.{name}", number)
    answers = get("num_generations_eval")
    settings["algorithm.val_group_size"] = count(get, "num_generations", 8) if answers is None else int(answers)
    why = "evaluations sample as the training does, so many answers to each prompt"
    if kind == "steps":
        every = number_of(get("eval_steps")) or number_of(get("logging_steps")) or 10
        return Translation({row.ours[0]: ceil(every / sizes(get).steps), **settings}, "derived", why)
    return Translation(settings, "extra", f"{why}; set {row.ours[0]} to problems / data.rollout_batch_size")


def warmup(row: Row, value: Any, get: Lookup) -> Translation:
    """Translates the warm-up: a share of the run, or optimizer steps, of which iterations are made."""
    number = number_of(value)
    if not number or str(get("lr_scheduler_type")).lower() == "constant":
        return Translation(how="nothing", why="the schedule constant has none" if number else "there is none")
    if row.key == "warmup_ratio" and (number_of(get("warmup_steps")) or 0) > 0:
        return Translation(how="nothing", why="warmup_steps says it")
    if row.key == "warmup_ratio" or number < 1:
        return Translation({"actor.lr_sched.lr_warmup_fraction": number}, "renamed")
    each = sizes(get).steps
    return Translation({row.ours[0]: round(number / each, 4)}, "derived", f"{number:g} optimizer steps / {each:g} each")
