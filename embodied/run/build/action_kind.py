"""The differences between robots and texts in a run. One kind is chosen for each side, by what its env takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from embodied import schema
from embodied.errors import ConfigError, EmbodiedError
from embodied.protocols import Env, Expert
from embodied.run.build import demonstrations
from embodied.run.build.demonstrations import Demonstrated
from embodied.types import EnvSpec, EpisodeResult, Start, TextAction

SAMPLED = ("do_sample", "temperature", "top_k", "top_p")
"""Fields of the sampling that a robot's actions depend on."""


@dataclass(frozen=True)
class Words:
    """What a run's displays call its episodes, their starts, and what is recorded of them."""

    episodes: str
    episode: str
    starts: str
    states: str
    records: str
    several: str  # title of a table of several episodes of each start


class ActionKind(Protocol):
    """Answers the questions about a run that differ between envs of robots and of texts."""

    @property
    def words(self) -> Words:
        """Returns what displays call episodes and starts."""
        ...

    @property
    def has_steps(self) -> bool:
        """Returns whether an episode consists of control steps, so that its length and its progress mean something."""
        ...

    @property
    def from_rows(self) -> bool:
        """Returns whether prompts and demonstrated answers are rows of files, where robots have scenes and episodes."""
        ...

    def max_steps(self, configured: int, usual: int) -> int:
        """Returns the step limit of an episode: ``configured`` if it is set, else the env's own ``usual`` one.

        Args:
            configured: the limit that the configuration sets.
            usual: the env's own limit.
        """
        ...

    def length(self, steps: str, most: int) -> str:
        """Returns in words how long an episode may be; empty if there is nothing to say.

        Args:
            steps: the same in control steps.
            most: of these, or turns of a text.
        """
        ...

    def lengths(self, steps: str, most: int, chunk: int, episodes: int = 0) -> list[list[str]]:
        """Returns the summary's rows about the length of an episode, and of all ``episodes`` if there are some.

        Args:
            steps: the length in control steps, in words.
            most: of these, or turns of a text.
            chunk: control steps of a chunk.
        """
        ...

    def asks_once(self, sampled: bool) -> bool:
        """Returns whether an evaluation runs each initial state once, as the same episode would follow again."""
        ...

    def from_random_weights(self, dense: bool, pictures: bool) -> str:
        """Returns what to expect of a training that begins with random weights.

        Args:
            dense: whether the reward pays for progress.
            pictures: whether there are some; from numbers alone tasks are learnt without demonstrations.
        """
        ...

    def check_keys(self, config: schema.Config) -> None:
        """Raises :class:`ConfigError` for keys that mean nothing here."""
        ...

    def refuse_texts(self, error: EmbodiedError) -> None:
        """Raises ``error`` if the env is one of texts."""
        ...

    def read_demonstrations(self, config: schema.Config, spec: EnvSpec, kwargs: Mapping[str, Any]) -> Demonstrated:
        """Reads the demonstrations of a supervised run.

        Args:
            kwargs: keyword arguments of the env.

        Raises:
            DatasetError: the demonstrations cannot be read.
            SpecMismatchError: they do not fit the env.
        """
        ...

    def demonstrated(self, count: int, prompts: int, held_out: int, samples: str) -> list[list[str]]:
        """Returns the summary's rows about the demonstrations of a supervised run.

        Args:
            count: demonstrations to learn from.
            prompts: different instructions among them.
            held_out: demonstrations for validation.
            samples: how many samples they are, in words.
        """
        ...

    def not_demonstrated(self, tasks: Sequence[str], instructions: Iterable[str]) -> list[list[str]]:
        """Returns the summary's row of an evaluation's tasks that are not among the instructions ``instructions``."""
        ...

    def longest_prompt(self, tasks: Sequence[str], known: Iterable[str], most: Callable[[], str]) -> str:
        """Returns the longest instruction that a policy is given: of ``tasks``, else of the ``known`` prompts, else of
        the ``most`` that it takes.

        Args:
            tasks: of the env.
            known: prompts that are known before the run.
            most: makes a text as long as the policy takes.
        """
        ...

    def sampling_fields(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """Returns those fields of the sampling ``drawn`` on which an evaluation depends."""
        ...

    def origin(self, result: EpisodeResult) -> Start:
        """Returns an episode's start, without a seed that has no effect. Trials of one start are not independent."""
        ...

    def video(self, file: str) -> str | None:
        """Returns the file of an episode's video; None for texts, of which there is nothing to see."""
        ...

    def kept_texts(self, count: int) -> int:
        """Returns the number of episodes, out of ``count``, whose texts are kept."""
        ...

    def expert(self, env: Env) -> Expert | None:
        """Returns the expert that demonstrates in an env; None if it has none."""
        ...


class RobotKind(ActionKind):
    """Answers for envs of robots: the policy moves them by numbers, or by one of N actions."""

    has_steps = True
    from_rows = False
    words = Words("episodes", "episode", "starts", "initial states", "records", "several episodes of each start")

    def max_steps(self, configured: int, usual: int) -> int:
        return configured

    def length(self, steps: str, most: int) -> str:
        return steps

    def lengths(self, steps: str, most: int, chunk: int, episodes: int = 0) -> list[list[str]]:
        rows = [["steps of an episode", f"{steps}{'; ' if episodes else ' = '}{-(-most // chunk)} chunks of {chunk}"]]
        return [*rows, *([["steps in all", f"at most {episodes * most:,} control steps"]] if episodes else [])]

    def asks_once(self, sampled: bool) -> bool:
        return False  # an initial state is run again with another seed

    def from_random_weights(self, dense: bool, pictures: bool) -> str:
        what = "Tasks are hardly ever solved by chance, and with env.train.reward_mode=sparse nothing is learnt before "
        what += "one is: env.train.reward_mode=dense pays for progress."
        if dense:
            what = (
                "Expect success to stay at 0 or near it, as tasks are hardly ever solved by chance, and the return to "
                "rise: env.train.reward_mode=dense pays for progress."
            )
        if dense and not pictures:
            what = "From numbers alone a task may be learnt so; expect the return to rise before success does."
        return (
            f"The policy begins with random weights: no demonstrations, no checkpoint. {what} "
            f"{'Success' if pictures else 'A hard task'} takes a policy "
            "that was cloned first (embodied.tools.demos, embodied.sft, then embodied.train with runner.ckpt_path); "
            "docs/results/quickstart.md shows one that learns."
        )

    def check_keys(self, config: schema.Config) -> None:
        _refuse_keys_of_texts(config)

    def refuse_texts(self, error: EmbodiedError) -> None:
        pass

    def read_demonstrations(self, config: schema.Config, spec: EnvSpec, kwargs: Mapping[str, Any]) -> Demonstrated:
        return demonstrations.read_episodes(config, spec, kwargs)

    def demonstrated(self, count: int, prompts: int, held_out: int, samples: str) -> list[list[str]]:
        episodes = f"{count} of {prompts} tasks, {held_out} more for validation"
        return [["episodes", episodes], ["samples", samples]]

    def not_demonstrated(self, tasks: Sequence[str], instructions: Iterable[str]) -> list[list[str]]:
        known = set(instructions)
        without = [task for task in tasks if task not in known]
        text = f"{len(without)}, e.g. {without[0]!r}" if without else ""
        return [["tasks of env.eval without a demonstration", text]] if without else []

    def longest_prompt(self, tasks: Sequence[str], known: Iterable[str], most: Callable[[], str]) -> str:
        return max(tasks, key=len, default="")

    def sampling_fields(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        return {name: drawn[name] for name in SAMPLED}

    def origin(self, result: EpisodeResult) -> Start:
        return result.episode.start

    def video(self, file: str) -> str | None:
        return file

    def kept_texts(self, count: int) -> int:
        return 0

    def expert(self, env: Env) -> Expert | None:
        return env if isinstance(env, Expert) else None


class TextKind(ActionKind):
    """Answers for envs of texts, which the policy writes."""

    has_steps = False
    from_rows = True
    words = Words("answers", "answer", "problems", "problems", "answers", "several answers to each problem")

    def max_steps(self, configured: int, usual: int) -> int:
        return min(configured, usual)  # sizes for robots, e.g. of experiment=laptop, allow more

    def length(self, steps: str, most: int) -> str:
        return f"at most {most} turns" if most > 1 else ""  # the tokens of an answer stand beside the policy

    def lengths(self, steps: str, most: int, chunk: int, episodes: int = 0) -> list[list[str]]:
        return [["turns of an answer", f"at most {most}"]] if most > 1 else []

    def asks_once(self, sampled: bool) -> bool:
        return not sampled

    def from_random_weights(self, dense: bool, pictures: bool) -> str:
        return (
            "The policy begins with random weights: no demonstrated answers, no checkpoint. Problems are hardly ever "
            "answered rightly by chance, and nothing is learnt before one is. Begin with a trained model "
            "(model=smollm2, model=causal_lm), or show it answers first (embodied.sft, or runner.first); "
            "docs/results/math.md shows one that learns."
        )

    def check_keys(self, config: schema.Config) -> None:
        pass

    def refuse_texts(self, error: EmbodiedError) -> None:
        raise error

    def read_demonstrations(self, config: schema.Config, spec: EnvSpec, kwargs: Mapping[str, Any]) -> Demonstrated:
        return demonstrations.read_texts(config)

    def demonstrated(self, count: int, prompts: int, held_out: int, samples: str) -> list[list[str]]:
        return [["answers", f"{count} to {prompts} prompts, {held_out} more for validation"]]

    def not_demonstrated(self, tasks: Sequence[str], instructions: Iterable[str]) -> list[list[str]]:
        return []

    def longest_prompt(self, tasks: Sequence[str], known: Iterable[str], most: Callable[[], str]) -> str:
        return max(known, key=lambda text: len(text.encode(errors="replace")), default="") or most()

    def sampling_fields(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        return dict(drawn)

    def origin(self, result: EpisodeResult) -> Start:
        return replace(result.episode.start, seed=0)  # a problem does not depend on it

    def video(self, file: str) -> str | None:
        return None

    def kept_texts(self, count: int) -> int:
        return count

    def expert(self, env: Env) -> Expert | None:
        return None  # answers are demonstrated in rows of files


ROBOT, TEXT = RobotKind(), TextKind()


def kind_of(spec: EnvSpec) -> ActionKind:
    """Chooses robot or text by the action of an env's spec."""
    return TEXT if isinstance(spec.action, TextAction) else ROBOT


def kind_of_sampling(sampled: Mapping[str, Any]) -> ActionKind:
    """Chooses robot or text by the fields of the sampling that an evaluation keeps (``sampling_fields``)."""
    return TEXT if "max_new_tokens" in sampled else ROBOT


def _refuse_keys_of_texts(config: schema.Config) -> None:
    """Raises :class:`ConfigError` with the keys that only texts have and that are set."""
    runner, algorithm, usual = config.runner, config.algorithm, schema.SamplingConfig()
    asked = {
        "runner.task_type": runner.task.of_texts,
        "runner.enable_dynamic_batch_size": runner.enable_dynamic_batch_size,
        "runner.logger.log_val_generations": runner.logger.log_val_generations > 0,
        "data.type": config.data.type == "math",
        "data.custom_cls.path": config.data.custom_cls.path is not None,
        # Of a training by rewards the schema refuses it, for texts too.
        "data.response_key": schema.only_evaluates(config)
        and config.data.response_key != schema.DataConfig().response_key,
        "data.rollout_batch_size": config.data.rollout_batch_size is not None,
        "data.val_rollout_batch_size": config.data.val_rollout_batch_size is not None,
        "algorithm.reward_type=token_level": algorithm.reward_type == "token_level",
        "rollout.backend": config.rollout.backend != "native",
        "reward.use_reward_model": config.reward.use_reward_model,
        "runner.answers": runner.answers is not None,
        "algorithm.min_filter_prefix_tokens": algorithm.min_filter_prefix_tokens is not None,
        "rollout.print_outputs": config.rollout.print_outputs,
        "rollout.detokenize": config.rollout.detokenize,
        "data.return_full_prompt": config.data.return_full_prompt,
    }
    for name in ("train_subset", "train_split", "train_revision", "val_subset", "val_split", "val_revision"):
        asked[f"data.{name}"] = getattr(config.data, name) is not None
    for name in (
        "repetition_penalty",
        "max_new_tokens",
        "min_new_tokens",
        "stop",
        "ignore_eos",
        "include_stop_str_in_output",
    ):
        for part in ("sampling_params", "val_sampling_params"):
            asked[f"algorithm.{part}.{name}"] = getattr(getattr(algorithm, part), name) != getattr(usual, name)
    if wrong := [key for key, given in asked.items() if given]:
        raise ConfigError(
            f"{', '.join(wrong)}: for texts alone, and {config.env.train.target} takes no text",
            f"choose an env of texts, e.g. env=math, or leave out {', '.join(wrong)}",
        )
