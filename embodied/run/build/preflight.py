"""Checks of a configuration before anything starts: they need no torch, no simulator and no worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from embodied import schema
from embodied.errors import CheckpointError, ConfigError, broken, refuse
from embodied.lib.files import checkpoint_near
from embodied.lib.targets import arguments_of
from embodied.observe.trackers.services import check_installed
from embodied.parallel.group import Group
from embodied.protocols import Batched, HasProgressFeatures, JudgesAtEnd, SafeStop, SaysHowLong
from embodied.run.build import brought, engine_process, model_for_env, perturbations, shares
from embodied.run.build.demonstrations import Demonstrated, read_beside
from embodied.run.build.given import Checked, ConfiguredEnv, Sides
from embodied.run.build.sides import make_side
from embodied.run.build.workers.hosts import check_hosts
from embodied.run.build.workers.worker_memory import with_workers
from embodied.run.folder.folder import check_writable
from embodied.runtime.plan import states_of_training
from embodied.runtime.pool.file_limit import allow
from embodied.schema.compose.compose import Composed


class Rules:
    """Checks a configuration rule by rule, in order; each rule raises :class:`EmbodiedError` if it is broken.

    Call a rule before taking the next: which rules follow depends on the sides that could be made. After one that has
    raised come all that can still be asked (:func:`embodied.errors.broken`).

    Args:
        machine: ask the envs whether this machine can run them, which takes seconds.
    """

    def __init__(self, composed: Composed, processes: Group, machine: bool = True) -> None:
        self._machine = machine
        self.composed, self.config, self.processes = composed, composed.config, processes
        self.sides: dict[str, ConfiguredEnv] = {}  # those that were made
        self._keys_known = False  # no class is made whose keys are not
        self.demonstrated = Demonstrated((), ())

    def __iter__(self) -> Iterator[Callable[[], object]]:
        config, processes = self.config, self.processes
        yield self._check_keys
        yield partial(_check_selftest, config.runner)
        yield partial(check_installed, config.runner.logger.logger_backends)
        yield partial(shares.check, config, processes)
        for name, wanted in (("train", config.env.train), ("eval", config.env.eval)) if self._keys_known else ():
            yield partial(self._make_side, name, wanted)
        if self.sides and not config.runner.task.records and config.runner.answers is None:
            yield self._settle_model
            config = self.config
        yield partial(brought.check, self.composed, self.sides)
        train, evaluation = self.sides.get("train"), self.sides.get("eval")
        if train and evaluation:
            yield partial(_check_same, train, evaluation)
            yield partial(self._choose_workers, Sides(train, evaluation))
            config = self.config
        if train:
            yield partial(train.kind.check_keys, config)
        if train and evaluation:
            yield partial(check_held_out, config, train, evaluation)
        for side in self.sides.values():
            yield partial(shares.check_queues, side, config, processes)
            yield partial(check_deadline, side, config)
            yield partial(check_safe_stop, side, config)
            yield partial(check_judging, side)
            yield partial(check_hosts, side, config, processes)
            yield partial(shares.check_stages, side, config, processes)
            yield partial(perturbations.check, config, side)
        if train:
            yield partial(check_penalty, config, train)
            yield partial(check_start_sampling, config, train)
            yield partial(check_progress_features, train)
            yield partial(check_interventions, config, train)
            yield partial(check_resets, config, train)
        if train and evaluation:
            yield partial(shares.check_lanes, config, train, evaluation)
        yield partial(engine_process.check, config, processes)
        if config.reward.use_reward_model:
            yield partial(schema.target_kwargs, config.reward.model, "reward.model")
        yield partial(_check_checkpoint, config.runner.ckpt_path)
        yield partial(check_writable, Path(config.runner.logger.log_path))
        for name, side in self.sides.items():
            if side.config.video_cfg.records:
                folder = Path(side.config.video_cfg.video_base_dir)
                key = f"env.{name}.video_cfg.video_base_dir (or hydra.run.dir, where all relative folders begin)"
                yield partial(check_writable, folder, "the folder of videos", key)
        if train and config.runner.task.supervised:
            yield partial(self._read_demonstrations, train)
        elif train and config.algorithm.learner == "sac" and not config.runner.only_eval:
            yield partial(check_demonstrated_share, config, train)
            yield partial(self._read_beside, train)
        if train and evaluation:
            yield lambda: allow(shares.open_files(config, Sides(train, evaluation), processes))
        if self._machine:
            yield from self.of_machine()

    def of_machine(self) -> Iterator[Callable[[], object]]:
        """Asks the envs of the sides whether this machine can run them: in one of its processes, as all share what it
        offers."""
        if self.processes.local_rank == 0:
            for env in {side.identity: side.env for side in self.sides.values()}.values():
                yield env.preflight

    @property
    def checked(self) -> Checked:
        """The checked configuration, once all rules have passed."""
        return Checked(self.composed, self.sides["train"], self.sides["eval"], self.processes, self.demonstrated)

    def _check_keys(self) -> None:
        schema.check_target_keys(self.composed.resolved)
        self._keys_known = True

    def _make_side(self, name: str, wanted: schema.EnvSideConfig) -> None:
        self.sides[name] = make_side(name, wanted)

    def _settle_model(self) -> None:
        name = "eval" if self.config.runner.only_eval and "eval" in self.sides else next(iter(self.sides))
        self.composed = model_for_env.settled(self.composed, self.sides[name])
        self.config = self.composed.config

    def _choose_workers(self, sides: Sides) -> None:
        self.config = with_workers(self.config, sides, self.processes)
        self.composed = replace(self.composed, config=self.config)

    def _read_demonstrations(self, train: ConfiguredEnv) -> None:
        self.demonstrated = train.kind.read_demonstrations(self.config, train.spec, train.kwargs)

    def _read_beside(self, train: ConfiguredEnv) -> None:
        if self.config.algorithm.replay.demonstrations and train.kind.has_steps:
            self.demonstrated = read_beside(self.config, train.spec, train.kwargs)


def check(composed: Composed, processes: Group) -> Checked:
    """Checks everything that needs no torch, simulator or worker; the machine last, as its answers take seconds.

    Raises:
        EmbodiedError: the first rule that is broken, with the others.
    """
    rules = Rules(composed, processes, machine=False)
    refuse(broken(rules))
    refuse(broken(rules.of_machine()))
    return rules.checked


def _check_selftest(runner: schema.RunnerConfig) -> None:
    if runner.selftest and (not runner.only_eval or runner.answers is not None):
        raise ConfigError(
            "selftest=true evaluates a policy several times, and this command does something else",
            "run python -m embodied.eval … selftest=true, without answers=",
        )


def _check_same(train: ConfiguredEnv, evaluation: ConfiguredEnv) -> None:
    if train.spec.obs != evaluation.spec.obs or train.spec.action.field(1) != evaluation.spec.action.field(1):
        raise ConfigError(
            "env.train and env.eval offer different observations: "
            f"{dict(train.spec.obs)} and {dict(evaluation.spec.obs)}",
            "give both sides the same cameras and sizes (env.train.init_params, env.eval.init_params)",
        )


def _check_checkpoint(path: str | None) -> None:
    if path is not None and not (Path(path) / "meta.json").is_file():
        raise CheckpointError(
            f"no checkpoint at {path} (no meta.json)",
            f"set runner.ckpt_path to the folder of one checkpoint, e.g. {checkpoint_near(Path(path))}",
        )


def check_held_out(config: schema.Config, *sides: ConfiguredEnv) -> None:
    """Refuses ``protocol.held_out_states`` that leave a task without initial states to train from. Raises
    :class:`ConfigError`."""
    held_out = config.protocol.held_out_states
    for side in sides if held_out else ():
        side.kind.refuse_texts(ConfigError(
            f"protocol.held_out_states is {held_out}, and {side.config.target} takes text",
            "leave it out: evaluations of texts have problems of their own (data.val_data_paths)",
        ))  # fmt: skip
        few = [count for count in side.spec.num_init_states if 1 < count <= held_out]
        if few:
            raise ConfigError(
                f"protocol.held_out_states is {held_out}, and a task of env.{side.name} has {min(few)} initial states",
                f"set protocol.held_out_states to {min(few) - 1} or less",
            )


def check_penalty(config: schema.Config, side: ConfiguredEnv) -> None:
    """Refuses a length penalty that every episode of robots would get. Raises :class:`ConfigError`."""
    penalty = config.reward.overlong_penalty
    if not side.kind.has_steps:
        return  # it counts tokens, and how many there may be the policy says
    if penalty.enable and penalty.buffer_length > side.max_steps and not config.runner.only_eval:
        raise ConfigError(
            f"reward.overlong_penalty.buffer_length {penalty.buffer_length} is more than the {side.max_steps} control "
            "steps of an episode: every episode would be penalised",
            f"set reward.overlong_penalty.buffer_length to {side.max_steps} or less",
        )


def check_start_sampling(config: schema.Config, side: ConfiguredEnv) -> None:
    """Refuses a choice between starts where there is one. Raises :class:`ConfigError`."""
    states = states_of_training(side.spec, config.protocol.held_out_states)
    if config.data.start_sampling == "informative" and sum(states) == 1:
        raise ConfigError(
            "data.start_sampling informative chooses between tasks and their initial states, and env.train has one "
            "task with one state; its episodes differ by seeds, of which none comes again",
            "set data.start_sampling=even, or choose an env with several tasks or initial states",
        )


def check_progress_features(side: ConfiguredEnv) -> None:
    """Refuses ``reward_mode=own_successes`` of an env that does not say where things are. Raises
    :class:`ConfigError`."""
    if side.config.reward_mode != "own_successes" or isinstance(side.env, HasProgressFeatures):
        return
    key = f"env.{side.name}.progress_features"
    mend = f"set {key} to what says where things are, e.g. {key}=[obs]"
    if "progress_features" not in arguments_of(side.config.target, f"env.{side.name}._target_"):
        mend = "give it num_progress_features and progress_features(self) (embodied.protocols.HasProgressFeatures)"
    raise ConfigError(
        f"env.{side.name}.reward_mode is own_successes, and {side.config.target} offers no progress_features",
        f"{mend}; or set env.{side.name}.reward_mode=sparse",
    )


def check_interventions(config: schema.Config, side: ConfiguredEnv) -> None:
    """Refuses interventions of a human where what he did would be learnt from as if the policy had decided it. Raises
    :class:`ConfigError`."""
    learns = config.runner.task.by_rewards and not config.runner.only_eval
    if side.spec.interventions and learns and config.algorithm.learner != "sac":
        raise ConfigError(
            "a human may override the actions of env.train (EnvSpec.interventions), and algorithm.learner is "
            f"{config.algorithm.learner}: a policy gradient learns from what the policy has drawn itself",
            "set algorithm=sac, which learns from what was executed, whoever chose it",
        )


def check_resets(config: schema.Config, side: ConfiguredEnv) -> None:
    """Refuses resets beside an update of an env whose slots are stepped together. Raises :class:`ConfigError`."""
    if config.algorithm.sac.reset_beside_update and isinstance(side.env, Batched):
        raise ConfigError(
            f"algorithm.sac.reset_beside_update is true, and {side.config.target} hosts all slots of a worker in one "
            "simulator, where no slot is reset apart from the others",
            "leave algorithm.sac.reset_beside_update out",
        )


def check_demonstrated_share(config: schema.Config, side: ConfiguredEnv) -> None:
    """Refuses a share of demonstrations where there can be none. Raises :class:`ConfigError`."""
    replay = config.algorithm.replay
    if replay.demonstrated_share and not replay.demonstrations and not side.spec.interventions:
        raise ConfigError(
            f"algorithm.replay.demonstrated_share is {replay.demonstrated_share:g}, and there are no demonstrations: "
            f"algorithm.replay.demonstrations is empty, and {side.config.target} tells no interventions",
            "set algorithm.replay.demonstrations=[PATH], or leave algorithm.replay.demonstrated_share out",
        )


def check_deadline(side: ConfiguredEnv, config: schema.Config) -> None:
    """Refuses a deadline that a slow step would miss: its worker would be taken for one that hangs."""
    if isinstance(side.env, SaysHowLong) and side.env.longest_step_s >= config.env.step_timeout_s:
        raise ConfigError(
            f"a step of env.{side.name} may take {side.env.longest_step_s:.0f} s (its verifiers), and "
            f"env.step_timeout_s is {config.env.step_timeout_s:g}",
            f"set env.step_timeout_s={2 * side.env.longest_step_s:.0f}, or shorten the verifiers' time limits",
        )


def check_judging(side: ConfiguredEnv) -> None:
    """Refuses to cut episodes off before it is judged whether they succeeded. A training that is paid for progress may
    be. Raises :class:`ConfigError`."""
    learns_by_progress = side.name == "train" and side.config.reward_mode == "dense"
    whole = side.spec.max_episode_steps
    if (
        isinstance(side.env, JudgesAtEnd)
        and side.env.judges_at_end
        and side.max_steps < whole
        and not learns_by_progress
    ):
        raise ConfigError(
            f"env.{side.name}.max_episode_steps cuts episodes off at {side.max_steps} of {whole} control steps, and "
            f"env.{side.name}.success is judged at their end: none would ever be solved",
            f"set env.{side.name}.max_episode_steps=null, which is the env's own limit",
        )


def check_safe_stop(side: ConfiguredEnv, config: schema.Config) -> None:
    """Refuses a robot that nothing could stop before its worker is killed."""
    if side.spec.retry_safe:
        return
    if not isinstance(side.env, SafeStop):
        raise ConfigError(
            f"{side.config.target} is a robot (EnvSpec.retry_safe is False) and has no safe_stop(): a worker that "
            "hangs would be killed while the robot moves",
            "give it safe_stop(self), which brings the robot to a stand from another process "
            "(embodied.protocols.SafeStop); of a simulator, say retry_safe=True",
        )
    if config.env.start_method == "forkserver":
        raise ConfigError(
            f"env.start_method is {config.env.start_method}, and {side.config.target} is a robot (EnvSpec.retry_safe "
            "is False): forked workers end with their server, without a safe stop",
            "set env.start_method=spawn",
        )
