"""The sides of a run, ``env.train`` and ``env.eval``, with what their envs offer. Needs no torch and no simulator."""

from __future__ import annotations

from embodied import schema
from embodied.errors import ConfigError, EmbodiedError
from embodied.protocols import Env
from embodied.run.build.action_kind import kind_of
from embodied.run.build.given import ConfiguredEnv


def make_side(name: str, side: schema.EnvSideConfig) -> ConfiguredEnv:
    """Constructs the env of a configured side, without building a simulator, and reads what it offers.

    Args:
        name: of the side, for messages.

    Raises:
        ConfigError: its target cannot be imported or does not take the keys, a task has no initial state, or
            ``perturb`` names what its conditions do not have.
    """
    kwargs = schema.target_kwargs(side, f"env.{name}")
    try:
        env: Env = schema.load_target(side.target, f"env.{name}._target_")(**kwargs)
    except EmbodiedError as error:
        raise _of_side(error, name)  # noqa: B904 (it is the same error)
    spec = env.spec
    if not spec.tasks or min(spec.num_init_states) < 1:
        raise ConfigError(
            f"env.{name} offers {len(spec.tasks)} tasks with num_init_states {list(spec.num_init_states)}",
            f"choose tasks with at least one initial state: the keys of {side.target} under env.{name}",
        )
    kind = kind_of(spec)
    steps = kind.max_steps(side.max_episode_steps or spec.max_episode_steps, spec.max_episode_steps)
    conditions = tuple(schema.conditions_of(side.perturb, f"env.{name}.perturb"))
    return ConfiguredEnv(name, side, kwargs, env, spec, steps, conditions, kind)


def _of_side(error: EmbodiedError, name: str) -> EmbodiedError:
    """Names the side's own keys in an env's error: an env knows no side, and says ``env.train``."""
    if "env.eval." not in str(error):
        error.message, error.remedy = (
            text.replace("env.train.", f"env.{name}.") for text in (error.message, error.remedy)
        )
    return error
