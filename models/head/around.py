"""Policies of a frozen base and a head: built by :func:`around_base`, and to the outside policies like any other.

    base in this process:   act ─▶ base.act ─▶ actor
    base that answers later: ask ─▶ base.ask … base.answers ─▶ actor ─▶ answers

The base is none of what is trained or saved. A checkpoint keeps how it is built and what identifies it; around another
policy the head is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied.errors import unknown_name
from embodied.protocols import CHUNK, AnswersLater, NamesWeights, Policy
from embodied.types import EnvSpec, PolicySpec, Sampling

from .base import check_state, make_base, state_of
from .files import open_head
from .latent import Latent
from .policy import TASK, HeadPolicy
from .residual import FRONT, Residual

HEADS = ("residual", "noise")
"""Values of ``actor.model.head`` that need a base."""
OF_HEADS = ("head", "residual_scale", "noise_bound", "noise_width")
"""Arguments of :func:`around_base` that are not those of :class:`HeadPolicy`."""


class HeadAround(HeadPolicy):
    """An actor with critics around a frozen policy.

    Args:
        head: makes actions of what base and actor say.
        num_action_chunks: K, actions that are executed of each decision; None = all that the base answers with.
        others: as of :class:`HeadPolicy`.
    """

    # Demonstrations do not say what the base would have done: no embodied.protocols.Clonable.
    encode_actions: Any = None

    def __init__(self, head: Residual | Latent, num_action_chunks: int | None = None, **others: Any) -> None:
        super().__init__(num_action_chunks=1 if num_action_chunks is None else num_action_chunks, **others)
        self._as_base = num_action_chunks is None
        self.head: Residual | Latent = head
        self.folder_of_base: str | None = None  # the exported folder that it lies in
        self._checked = False  # against what the head was exported with

    @property
    def base(self) -> Any:
        """The frozen policy."""
        return self.head.base

    def __deepcopy__(self, memo: dict[int, Any]) -> HeadAround:
        """Copies the head alone: nothing changes the base."""
        memo[id(self.base)] = self.base
        memo[id(self)] = copied = self.__class__.__new__(self.__class__)
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    @property
    def reads_actions(self) -> bool:
        """See :attr:`embodied.protocols.ReadsDemonstrations.reads_actions`: no action tells its noise."""
        return not isinstance(self.head, Latent)

    def train(self, mode: bool = True) -> HeadAround:
        """Sets the mode of the head; the base stays in that of evaluations."""
        super().train(mode)
        self.base.eval()
        return self

    def bind(self, env: EnvSpec) -> None:
        """See :meth:`embodied.protocols.Policy.bind`: base and head."""
        self.base.bind(env)
        if self._as_base:
            self._chunk = self.base.spec.num_action_chunks
        super().bind(env)
        if self._saved is not None and not self._checked:
            check_state(self.base, env, self._saved.extra)
            self._checked = True

    def _make(self, env: EnvSpec, state: tuple[int, ...], pictures: tuple[int, ...]) -> None:
        super()._make(env, state, pictures)
        with torch.no_grad():  # the mean is zero, and so is the greedy change
            self.actor.out.weight.zero_()
            self.actor.out.bias.zero_()

    @property
    def spec(self) -> PolicySpec:
        """See :attr:`embodied.protocols.Policy.spec`."""
        return replace(super().spec, random_weights=self.base.spec.random_weights)

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        """See :meth:`embodied.protocols.Policy.encode_instructions`: the base's fields have :data:`FRONT` before
        their names."""
        told = self.base.encode_instructions(texts)
        return {**super().encode_instructions(texts), **{f"{FRONT}{name}": field for name, field in told.items()}}

    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        """See :meth:`embodied.protocols.Policy.probe`: the base looks."""
        told = {name.removeprefix(FRONT): field for name, field in obs.items() if name.startswith(FRONT)}
        return self.base.probe({**{name: f for name, f in obs.items() if not name.startswith(FRONT)}, **told})

    def again(self, model_path: str, base: Any = None) -> HeadAround:
        """Builds this policy with the weights of the folder ``model_path``, around the policy ``base``."""
        return around(base, {name: value for name, value in self.keys.items() if name != "base"}, model_path)

    def extra_state(self) -> Mapping[str, str]:
        """See :meth:`embodied.protocols.HasExtraState.extra_state`: what identifies the base, and its own state."""
        return {} if self._env is None else state_of(self.base, self._env)

    def load_extra_state(self, found: Mapping[str, str]) -> None:
        """See :meth:`embodied.protocols.HasExtraState.load_extra_state`.

        Raises:
            PolicyChangedError: the base is another policy than the one that the head was trained on.
        """
        if self._env is not None:
            check_state(self.base, self._env, found)

    def describe(self) -> Mapping[str, str]:
        """See :meth:`embodied.protocols.Policy.describe`."""
        told = {f"base: {name}": fact for name, fact in self.base.describe().items()}
        return {**super().describe(), "model": "a head around a frozen policy", **told}


@dataclass(frozen=True)
class _Asked:
    """What the head needs of an observation whose base has not answered yet; a batch of one."""

    obs: Mapping[str, Tensor]  # fields that the actor reads, [1, …]
    noise: Tensor  # float32 [1, N]
    sampling: Sampling
    chosen: Mapping[str, Tensor] | None = None  # chunk and log-probs, if the base was asked with the chunk


class HeadAroundLater(HeadAround):
    """A head around a base that answers later: an :class:`embodied.protocols.AnswersLater`, too.

    Each answer is computed alone, so that it does not depend on which others came with it.
    """

    def __init__(self, head: Residual | Latent, num_action_chunks: int | None = None, **others: Any) -> None:
        super().__init__(head, num_action_chunks, **others)
        self._asked: dict[int, _Asked] = {}

    def ask(
        self, number: int, obs: Mapping[str, np.ndarray], instruction: str, noise: np.ndarray, sampling: Sampling,
        place: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """See :meth:`embodied.protocols.AnswersLater.ask`."""
        device = self.low.device
        seen = {name: torch.from_numpy(np.array(obs[name]))[None].to(device) for name in self._reads if name in obs}
        if TASK in self._reads:
            told = super(HeadAround, self).encode_instructions([instruction])
            seen |= {name: field.to(device) for name, field in told.items()}
        drawn = torch.from_numpy(np.array(noise, np.float32))[None]
        chosen = None
        if isinstance(self.head, Latent):
            with torch.no_grad():
                chunk, logprobs = self.choose(seen, {}, drawn.to(device), sampling)
            chosen, of_base = {CHUNK: chunk, "logprobs": logprobs}, self.head.base_noise(chunk)
        else:
            of_base = self.head.base_noise(drawn[:, : self.head.noise_size])
        self._asked[number] = _Asked(seen, drawn.to(device), sampling, chosen)
        self.base.ask(number, obs, instruction, of_base[0].cpu().numpy(), replace(sampling, do_sample=False), place)

    @torch.no_grad()
    def answers(self, timeout_s: float) -> Sequence[tuple[int, Mapping[str, np.ndarray]]]:
        """See :meth:`embodied.protocols.AnswersLater.answers`."""
        found = []
        for number, decision in self.base.answers(timeout_s):
            if (asked := self._asked.pop(number, None)) is None:
                continue
            actions = torch.from_numpy(decision["actions"])[None].to(self.low.device)
            if isinstance(self.head, Latent):
                assert asked.chosen is not None
                fields: Mapping[str, Tensor] = {**asked.chosen, "actions": self.head.given(actions)}
            else:
                own = self.head.given(actions)
                fields = self.decide(asked.obs, own, asked.noise, asked.sampling).fields
            found.append((number, {name: field[0].cpu().numpy() for name, field in fields.items()}))
        return found

    def forget(self, number: int) -> None:
        """See :meth:`embodied.protocols.AnswersLater.forget`."""
        self._asked.pop(number, None)
        self.base.forget(number)

    def check(self) -> None:
        """See :meth:`embodied.protocols.AnswersLater.check`."""
        self.base.check()

    def weights(self) -> Mapping[str, str]:
        """See :meth:`embodied.protocols.NamesWeights.weights`: those of the base, which are elsewhere."""
        return self.base.weights() if isinstance(self.base, NamesWeights) else {}


def around_base(
    *, base: Mapping[str, Any] | None = None, head: str = "residual", residual_scale: float | Sequence[float] = 0.1,
    noise_bound: float = 2.0, noise_width: int | None = None, num_action_chunks: int | None = None,
    hidden: int = 256, layers: int = 2, critics: int = 2,
    critic_layer_norm: bool = True, pictures: bool = False, picture_width: int = 64, picture_side: int | None = None,
    state_low: Sequence[float] | None = None, state_high: Sequence[float] | None = None, temperature: float = 1.0,
    seed: int = 0, model_path: str | None = None,
) -> HeadAround:  # fmt: skip
    """Builds a head around a frozen policy.

    Args:
        base: the policy: ``url`` of its server and other keys of :func:`embodied.models.served.build_policy`; or
            ``folder`` of its checkpoint, run or export; or ``_target_`` and the keys of what builds it. None = the one
            that lies in ``model_path``.
        head: residual = a bounded change of the base's actions; noise = that with which a flow policy begins.
        residual_scale: the largest change, in halves of the range of the actions: one number, or one for each
            dimension; 0 leaves a dimension, such as a gripper, to the base.
        noise_bound: of head=noise: the largest noise, in standard deviations. More reaches further from what the base
            does by itself; from 2 to 3 it still knows what to make of it.
        noise_width: of head=noise: numbers that the actor chooses and that are repeated until they fill the base's
            noise, e.g. those of one action; None = all of it. A small number learns faster.
        num_action_chunks: K, actions that are executed of each decision; None = all that the base answers with.
        hidden: numbers of a hidden layer of actor and critics.
        layers: their hidden layers.
        critics: E.
        critic_layer_norm: normalise the numbers of the critics' hidden layers (arXiv 2302.02948).
        pictures: read the pictures, too.
        picture_width: numbers that the encoder makes of them.
        picture_side: pixels of a side to which they are averaged first; None = they are read as they are.
        state_low, state_high: bounds of the state [S], which are read as −1 and 1; None = the state as it is.
        temperature: weight of the entropy at first.
        seed: of the first weights.
        model_path: folder of an exported head, whose weights it begins with; None = made at random.

    Raises:
        CheckpointError: ``model_path`` holds no head, or is damaged.
        ConfigError: a value that cannot be.
    """
    if head not in HEADS:
        raise unknown_name("head", head, HEADS, "actor.model.head")
    keys = {
        "head": head, "residual_scale": residual_scale, "noise_bound": noise_bound, "noise_width": noise_width,
        "num_action_chunks": num_action_chunks, "hidden": hidden, "layers": layers, "critics": critics,
        "critic_layer_norm": critic_layer_norm, "pictures": pictures, "picture_width": picture_width,
        "picture_side": picture_side, "state_low": state_low, "state_high": state_high, "temperature": temperature,
        "seed": seed,
    }  # fmt: skip
    within = None if model_path is None else open_head(model_path).base
    if within is not None and not any(value is not None for value in (base or {}).values()):
        base = {"folder": within}
    else:
        within = None
    if head == "noise" and base is not None and base.get("url") is not None and base.get("_target_") is None:
        base = {**base, "send_noise": True}
    made = around(make_base(base), keys, model_path)
    made.keys = {**made.keys, "base": base}
    made.folder_of_base = within
    return made


def around(frozen: Policy, keys: Mapping[str, Any], model_path: str | None) -> HeadAround:
    """Builds a head around a policy that is built already. Arguments are those of :func:`around_base`.

    Raises:
        CheckpointError, ConfigError: as :func:`around_base`.
    """
    own = {name: _plain(value) for name, value in keys.items()}
    head, scale, bound, width = (own.pop(name) for name in OF_HEADS)
    made = Residual(frozen, scale) if head == "residual" else Latent(frozen, bound, width)
    kind = HeadAroundLater if isinstance(frozen, AnswersLater) else HeadAround
    policy = kind(made, **own, model_path=model_path)
    policy.keys = {name: _plain(value) for name, value in keys.items()}
    return policy


def _plain(value: Any) -> Any:
    """A sequence as a list of numbers, which JSON holds."""
    return [*value] if isinstance(value, Sequence) and not isinstance(value, str) else value
