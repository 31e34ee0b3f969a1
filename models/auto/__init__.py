"""Chooses the model for an env: ``model=auto``. It builds no policy."""

from __future__ import annotations

from typing import Any

from embodied.errors import ConfigError
from embodied.types import ContinuousAction, EnvSpec, TextAction

WRITERS = (
    "choose a model that writes: model=causal_lm with actor.model.model_path=FOLDER of a checkpoint, model=smollm2, "
    "whose weights a package brings, or model=causal_lm_tiny, which begins at random and learns from demonstrations"
)


def reads() -> str:
    """Returns what a policy reads, for the page of models."""
    return "what the env gives"


class ByEnv:
    """Chooses by what the env gives and takes. See :class:`embodied.protocols.ChoosesModel`.

    Args:
        pictures: name of the model for envs with pictures and actions of several numbers.
        state: name of the model for other envs that have a state.
        keys: those of the model that is chosen; they do not matter for the choice.
    """

    def __init__(self, pictures: str, state: str, **keys: Any) -> None:
        self._pictures, self._state = pictures, state

    def model_for(self, env: EnvSpec) -> str:
        """Returns the name of the model. Raises :class:`ConfigError` for an env that takes text, or for which there is
        no model."""
        if isinstance(env.action, TextAction):
            raise ConfigError("model=auto chooses between models of robots, and the env takes text", WRITERS)
        if "images" in env.obs and isinstance(env.action, ContinuousAction):
            return self._pictures
        if "state" in env.obs:
            return self._state
        lacks = (
            "takes one of several actions and has no state" if "images" in env.obs else "has no pictures and no state"
        )
        raise ConfigError(
            f"model=auto: the env {lacks}, and no model of this library fits it",
            "map a state (env=gym: env.train.state), or write a policy (docs/how_to/add_a_policy.md)",
        )
