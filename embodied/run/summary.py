"""The tables of a run: its derived numbers, printed before it starts, and where it left its results."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from embodied import schema
from embodied.learn.cloning import Cloner
from embodied.learn.ranks.sides import Learner
from embodied.lib.words import counted
from embodied.parallel.group import Group
from embodied.protocols import Policy, SaysWhatItReads
from embodied.run.build.given import ConfiguredEnv, Sides
from embodied.run.build.model_reward import ModelReward
from embodied.run.build.policy import Model, Sizes
from embodied.run.build.shares import slots_of, workers_of
from embodied.run.evaluation.conditions import Conditions, conditions, episode_count, limit_of
from embodied.run.folder.beside.exports import FOLDER as EXPORTS
from embodied.run.folder.beside.reports import FILE as REPORT
from embodied.runtime.plan import states_of_training, tasks_and_starts
from embodied.runtime.slab import slab_bytes
from embodied.schema.compose.compose import Composed


def of_training(
    composed: Composed, sides: Sides, processes: Group, model: Model, sizes: Sizes, trainer: Learner, folder: Path,
    judge: ModelReward | None = None,
) -> list[list[str]]:  # fmt: skip
    """Makes the summary's rows of derived numbers for reinforcement learning.

    Args:
        judge: the reward model, if there is one.
    """
    config, train = composed.config, sides.train
    algorithm, actor, held_out = config.algorithm, config.actor, config.protocol.held_out_states
    chunk = model.policy.spec.num_action_chunks
    slots, words = processes.of("rollout").divide(train.config.total_num_envs), train.kind.words
    episodes = f"{sizes.episodes} = {sizes.groups} {words.starts} × {algorithm.group_size}"
    return [
        ["tasks", tasks_and_starts(train.spec, held_out, words.starts)],
        [f"{words.episodes} per iteration", f"{episodes}{_extra(algorithm, train, sizes, held_out)}"],
        *_length(train, chunk),
        [
            "optimizer steps per iteration",
            f"at most {sizes.optimizer_steps}, each of {actor.global_batch_size} {words.records}",
        ],
        [
            "gradient accumulation",
            f"{counted(-(-actor.global_batch_size // actor.micro_batch_size), 'part')} of at most "
            f"{actor.micro_batch_size}",
        ],
        *_randomised(train),
        *_evaluations(config, sides.eval, model, folder),
        *_followed(composed),
        *_process_lines(processes, model),
        *_slot_lines(config, processes, sizes, train, slots),
        *_policy_lines(composed, model.policy),
        *([["reward model", _described(judge)]] if judge else []),
        ["device", f"{model.device}, {_threads(config)}, {_peak(trainer, config)}"],
        ["run folder", str(folder)],
    ]


def of_cloning(
    composed: Composed, sides: Sides, processes: Group, model: Model, cloner: Cloner, folder: Path
) -> list[list[str]]:  # fmt: skip
    """Makes the summary's rows of derived numbers for supervised training."""
    config, batch = composed.config, cloner.config.actor.global_batch_size
    steps = config.sft.steps_per_iteration
    total, iterations = config.runner.max_epochs * steps * batch, counted(config.runner.max_epochs, "iteration")
    told = dict.fromkeys(one.instruction for one in cloner.episodes)
    kind, samples = sides.train.kind, f"{len(cloner.samples)} chunks of {model.policy.spec.num_action_chunks} actions"
    return [
        ["demonstrations", ", ".join(config.data.train_data_paths)],
        *kind.demonstrated(len(cloner.episodes), len(told), len(cloner.held_out), samples),
        [
            "optimizer steps",
            f"{iterations} of {steps}, {counted(batch, 'sample')} each",
        ],
        ["passes over the data", f"{total / len(cloner.samples):.1f}"],
        *_process_lines(processes, model),
        *(note.split(": ", 1) for note in cloner.notes),
        *_evaluations(config, sides.eval, model, folder),
        *_followed(composed),
        *_policy_lines(composed, model.policy),
        ["device", f"{model.device}, {_threads(config)}"],
        ["run folder", str(folder)],
        *kind.not_demonstrated(sides.eval.spec.tasks, told),
    ]


def of_evaluation(
    composed: Composed, side: ConfiguredEnv, processes: Group, model: Model, sizes: Sizes, folder: Path
) -> list[list[str]]:  # fmt: skip
    """Makes the summary's rows of derived numbers for an evaluation alone."""
    config = composed.config
    under = conditions(config, side, model.policy, folder, 0)
    chunk, episodes = model.policy.spec.num_action_chunks, episode_count(config, side)
    replaced = config.runner.ckpt_path is not None
    return [
        [
            "evaluated",
            under.weights + (" (its weights replace those that the policy was built with)" if replaced else ""),
        ],
        [side.kind.words.episodes, f"{episodes}{_by_task(side, episodes, under)}, {under.starts}"],
        *_perturbed(side, episodes),
        *_followed(composed),
        *side.kind.lengths(under.limit, under.max_steps, chunk, episodes * (1 + len(side.conditions))),
        ["reward", f"{under.reward_mode} × {under.reward_coef:g}{', changes of it' if under.use_rel_reward else ''}"],
        *([["processes", f"{processes.size}"]] if processes.size > 1 else []),
        *_slot_lines(config, processes, sizes, side, slots_of(config, processes)),
        ["policy", _described(model.policy)],
        *map(list, composed.head),
        ["device", f"{model.device}, {_threads(config)}"],
        ["run folder", str(folder)],
    ]


def of_answers(
    composed: Composed, side: ConfiguredEnv, processes: Group, counts: object, sizes: Sizes, folder: Path
) -> list[list[str]]:  # fmt: skip
    """Makes the summary's rows of derived numbers for an evaluation of answers in a file.

    Args:
        counts: how many there are, in words.
    """
    config = composed.config
    return [
        ["evaluated", f"{config.runner.answers}: {counts}"],
        *_followed(composed),
        *_slot_lines(config, processes, sizes, side, slots_of(config, processes)),
        ["run folder", str(folder)],
    ]


def places(
    trackers: Sequence[str], sides: Sides, folder: Path, checkpoints: Sequence[Path] = ()
) -> list[list[str]]:  # fmt: skip
    """Makes the final table of where a run's results are, as far as they exist; of ``checkpoints``, oldest
    first, the last.

    Args:
        trackers: their names.
    """
    rows = [["run folder", str(folder)]]
    if "jsonl" in trackers and (folder / "metrics.jsonl").exists():
        rows.append(["metrics", str(folder / "metrics.jsonl")])
    if _holds(folder / "tensorboard"):
        rows.append(["TensorBoard", f"tensorboard --logdir {shlex.quote(str(folder / 'tensorboard'))}"])
    if (folder / REPORT).exists():
        rows.append(["report", str(folder / REPORT)])
    if _holds(folder / "eval"):
        rows.append(["evaluations", str(folder / "eval")])
    if _holds(folder / "generations"):
        rows.append(["texts of evaluations", str(folder / "generations")])
    if checkpoints and _holds(checkpoints[-1]):
        rows.append(["checkpoint", str(checkpoints[-1])])
        if (exported := folder / EXPORTS / checkpoints[-1].name).exists():
            rows.append(["exported", str(exported)])
    for side in sides:
        videos = side.config.video_cfg
        if videos.records and _holds(Path(videos.video_base_dir)):
            rows.append([f"videos ({side.name})", videos.video_base_dir])
    return rows


def _holds(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def ending(last: int, iterations: int, steps: int = 0, evaluated: bool = True) -> str:
    """Formats the last line of a training: how far it has come, and how to resume it.

    Args:
        last: iterations of the whole run.
        steps: optimizer steps of the next iteration that are done.
        evaluated: False if the last iteration still has to be evaluated.
    """
    more = f" and {counted(steps, 'optimizer step')} of the next" if steps else ""
    more += "" if evaluated else ", the last one not evaluated"
    done = f"{counted(iterations, 'iteration')} done"
    if iterations < last or not evaluated:
        return f"stopped: {done}{more}. The same command goes on from here."
    return f"{done}. The same command with a larger runner.max_epochs goes on from here."


def _process_lines(processes: Group, model: Model) -> list[list[str]]:
    """Says how many processes there are, and how they share the policy; nothing of one process."""
    size, train, hosts = processes.size, processes.of("train"), processes.of("rollout")
    if not processes.is_split:
        return [["processes", f"{size}, {model.sharding}"]] if size > 1 else []
    held = f", {model.sharding}" if train.here else ""
    return [["processes", f"{size}: {_named(hosts)} collect, {_named(train)} train{held}"]]


def _named(group: Group) -> str:
    return f"{', '.join(map(str, group.members))} ({group.size})"


def _evaluations(config: schema.Config, side: ConfiguredEnv, model: Model, folder: Path) -> list[list[str]]:
    """Returns when a training evaluates, and under which conditions."""
    interval = config.runner.val_check_interval
    if interval <= 0:
        return []
    under, count = conditions(config, side, model.policy, folder, 0), episode_count(config, side)
    episodes = f"{count} {side.kind.words.episodes}{_by_task(side, count, under)}"
    often = "iteration" if interval == 1 else f"{interval} iterations"
    when, length = f"every {often} and at the end", side.kind.length(under.limit, under.max_steps)
    return [
        ["evaluation", f"{when}: {episodes}{f', each {length}' if length else ''}"],
        *_perturbed(side, count),
    ]


def _by_task(side: ConfiguredEnv, count: int, under: Conditions) -> str:
    """Says how many episodes each task has, where all have equally many."""
    tasks, each = len(side.spec.tasks), under.episodes_per_task
    named = counted(tasks, "task")
    return f" = {named} × {each}" if count == tasks * each else f" of {named}"


def _length(side: ConfiguredEnv, chunk: int) -> list[list[str]]:
    """Says how long an episode of a training is at most."""
    rows = side.kind.lengths(f"at most {side.max_steps} control steps", side.max_steps, chunk)
    return [[name, text + limit_of(side)] for name, text in rows]


def _perturbed(side: ConfiguredEnv, episodes: int) -> list[list[str]]:
    """Says how many episodes of an evaluation are perturbed; nothing if none is."""
    count = len(side.conditions)
    return [["perturbed episodes", f"{count * episodes} more = {count} conditions × {episodes}"]] if count else []


def _randomised(side: ConfiguredEnv) -> list[list[str]]:
    """Says what perturbs the groups of a training; nothing if nothing does."""
    perturb, count = side.config.perturb, len(side.conditions)
    if perturb is None:
        return []
    return [["perturbations", f"each group has one of {count} conditions, {perturb.unperturbed:.0%} of them none"]]


def _followed(composed: Composed) -> list[list[str]]:
    """Returns which keys of env.eval have the value that the command line gave env.train."""
    keys = composed.follows
    return [["env.eval as env.train", f"{', '.join(keys)} (env.eval.KEY=VALUE sets another)"]] if keys else []


def _slot_lines(
    config: schema.Config, processes: Group, sizes: Sizes, side: ConfiguredEnv, slots: int
) -> list[list[str]]:  # fmt: skip
    hosts = processes.of("rollout")
    each = " in each process" if hosts.size > 1 else ""
    observation = (f"{name} {field.dtype}{list(field.shape)}" for name, field in side.spec.obs.items())
    return [
        ["env slots, workers", f"{slots}, {workers_of(side, config, slots, hosts)}{each}"],
        ["observation", ", ".join(observation)],
        *(map(list, side.env.reads().items()) if isinstance(side.env, SaysWhatItReads) else ()),
        ["slab", f"{sizes.rows} records, {slab_bytes(sizes.fields, sizes.rows) / 2**20:.1f} MiB{each}"],
    ]


def _policy_lines(composed: Composed, policy: Policy) -> list[list[str]]:
    """Returns what the policy says of itself, and the checkpoint whose weights replaced its first ones."""
    rows = [["policy", _described(policy)], *map(list, composed.head)]
    if (checkpoint := composed.config.runner.ckpt_path) is not None:
        rows.append(["starts from the weights of", checkpoint])
    return rows


def _described(network: Policy | ModelReward) -> str:
    return ", ".join(f"{name} {fact}" for name, fact in network.describe().items())


def _threads(config: schema.Config) -> str:
    training = config.actor.num_threads
    return f"{config.runner.num_threads} threads" + ("" if training is None else f", {training} in training")


def _peak(trainer: Learner, config: schema.Config) -> str:
    peak, setting = trainer.peak_flops, config.runner.peak_tflops
    if peak is None:
        return "no MFU (runner.peak_tflops is null)"
    return f"peak {peak / 1e12:.3g} TFLOP/s ({'measured' if setting == 'measure' else 'runner.peak_tflops'})"


def _extra(algorithm: schema.AlgorithmConfig, side: ConfiguredEnv, sizes: Sizes, held_out: int) -> str:
    """Says what an iteration may run beside its plan; all of it fits into the same rows."""
    texts = []
    if algorithm.dynamic_sampling:
        refills = algorithm.max_sampling_rounds - 1
        texts.append(f"at most {refills} refills of groups without a gradient, into the rows of those")
    if algorithm.adv_type == "remax":
        starts = sizes.groups if side.config.use_fixed_reset_state_ids else sizes.episodes
        texts.append(f"{starts} greedy episodes, whose records are not kept")
    if algorithm.adv_type == "start_value":
        texts.append(_remembered(algorithm.start_value.half_life, side, sizes, held_out))
    return "".join(f"; {text}" for text in texts)


def _remembered(half_life: float | None, side: ConfiguredEnv, sizes: Sizes, held_out: int) -> str:
    """Says after how many iterations a start comes again, and what is remembered of it by then."""
    drawn = sizes.groups if side.config.use_fixed_reset_state_ids else sizes.episodes
    if {*side.spec.num_init_states} == {1}:
        return "no start comes again, as seeds draw them: start_value remembers what tasks are worth, not starts"
    again = max(sum(states_of_training(side.spec, held_out)) / drawn, 1)
    text = f"a start comes again after about {again:.3g} iterations"
    if half_life is not None and again > 2 * half_life:
        text += f", and little is remembered then: set algorithm.start_value.half_life to {again:.0f} or more"
    return text
