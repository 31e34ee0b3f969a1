"""A small actor with critics, from an env's state or pictures: what soft actor-critic trains.

    state, pictures ─▶ read ─▶ actor: tanh(N(mean, std²)) ─▶ chunk ─▶ head ─▶ actions
                        └────────────┬──────────────────────┘
                                     └─▶ E critics ─▶ what the chunk is worth

The state is scaled by fixed bounds, if there are any (``state_low``, ``state_high``); nothing is measured while it
learns, so a state means the same number in every record of a replay buffer. A sentence of one of several tasks is read
as a fixed random vector. Pictures go through a small encoder that learns with the critics alone; the actor reads what
it gives, too.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied.errors import ConfigError, SpecMismatchError
from embodied.protocols import BASE, CHUNK, Critics, Examples, Exported
from embodied.types import (
    ArraySpec,
    ContinuousAction,
    Decision,
    EnvSpec,
    Evaluation,
    Noise,
    PolicySpec,
    Sampling,
)

from . import squashed
from .bounds import bounds_of, plain
from .files import HeadFolder, open_head
from .from_scratch import FromScratch, Head
from .network import Actor, Ensemble, Judges, Pictures

HEADS: Mapping[str, type[Any]] = {"from_scratch": FromScratch}
"""``actor.model.head`` → class of the head."""
FORMATS = {"hf": "a head: actor and critics as safetensors, and its base if that is ours"}
TASK = "task"
WORDS = 16  # numbers of the vector of a sentence
ROUNDING = 1e-4  # share of the range by which an action may lie beyond it
ROWS = 64  # sentences that have a vector of their own


class HeadPolicy(nn.Module):
    """An actor with E critics (:class:`embodied.protocols.ActorCritic`). Its layers are made when it is bound to its
    first env.

    Args:
        head: what a chunk of the actor is (:data:`HEADS`): from_scratch = the actions themselves.
        num_action_chunks: K, actions of a decision.
        hidden: numbers of a hidden layer of actor and critics.
        layers: their hidden layers.
        critics: E.
        critic_layer_norm: normalise the numbers of the critics' hidden layers (arXiv 2302.02948).
        pictures: read the pictures, too.
        picture_width: numbers that the encoder makes of them.
        picture_side: pixels of a side to which they are averaged first: 16 in place of 64 takes a sixteenth of the
            time; null = they are read as they are.
        state_low, state_high: bounds of the state [S], which are read as −1 and 1; null = the state as it is.
        temperature: weight of the entropy at first.
        seed: of the first weights.
        model_path: folder of an exported head, whose weights it begins with; null = made at random.

    Raises:
        CheckpointError: ``model_path`` holds no head, or is damaged.
        ConfigError: a size that is no whole number above 0, or an unknown head.
    """

    export_formats = FORMATS  # see embodied.protocols.Exports
    low: Tensor
    width: Tensor
    words: Tensor

    def __init__(
        self, head: str = "from_scratch", num_action_chunks: int = 1, hidden: int = 256, layers: int = 2,
        critics: int = 2, critic_layer_norm: bool = True, pictures: bool = False, picture_width: int = 64,
        picture_side: int | None = None, state_low: Sequence[float] | None = None,
        state_high: Sequence[float] | None = None, temperature: float = 1.0, seed: int = 0,
        model_path: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        sizes = {
            "num_action_chunks": num_action_chunks, "hidden": hidden, "layers": layers, "critics": critics,
            "picture_width": picture_width, "picture_side": 1 if picture_side is None else picture_side,
        }  # fmt: skip
        for name, value in sizes.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"actor.model.{name} is {value!r}, expected a whole number from 1", f"change actor.model.{name}"
                )
        if head not in HEADS:
            raise ConfigError(
                f"actor.model.head is {head!r}, which is no head", f"set actor.model.head to one of {', '.join(HEADS)}"
            )
        if not (math.isfinite(temperature) and temperature > 0):
            raise ConfigError(
                f"actor.model.temperature is {temperature!r}, expected a number above 0", "set it, e.g. to 1.0"
            )
        self.keys: Mapping[str, Any] = {  # that build it again
            "head": head, **sizes, "picture_side": picture_side, "critic_layer_norm": critic_layer_norm,
            "pictures": pictures, "state_low": plain(state_low), "state_high": plain(state_high),
            "temperature": temperature, "seed": seed,
        }  # fmt: skip
        self._saved: HeadFolder | None = None if model_path is None else open_head(model_path)
        self._chunk, self._sizes, self._seed = num_action_chunks, (hidden, layers), seed
        self._ensemble, self._picture_width = (critics, critic_layer_norm), picture_width if pictures else 0
        self._picture_side = picture_side
        self._bounds = bounds_of(state_low, state_high)
        self._made_for: tuple[Any, ...] | None = None
        self._env: EnvSpec | None = None  # the first one
        self._tasks: Sequence[str] = ()
        self._uniform = False
        self._reads: Sequence[str] = ()
        self.head: Head = HEADS[head]()
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        for name in ("low", "width", "words"):
            self.register_buffer(name, torch.zeros(0), persistent=False)

    # -- what the env has --------------------------------------------------------------------------------------------

    def bind(self, env: EnvSpec) -> None:
        """See :meth:`embodied.protocols.Policy.bind`. Raises :class:`SpecMismatchError`: the env takes no numbers, has
        nothing that this policy reads, or has other sizes than the one before."""
        if not isinstance(env.action, ContinuousAction):
            raise SpecMismatchError(
                "the env does not take actions of several numbers, and this policy gives no others",
                "choose another env, or another model: model=mlp chooses one of N actions",
            )
        state, pictures = (env.obs[name].shape if name in env.obs else () for name in ("state", "images"))
        pictures = pictures if self._picture_width else ()
        if not state and not pictures:
            raise SpecMismatchError(
                "the env has no state, and this policy reads nothing else",
                "set actor.model.pictures=true, or map a state (env=gym: env.train.state)",
            )
        self.head.bind(env, self._chunk)
        sizes = (state, pictures, self.head.chunk_size)
        if self._made_for is None:
            self._make(env, state, pictures)
            if self._saved is not None:
                self._saved.fill(self)
            self._made_for, self._env = sizes, env
        elif sizes != self._made_for:
            raise SpecMismatchError(
                f"the env has state, pictures and numbers of a chunk {sizes}; the policy was made for {self._made_for}",
                "give env.train and env.eval the same observations and actions, or train a policy of its own",
            )
        self._tasks = env.tasks

    def _make(self, env: EnvSpec, state: tuple[int, ...], pictures: tuple[int, ...]) -> None:
        device, (hidden, layers) = self.low.device, self._sizes
        numbers = state[0] if state else 0
        low, high = self._bounds or ([-1.0] * numbers, [1.0] * numbers)
        if len(low) != numbers:
            raise SpecMismatchError(
                f"the env has a state of {numbers} numbers, and actor.model.state_low and state_high have {len(low)}",
                "give one bound for each number of the state, or set both to null",
            )
        self.low, self.width = torch.tensor(low), (torch.tensor(high) - torch.tensor(low)) / 2
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            self.words = torch.randn(ROWS if len(env.tasks) > 1 else 0, WORDS)
            read = numbers + self.head.base_size + (self._picture_width if pictures else 0)
            read += WORDS if len(self.words) else 0
            self.actor = Actor(read, self.head.chunk_size, hidden, layers)
            count, layer_norm = self._ensemble
            ensemble = Ensemble(read + self.head.chunk_size, count, hidden, layers, layer_norm)
            encoder = Pictures(pictures, self._picture_width, self._picture_side) if pictures else None
            self.critic = Judges(ensemble, encoder)
        with torch.no_grad():
            self.actor.out.weight *= 0.1  # at first chunks are about uniform, and hardly depend on what is read
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        found = {"state": numbers, "images": pictures, TASK: len(self.words), BASE: self.head.base_size}
        self._reads = tuple(name for name, size in found.items() if size)
        self.to(device)

    @property
    def spec(self) -> PolicySpec:
        if self._made_for is None:
            raise SpecMismatchError("the policy has no sizes yet", "call bind(env.spec) first")
        size, shape = self.head.chunk_size, (self._chunk, self.head.action_dim)
        decision = {
            CHUNK: ArraySpec((size,), "float32"), "actions": ArraySpec(shape, "float32"),
            "logprobs": ArraySpec((size,), "float32"), **self.head.fields,
        }  # fmt: skip
        noise = self.head.noise_size
        return PolicySpec(
            self._chunk, decision, self.head.elements, Noise((noise + size,), "normal", greedy=noise), entropy=False,
            distribution=False, random_weights=True, sampling=(),
        )  # fmt: skip

    # -- acting ------------------------------------------------------------------------------------------------------

    def encode_instructions(self, texts: Sequence[str]) -> Mapping[str, Tensor]:
        if not len(self.words):
            return {}
        known = {text: row % ROWS for row, text in reversed([*enumerate(self._tasks)])}
        return {TASK: torch.tensor([known.get(text, zlib.crc32(text.encode()) % ROWS) for text in texts])}

    def probe(self, obs: Mapping[str, Tensor]) -> Sequence[str]:
        """Reports nothing: weights of this network leave nothing open."""
        return ()

    @torch.no_grad()
    def act(self, obs: Mapping[str, Tensor], noise: Tensor, sampling: Sampling) -> Decision:
        own = self.head.begin(obs, noise[:, : self.head.noise_size])
        return self.decide(obs, own, noise, sampling)

    def decide(
        self, obs: Mapping[str, Tensor], own: Mapping[str, Tensor], noise: Tensor, sampling: Sampling
    ) -> Decision:  # fmt: skip
        """Decides as :meth:`act` does.

        Args:
            own: what the head's ``begin`` has computed.
        """
        chunk, logprobs = self.choose(obs, own, noise, sampling)
        actions = self.head.actions(obs, chunk, own)
        fields = {name: own[name] for name in self.head.fields}
        return Decision({CHUNK: chunk, "actions": actions, "logprobs": logprobs, **fields})

    def choose(
        self, obs: Mapping[str, Tensor], own: Mapping[str, Tensor], noise: Tensor, sampling: Sampling
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Chooses chunks; returns them and their log-probs, float32 [B, D] each. Arguments as of :meth:`decide`."""
        first = self.head.noise_size
        mean, log_std = self.actor(self._read({**obs, **own}, self.critic))
        if not sampling.do_sample:
            chunk = mean.tanh()
        elif self._uniform:
            chunk = squashed.uniform(noise[:, first:])
        else:
            chunk, _ = squashed.draw(mean, log_std, noise[:, first:])
        return chunk, squashed.log_density(chunk, mean, log_std)  # as evaluate() has it, which sees rounded chunks

    def evaluate(
        self, records: Mapping[str, Tensor], sampling: Sampling, distribution: bool = False
    ) -> Evaluation:  # fmt: skip
        mean, log_std = self.actor(self._read(records, self.critic))
        return Evaluation(squashed.log_density(records[CHUNK], mean, log_std))

    def explore(self, uniform: bool) -> None:
        """See :meth:`embodied.protocols.ActorCritic.explore`."""
        self._uniform = uniform

    # -- learning ----------------------------------------------------------------------------------------------------

    def reads(self) -> Sequence[str]:
        """See :meth:`embodied.protocols.ActorCritic.reads`."""
        return self._reads

    @property
    def critics(self) -> int:
        """E, the number of critics."""
        return self._ensemble[0]

    def prepare(self, records: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See :meth:`embodied.protocols.ActorCritic.prepare`."""
        encoder = self.critic.pictures
        return records if encoder is None else {**records, "images": encoder.averaged(records["images"])}

    def propose(self, records: Mapping[str, Tensor], noise: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`embodied.protocols.ActorCritic.propose`."""
        mean, log_std = self.actor(self._read(records, self.critic))
        chunks, logprobs = squashed.draw(mean, log_std, noise)
        return chunks, logprobs.sum(-1)

    def judge(self, records: Mapping[str, Tensor], chunks: Tensor, critics: Critics = "learning") -> Tensor:
        """See :meth:`embodied.protocols.ActorCritic.judge`."""
        judges, learning = (self.target if critics == "target" else self.critic), critics == "learning"
        return judges.ensemble(torch.cat([self._read(records, judges, learning), chunks], -1), learning)

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        """See :meth:`embodied.protocols.ActorCritic.follow`."""
        torch._foreach_lerp_([*self.target.parameters()], [*self.critic.parameters()], rate)

    def targets(self) -> Mapping[str, Tensor]:
        """See :meth:`embodied.protocols.ActorCritic.targets`."""
        return {name: parameter.detach() for name, parameter in self.target.named_parameters()}

    def _read(self, records: Mapping[str, Tensor], judges: Judges, learning: bool = False) -> Tensor:
        """Joins what is read: float32 [B, S]. Args: ``judges``: whose encoder reads pictures, with ``learning`` also to
        get a gradient."""
        parts = []
        if "state" in self._reads:
            state = records["state"].float()
            parts.append(state if self._bounds is None else (state - self.low) / self.width - 1)
        if judges.pictures is not None:
            parts.append(judges.look(records["images"], learning))
        if len(self.words):
            parts.append(self.words[records[TASK].long()])
        if self.head.base_size:
            parts.append(records[BASE])
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    # -- demonstrations, exports, counting ---------------------------------------------------------------------------

    def encode_actions(self, actions: Tensor) -> Mapping[str, Tensor]:
        """Encodes actions [B, K, A] as chunks float32 [B, D]."""
        return {CHUNK: self.chunks_of(actions, {})[0]}

    def chunks_of(self, actions: Tensor, records: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """See :meth:`embodied.protocols.ReadsDemonstrations.chunks_of`."""
        wanted = self.head.chunk(actions, records)
        beyond = wanted.abs() > 1 + ROUNDING
        return wanted.clamp(-1, 1), beyond.unflatten(1, (self._chunk, -1)).any(-1)

    def export(
        self, kind: str, folder: Path, dtype: str, examples: Examples, options: Mapping[str, Any]
    ) -> Exported:  # fmt: skip
        """Writes the policy in one of the export formats. See :meth:`embodied.protocols.Exports.export`."""
        from .export import export_head

        assert kind in self.export_formats
        assert self._env is not None, "bind(env) comes first"
        return export_head(self, self._env, folder, dtype, examples, options)

    def again(self, model_path: str, base: Any = None) -> Any:
        """Builds this policy with the weights of the folder ``model_path``. ``base``: see :mod:`.around`."""
        return HeadPolicy(**self.keys, model_path=model_path)

    @property
    def reads_actions(self) -> bool:
        """See :attr:`embodied.protocols.ReadsDemonstrations.reads_actions`."""
        return True

    def flops(self, records: Mapping[str, np.ndarray], training: bool) -> np.ndarray:
        """Counts the actor's FLOPs when it acts. Those of an update are critics' as well: one pass of theirs and of the
        actor, three times for its gradients."""
        weights = sum(p.numel() for p in self.actor.parameters() if p.ndim == 2)
        if training:
            weights += sum(p.numel() for p in self.critic.ensemble.weights)
        return np.full(len(records[CHUNK]), 2.0 * weights * (3 if training else 1))

    def describe(self) -> Mapping[str, str]:
        counts = {part: sum(p.numel() for p in getattr(self, part).parameters()) for part in ("actor", "critic")}
        told = {f"parameters of the {part}": str(count) for part, count in counts.items()}
        return {"model": "actor and critics", "critics": str(self._ensemble[0]), **told}
