"""Refuses settings of evaluations that cannot work."""

from __future__ import annotations

from embodied.errors import ConfigError
from embodied.schema.keys.config import Config
from embodied.schema.keys.sections.runner import RunnerConfig


def check_evaluation(config: Config) -> None:
    """Refuses two evaluations where a command makes one or none."""
    algorithm, runner = config.algorithm, config.runner
    if algorithm.val_sampling_params.do_sample == "both" and (
        not runner.only_eval or runner.selftest or runner.answers is not None
    ):
        raise ConfigError(
            "algorithm.val_sampling_params.do_sample=both asks for two evaluations, a greedy and a sampled one, and "
            "this command does something else",
            "run python -m embodied.eval with it, without answers= and selftest=, or set it to true or false",
        )


def check_answers(runner: RunnerConfig) -> None:
    """Refuses answers of a file beside what does not evaluate them."""
    if runner.answers is None:
        return
    if not runner.only_eval:
        raise ConfigError(
            f"runner.answers is {runner.answers}, and answers of a file can only be evaluated",
            "run python -m embodied.eval … answers=FILE, or leave runner.answers out",
        )
    if runner.ckpt_path is not None:
        raise ConfigError(
            f"runner.answers is {runner.answers} and runner.ckpt_path {runner.ckpt_path}: whose answers are evaluated?",
            "leave one of the two out",
        )
