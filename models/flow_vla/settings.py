"""Keys under ``actor.model`` that this model takes: their defaults and their checks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from embodied.errors import unknown_name

from ..shared.bits import check_quantization
from ..shared.keys import AdapterKeys, as_tuple, bad, check_known
from .network.sizes import LAYOUTS, Sizes, StreamSizes, TowerSizes

TRUNK = re.compile(r"^model\.(vision|projector|embed_tokens|trunk_norm|layers\.\d+\.trunk)\.")
"""Parameters in front of the expert, which train_expert_only freezes."""
STATE = re.compile(r"^model\.state_proj\.")
"""Leads the state in. SmolVLA's stands in front of the trunk, and its gradient would go through it."""
SCHEDULES = ("linear", "exp", "ones", "zeros")  # see .sampling.guidance
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
EXPERT = ("expert", "expert_norm", "action_in_proj", "action_out_proj", "time_mlp_in", "time_mlp_out", "noise_head")
"""Modules that are trained in full beside adapters of the trunk."""


@dataclass(frozen=True)
class Settings(AdapterKeys):
    """Keyword arguments of :func:`build_policy`, checked. ``null`` means the folder's own."""

    # folder of LeRobot or openpi on this machine, or package:NAME/FOLDER; null = random weights of the sizes below
    model_path: str | None = None
    layout: str | None = None  # smolvla, pi0 or pi05; null = the folder's
    tokenizer_path: str | None = None  # tokenizer.json, where the folder has none; null = the folder's, else bytes
    # data set whose statistics count; null = those without a name; demonstrations = those that are cloned next
    statistics_key: str | None = None
    # cameras of the env by name, in the order of the folder's places for pictures; null = all, in the env's order
    cameras: Sequence[str] | None = None
    seed: int = 0  # of random weights, adapters and heads
    precision: str = "fp32"  # of the arithmetic and of frozen weights: fp32, bf16 or fp16; trained weights are float32
    action_horizon: int | None = None  # H, actions that are denoised together
    num_action_chunks: int = 4  # K, actions that are executed; at most H
    num_steps: int = 4  # denoising steps while acting for training, N
    eval_steps: int | None = None  # denoising steps of the ODE in an evaluation; null = num_steps
    # where a chain is random: flow_sde (its noise keeps the ODE's distributions), flow_noise (a standard deviation that
    # is learned), or noise_policy (the noise that the ODE begins with: a small head chooses it, all else is frozen, and
    # an update makes no pass over the network)
    noise_method: str = "flow_sde"
    noise_steps: str = "one"  # one random step a chunk, or all
    noise_level: float | None = 0.5  # a of flow_sde; null with noise_policy
    noise_range: Sequence[float] = (0.08, 0.16)  # least and largest standard deviation of flow_noise
    # real-time chunking, where a server's client brings the rest of the chunk before: how its weight falls along the
    # chunk: linear, exp, ones or zeros
    rtc_schedule: str = "exp"
    rtc_max_weight: float = 10.0  # real-time chunking: largest weight of the guidance
    # real-time chunking: the derivative goes through the network, as in the paper (arXiv 2506.07339); LeRobot leaves it
    # out
    rtc_jacobian: bool = False
    # how states and actions are normalised after demonstrations: mean_std, quantiles or min_max
    normalization: str = "quantiles"
    max_prompt_length: int | None = None  # tokens; a longer prompt is refused
    state_in_prompt: bool = True  # π0.5: false for a folder that was trained on instructions without the state
    # sizes of random weights
    image_size: int = 64  # pixels of a side of the square picture
    patch_size: int = 16  # pixels of a side of a patch, which is one token
    vision_hidden_size: int = 64  # width of the vision tower
    vision_intermediate_size: int = 128  # width of its MLPs
    vision_num_layers: int = 2  # its layers
    vision_heads: int | None = None  # of the tower; needed for folders whose tower is none that was released
    hidden_size: int = 96  # of the trunk
    intermediate_size: int = 192  # of the trunk's MLPs
    expert_hidden_size: int = 96  # width of the expert, which denoises
    expert_intermediate_size: int = 192  # of the expert's MLPs
    num_hidden_layers: int = 4  # of trunk and expert
    num_attention_heads: int = 4  # of trunk and expert
    num_key_value_heads: int = 2  # of trunk and expert: keys and values that several heads share
    head_dim: int | None = None  # numbers of a head; needed for a SmolVLA folder whose VLM is none that was released
    state_width: int = 32  # numbers that a state is padded to
    action_width: int = 32  # numbers that an action is padded to
    # what is trained
    train_expert_only: bool = True  # the tower and the trunk keep their bits, and no gradient is computed in them
    # the projection of SmolVLA's state is trained beside a frozen trunk, as LeRobot does. Its token stands in front of
    # the trunk, so each update then goes back through the trunk, which costs about one more pass of it
    train_state_proj: bool = False
    # the trunk's frozen layers in 8 or 4 bits (int8 a row, NF4); null = as precision
    quantization_bit: int | None = None
    is_lora: bool = False  # adapters on the trunk
    lora_rank: int = 32  # rank of the adapters
    lora_alpha: float | None = None  # null = min(rank, 16)
    lora_dropout: float = 0.0  # share of the adapters' inputs that training drops
    lora_target_modules: str | Sequence[str] | None = None  # endings of names; null or all-linear = the trunk's layers
    # name endings of modules that are trained in full besides
    lora_modules_to_save: str | Sequence[str] | None = None
    lora_path: str | None = None  # peft folder to start the adapters from, such as lora_adapter of a saved policy
    lora_init_weights: bool | str = True  # true (B = 0), gaussian, or false (random, for tests)
    lora_use_rslora: bool = False  # scale by the root of the rank
    lora_rank_pattern: Mapping[str, int] | None = None  # other ranks by name pattern
    lora_alpha_pattern: Mapping[str, float] | None = None  # other scales by name pattern
    trainable_map: Mapping[str, bool] | None = None  # name prefix → train it or not
    freeze_pattern: str | Sequence[str] | None = None  # regular expressions of names to freeze; has the last word
    # a value of the trunk's last hidden state (with noise_policy of what its head reads), for algorithm.adv_type=gae
    value_head: bool = False
    value_type: str = "chunk_level"  # one value a chunk, or action_level: one an action
    gradient_checkpointing: bool = False  # recompute each layer in the backward pass
    torch_compile: bool = False  # compile each layer; the first calls of a run then take minutes
    # the same for acting alone, beside learning and scoring; null = as torch_compile
    torch_compile_acting: bool | None = None
    torch_compile_backend: str = "inductor"  # or any name from torch._dynamo.list_backends()

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any]) -> Settings:
        """Makes settings and checks them. Raises UnknownKeyError or ConfigError, naming the key."""
        check_known(kwargs, [f.name for f in fields(cls)])
        settings = cls(**kwargs)
        settings.check()
        return settings

    def check(self) -> None:
        """Refuses values that are wrong for every folder."""
        for key, choices in CHOICES.items():
            if (value := getattr(self, key)) not in choices:
                known = [str(choice) for choice in choices if choice is not None]
                raise unknown_name(key, str(value), known, f"actor.model.{key}")
        for key in COUNTS:
            value = getattr(self, key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise bad(key, value, "it counts something", "set it to a whole number of at least 1")
        self._check_types()
        self._check_noise()
        self.check_lora()
        check_quantization(self, self.compiles, frozen=self.is_lora or self.train_expert_only)
        for pattern in as_tuple(self.freeze_pattern):
            try:
                re.compile(pattern)
            except re.error as error:
                raise bad("freeze_pattern", pattern, f"not a regular expression: {error}", "correct it") from error

    def _check_types(self) -> None:
        ends = self.noise_range if isinstance(self.noise_range, Sequence) else [self.noise_range]
        numbers = {"noise_level": [self.noise_level], "noise_range": ends, "rtc_max_weight": [self.rtc_max_weight]}
        for key, values in numbers.items():
            usual = int | float | None if key == "noise_level" else int | float
            if any(isinstance(v, bool) or not isinstance(v, usual) or v == math.inf for v in values):
                raise bad(key, getattr(self, key), "it is no number", "set it to a number (noise_range: to two)")
        if self.rtc_max_weight <= 0:
            raise bad("rtc_max_weight", self.rtc_max_weight, "without a weight nothing is guided", "set it above 0")
        for key in ("model_path", "tokenizer_path", "statistics_key"):
            if not isinstance(value := getattr(self, key), str | None):
                raise bad(key, value, "it is no text", "put it into quotes")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise bad("seed", self.seed, "seeds are whole numbers", "set it to 0 or more")
        if self.model_path is None and self.statistics_key is not None:
            reason = "it names statistics of a folder, and model_path is null"
            raise bad("statistics_key", self.statistics_key, reason, "remove the key")
        names = self.cameras
        if names is None:
            return
        if isinstance(names, str) or not isinstance(names, Sequence) or not names or len({*names}) < len(names):
            reason = "it lists different cameras of the env"
            raise bad("cameras", names, reason, "set it to a list such as [front, wrist], or null for all cameras")

    def check_horizon(self, horizon: int) -> None:
        """Refuses to execute more actions than are denoised."""
        if self.num_action_chunks > horizon:
            reason = f"a chunk has {horizon} actions (action_horizon)"
            raise bad("num_action_chunks", self.num_action_chunks, reason, f"set it to {horizon} or less")

    def check_state(self, place: str) -> None:
        """Refuses to leave the state out of a prompt in which it does not stand."""
        if not self.state_in_prompt and place != "text":
            reason = "the state stands in a token of its own, and not in the prompt"
            raise bad("state_in_prompt", False, reason, "remove the key; it is one of pi05")

    def _check_noise(self) -> None:
        if self.steers:
            self._check_steering()
        elif self.noise_level is None or not (math.isfinite(self.noise_level) and self.noise_level > 0):
            reason = "a chain without noise has no log-probs, hence nothing to learn from"
            raise bad("noise_level", self.noise_level, reason, "set it above 0, e.g. 0.5; an evaluation has no noise")
        ends = self.noise_range if isinstance(self.noise_range, Sequence) else ()
        low, high = ends if len(ends) == 2 else (0.0, 0.0)
        if not 0 < low < high:
            reason = "the standard deviation lies between its two numbers, and 0 has no log-probs"
            raise bad("noise_range", self.noise_range, reason, "set two numbers above 0, the smaller first")

    def _check_steering(self) -> None:
        """Refuses keys that mean nothing where a head chooses the first noise of a frozen policy."""
        for field in fields(self):
            name, value, usual = field.name, getattr(self, field.name), field.default
            reason = NOT_STEERING.get(name, FROZEN if name.startswith("lora_") else None)
            pair = isinstance(usual, tuple) and isinstance(value, Sequence)
            same = (tuple(value) if pair else value) in (usual, None)
            if reason is not None and not same:
                shown = "null" if name in ("noise_level", "trainable_map") else usual
                raise bad(name, value, f"with noise_method noise_policy {reason}", f"set it to {shown}")

    @property
    def steers(self) -> bool:
        """Whether a small head chooses the first noise of a frozen policy."""
        return self.noise_method == "noise_policy"

    @property
    def reads_out(self) -> bool:
        """Whether a value head reads the trunk's last layer."""
        return self.value_head and not self.steers

    @property
    def acts_compiled(self) -> bool:
        """Whether ``act`` runs compiled layers."""
        return self.torch_compile if self.torch_compile_acting is None else self.torch_compile_acting

    @property
    def compiles(self) -> bool:
        """Whether any call runs compiled layers."""
        return self.torch_compile or self.acts_compiled

    @property
    def values(self) -> int:
        """Values of a decision."""
        return self.num_action_chunks if self.value_type == "action_level" else 1

    def _check_divided(self) -> None:
        """Refuses sizes of random weights that do not divide each other."""
        heads = self.num_attention_heads
        parts = {
            "hidden_size": heads if self.head_dim is None else 1, "num_attention_heads": self.num_key_value_heads,
            "vision_hidden_size": self.vision_heads or 4, "expert_hidden_size": 2,
        }  # fmt: skip
        for key, part in parts.items():
            if getattr(self, key) % part:
                raise bad(key, getattr(self, key), f"{part} parts do not divide it", f"set it to a multiple of {part}")
        if (self.head_dim or self.hidden_size // heads) % 2:
            reason = "a head's numbers are rotated in pairs"
            raise bad("head_dim", self.head_dim, reason, "set it to an even number, as hidden_size / heads is")

    def random_sizes(self, vocab: int) -> Sizes:
        """Sizes of a network with random weights.

        Args:
            vocab: ids of the tokenizer.
        """
        heads = self.num_attention_heads
        self._check_divided()
        tower = TowerSizes(
            self.vision_hidden_size, self.vision_intermediate_size, self.vision_num_layers, self.vision_heads or 4,
            self.patch_size, self.image_size // self.patch_size,
        )  # fmt: skip
        layout = self.layout or "pi0"
        return Sizes(
            layout, tower, StreamSizes(self.hidden_size, self.intermediate_size),
            StreamSizes(self.expert_hidden_size, self.expert_intermediate_size), self.num_hidden_layers, heads,
            self.num_key_value_heads, self.head_dim or self.hidden_size // heads, vocab,
            self.action_horizon or self.num_action_chunks, self.image_size,
            cross_every=2 if layout == "smolvla" else 0, norm_eps=1e-5 if layout == "smolvla" else 1e-6,
            state_width=self.state_width, action_width=self.action_width, read_out=self.reads_out,
        )  # fmt: skip


FROZEN, NO_NOISE = "nothing is trained but its head", "no step of a chain is random"
NOT_STEERING = {
    "train_expert_only": FROZEN, "train_state_proj": FROZEN, "is_lora": FROZEN, "trainable_map": FROZEN,
    "noise_steps": NO_NOISE, "noise_level": NO_NOISE, "noise_range": NO_NOISE,
}  # fmt: skip
"""Keys that mean nothing with noise_policy, like those of adapters, and why."""
CHOICES: Mapping[str, Sequence[Any]] = {
    "layout": (None, *LAYOUTS),
    "precision": ("fp32", "bf16", "fp16"),
    "noise_method": ("flow_sde", "flow_noise", "noise_policy"),
    "noise_steps": ("one", "all"),
    "normalization": ("mean_std", "quantiles", "min_max"),
    "value_type": ("chunk_level", "action_level", "token_level", "sequence_level"),
    "value_head": (True, False),
    "state_in_prompt": (True, False),
    "rtc_schedule": SCHEDULES,
    "rtc_jacobian": (True, False),
    "train_expert_only": (True, False),
    "train_state_proj": (True, False),
    "is_lora": (True, False),
    "lora_init_weights": (True, False, "gaussian"),
    "gradient_checkpointing": (True, False),
    "torch_compile": (True, False),
    "torch_compile_acting": (True, False, None),
}
COUNTS = (
    "action_horizon", "num_action_chunks", "num_steps", "eval_steps", "max_prompt_length", "image_size", "patch_size",
    "vision_hidden_size", "vision_intermediate_size", "vision_num_layers", "vision_heads", "hidden_size",
    "intermediate_size", "expert_hidden_size", "expert_intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "state_width", "action_width", "lora_rank",
)  # fmt: skip
