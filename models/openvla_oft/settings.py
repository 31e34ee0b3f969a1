"""Keys under ``actor.model`` that this model takes: their defaults and their checks."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from embodied.errors import ConfigError, UnknownKeyError, did_you_mean, unknown_name

from ..shared.bits import check_quantization
from ..shared.keys import AdapterKeys, as_tuple, bad, check_known
from .files.shapes import TowerHints
from .network.config import DEAD_TARGETS, GRIPPERS, PRESETS, RELEASED_TARGETS, NetConfig, check_sizes, resize_towers

# Names of robots in the RLinf documents → their gripper convention.
SETUP_ALIASES = {"widowx_bridge": "bridge", "panda-qpos": "libero"}
OF_ENV = ("num_images_in_input", "use_proprio", "proprio_dim", "action_dim")
"""Keys that may be null in a configuration: :mod:`.for_env` then says them. Without an env the values below hold."""
Pair = tuple[int | None, int | None]  # one number for DINOv2's tower, one for SigLIP's


@dataclass(frozen=True)
class Settings(AdapterKeys):
    """Keyword arguments of :func:`build_policy`, checked. ``null`` for a size means the preset's or the
    checkpoint's."""

    size: str | None = "tiny"  # preset: tiny or 7b; null = whatever the checkpoint has
    # Hugging Face folder on this machine, or package:NAME/FOLDER of one in an installed package; null = random
    model_path: str | None = None
    model_revision: str | None = None  # revision of a hub checkpoint; nothing is downloaded, so it has to be null
    seed: int = 0  # seed of random initialisation: network, adapters, value head
    # format of arithmetic and frozen weights: fp32, bf16 or fp16; trained weights are always float32. With fp16 the
    # trainer scales the loss (actor.grad_scaler)
    precision: str = "fp32"
    image_size: int | Sequence[int] | None = None  # pixels, 64 or [64, 64]
    patch_size: int | None = None  # pixels
    vision_hidden_size: int | None = None  # width of both towers
    # layers of the towers as in a checkpoint, one number or two; the last layer is never run
    vision_num_layers: int | Sequence[int] | None = None
    # heads of the towers, one number or two; needed for a checkpoint without policy.json whose towers are not released
    vision_num_attention_heads: int | Sequence[int] | None = None
    vocab_size: int | None = None  # padding rows not counted; the last 256 ids are the action tokens
    hidden_size: int | None = None  # width of the language model
    intermediate_size: int | None = None  # width of the language model's feed-forward layers
    num_hidden_layers: int | None = None  # layers of the language model
    num_attention_heads: int | None = None  # attention heads of each of these layers
    # sizes of the language model by these names, as in a checkpoint's text_config, e.g. {hidden_size: 96}
    override_config: Mapping[str, Any] | None = None
    # bidirectional or causal: a property of the checkpoint, and the wrong one ruins it silently; auto = as recorded
    # with the checkpoint, else chosen by the first observations of a run
    attention: str = "bidirectional"
    attn_implementation: str = "sdpa"  # or eager, or flash_attention_2 if that package is installed
    decoding: str = "parallel"  # or autoregressive: OpenVLA before OFT, one token after the other
    max_prompt_length: int = 128  # tokens of an instruction with its prompt; a longer one is refused
    probe: bool = True  # test a checkpoint on the first observations and warn if it cannot be right
    stop_token: bool = True  # </s> behind the action placeholders; a property of the checkpoint
    num_images_in_input: int = 1  # cameras read, in the env's order; null = all
    use_proprio: bool = False  # one token of robot state; null = if the env has one
    use_film: bool = False  # the instruction modulates the vision towers (OFT+)
    proprio_dim: int = 8  # length of the robot state; null = the env's, or the checkpoint's
    action_dim: int = 7  # numbers of an action, A; null = the env's, or the checkpoint's
    num_action_chunks: int = 8  # actions of a chunk, K
    center_crop: bool = False  # keep the middle 90 % of the picture's area, as OFT's own evaluation does
    image_preset: str = "rlinf"  # how pictures are resized, to 8 bits: rlinf (bicubic) or oft_libero (Lanczos)
    policy_setup: str = "none"  # gripper: libero (1 closes), bridge (1 opens), none (unchanged)
    unnorm_key: str | None = None  # which dataset statistics; null = the only ones there are, auto = by the env's suite
    # statistics of actions and state that become −1 and 1: bounds_q99 (quantiles) or bounds (minimum and maximum);
    # auto = as recorded with the checkpoint, else OFT's choice by action dimensions (14: bounds, 7: bounds_q99);
    # without a checkpoint bounds_q99
    action_normalization: str = "auto"
    # the language model's frozen layers in 8 or 4 bits (int8 a row, NF4); null = as precision. Only with is_lora
    quantization_bit: int | None = None
    is_lora: bool = False  # train adapters and heads; false = all weights
    lora_rank: int = 32  # rank of the adapters
    lora_alpha: float | None = None  # null = min(rank, 16), as released
    lora_dropout: float = 0.0  # share of the adapters' inputs that training drops
    lora_target_modules: str | Sequence[str] | None = (
        None  # name endings; null or all-linear = the released adapters' list
    )
    lora_modules_to_save: str | Sequence[str] | None = (
        None  # name endings of modules trained in full instead of adapted, e.g. [lm_head]
    )
    lora_path: str | None = None  # peft folder to start the adapters from
    lora_init_weights: bool | str = True  # true (B = 0), gaussian, or false (random, for tests)
    lora_use_rslora: bool = False  # scale by the root of the rank
    lora_rank_pattern: Mapping[str, int] | None = None  # other ranks by name pattern
    lora_alpha_pattern: Mapping[str, float] | None = None  # other scales by name pattern
    trainable_map: Mapping[str, bool] | None = None  # name prefix → train it or not; overrides is_lora
    freeze_pattern: str | Sequence[str] | None = (
        None  # regular expressions of parameter names to freeze; has the last word
    )
    value_head: bool = False  # estimate the return, as algorithm.adv_type=gae needs it
    value_type: str = "chunk_level"  # one value a record, or action_level: one an action
    gradient_checkpointing: bool = False  # recompute each layer in the backward pass: a third slower, far less memory
    activation_offload: bool = False  # keep activations in host memory until the backward pass; with the key above
    torch_compile: bool = False  # compile each transformer block; the first calls of a run then take minutes
    # the same for acting alone, beside learning and scoring; null = as torch_compile
    torch_compile_acting: bool | None = None
    torch_compile_backend: str = "inductor"  # or any name from torch._dynamo.list_backends()
    torch_compile_max_bs: int | None = None  # a larger batch runs as it is where no gradient is taken; null = none does
    low_cpu_mem_usage: bool = True  # false permits a second copy of the weights; none is made
    # permits to run the folder's own code; none is needed, because this implementation is native, and a run says so
    trust_remote_code: bool = False

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, Any]) -> Settings:
        """Makes settings and checks them. Raises UnknownKeyError or ConfigError, naming the key."""
        check_known(kwargs, [f.name for f in fields(cls)])
        told = {key: value for key, value in kwargs.items() if value is not None or key not in OF_ENV}
        settings = cls(**_with_overrides(told))
        settings = replace(settings, policy_setup=SETUP_ALIASES.get(settings.policy_setup, settings.policy_setup))
        settings.check()
        return settings

    def check(self) -> None:
        """Refuses values that are wrong for every checkpoint."""
        for key, choices in CHOICES.items():
            value = getattr(self, key)
            if value not in choices:
                raise unknown_name(key, str(value), [str(c) for c in choices], f"actor.model.{key}")
        if self.model_revision is not None:
            reason = "nothing is downloaded: model_path is a folder, which has one revision"
            raise bad("model_revision", self.model_revision, reason, "remove the key")
        self._check_types()
        check_quantization(self, self.compiles)
        self._check_attention()
        self._check_numbers()
        self._check_patterns()

    def _check_types(self) -> None:
        for key in BOOLEANS:
            if not isinstance(getattr(self, key), bool):
                raise bad(key, getattr(self, key), "it is a switch", "set it to true or false")
        if not isinstance(self.torch_compile_acting, bool | None):
            raise bad("torch_compile_acting", self.torch_compile_acting, "it is a switch", "set it to true or false")

    def _check_attention(self) -> None:
        if self.attn_implementation == "flash_attention_2":
            if importlib.util.find_spec("flash_attn") is None:
                fix = "pip install flash-attn --no-build-isolation; or set it to sdpa, which has a flash kernel too"
                raise bad("attn_implementation", "flash_attention_2", "the package flash-attn is not installed", fix)
            if self.precision == "fp32":
                raise bad(
                    "attn_implementation", "flash_attention_2", "it has no fp32", "set actor.model.precision=bf16"
                )
        if self.decoding == "autoregressive":
            if self.attention == "bidirectional":
                reason = "decoding is autoregressive, so no token can see those behind it"
                raise bad("attention", self.attention, reason, "set it to causal")
            if self.compiles:
                reason = "decoding is autoregressive, so each token would be another shape to compile"
                key = "torch_compile" if self.torch_compile else "torch_compile_acting"
                raise bad(key, True, reason, "set it to false")
            if self.num_action_chunks != 1:
                reason = "an autoregressive network answers with one action"
                raise bad("num_action_chunks", self.num_action_chunks, reason, "set it to 1")

    def _check_numbers(self) -> None:
        for key in COUNTS:
            value = getattr(self, key)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise bad(key, value, "it counts something", "set it to a whole number of at least 1")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise bad("seed", self.seed, "seeds are whole numbers", "set it to 0 or more")
        self.check_lora()

    def _check_patterns(self) -> None:
        for pattern in self.freeze_patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise bad("freeze_pattern", pattern, f"not a regular expression: {error}", "correct it") from error

    @property
    def acts_compiled(self) -> bool:
        """Whether ``act`` runs compiled blocks."""
        return self.torch_compile if self.torch_compile_acting is None else self.torch_compile_acting

    @property
    def compiles(self) -> bool:
        """Whether any call runs compiled blocks."""
        return self.torch_compile or self.acts_compiled

    @property
    def lora_targets(self) -> list[str]:
        """Name endings of the layers that get adapters."""
        given = self.lora_target_modules
        names = RELEASED_TARGETS if given in (None, "all-linear") else as_tuple(given)
        return [name for name in names if name not in {*DEAD_TARGETS, *self.saved_modules}]

    @property
    def values(self) -> int:
        """Number V of values of a record: 1, or one an action."""
        return 1 if self.value_type == "chunk_level" else self.num_action_chunks

    def net_config(self, checkpoint: NetConfig | None = None, with_conventions: bool = False) -> NetConfig:
        """Determines the network's sizes from preset, single keys and checkpoint, which must not contradict each other.

        Args:
            checkpoint: the checkpoint's sizes, if there is one.
            with_conventions: ``checkpoint`` also holds its attention, stop token, images …
        """
        if self.size is not None:
            base = PRESETS[self.size]
        elif checkpoint is not None:
            base = checkpoint
        else:
            raise bad(
                "size", None, "there is no checkpoint to take sizes from", f"set it to one of: {', '.join(PRESETS)}"
            )
        wanted = self._with_conventions(self._with_sizes(base))
        check_sizes(wanted)
        if checkpoint is not None and self.attention == "auto" and with_conventions:
            wanted = wanted.with_attention(checkpoint.attention)
        if checkpoint is not None:
            self._compare(wanted, checkpoint if with_conventions else self._with_conventions(checkpoint))
        return wanted

    def _with_conventions(self, base: NetConfig) -> NetConfig:
        return replace(
            base,
            attention=self._first_attention,
            stop_token=self.stop_token and self.decoding == "parallel",
            num_images=self.num_images_in_input,
            proprio_dim=self.proprio_dim if self.use_proprio else 0,
            num_action_chunks=self.num_action_chunks,
            action_dim=self.action_dim,
            decoding=self.decoding,
            film=self.use_film,
        )

    @property
    def _first_attention(self) -> str:
        """Attention mask at the start; ``auto`` may change it later."""
        if self.attention != "auto":
            return self.attention
        return "causal" if self.decoding == "autoregressive" else "bidirectional"

    def _with_sizes(self, base: NetConfig) -> NetConfig:
        sizes = {key: getattr(self, key) for key in SIZES if getattr(self, key) is not None}
        if self.image_size is not None:
            sizes["image_size"] = _side(self.image_size)
        return replace(resize_towers(base, self.vision_hidden_size, self.vision_layers, self.vision_heads), **sizes)

    @property
    def tower_hints(self) -> list[TowerHints]:
        """Sizes of the towers that a checkpoint without policy.json does not hold."""
        return list(map(TowerHints, self.vision_heads, self.vision_layers))

    @property
    def vision_heads(self) -> Pair:
        """Attention heads of DINOv2's and SigLIP's tower; None = the preset's or the checkpoint's."""
        return self._pair("vision_num_attention_heads")

    @property
    def vision_layers(self) -> Pair:
        """Layers of DINOv2's and SigLIP's tower; None = the preset's or the checkpoint's."""
        return self._pair("vision_num_layers")

    def _pair(self, key: str) -> Pair:
        given = getattr(self, key)
        pair = (given, given) if given is None or isinstance(given, int) else tuple(given)
        if len(pair) != 2 or not all(n is None or (type(n) is int and n > 0) for n in pair):
            raise bad(key, given, "there are two towers", "set it to one number or to two")
        return pair

    def _compare(self, wanted: NetConfig, checkpoint: NetConfig) -> None:
        names = wanted.differences(checkpoint)
        if names:
            wrong = "; ".join(f"{n} {getattr(wanted, n)}, the checkpoint's {getattr(checkpoint, n)}" for n in names)
            raise ConfigError(
                f"actor.model does not fit the checkpoint {self.model_path}: {wrong}",
                "set these keys to the checkpoint's values; actor.model.size=null takes all sizes from it",
            )


SIZES = ("patch_size", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
COUNTS = (
    *SIZES,
    *("vision_hidden_size", "num_images_in_input", "proprio_dim", "action_dim"),
    *("num_action_chunks", "lora_rank", "max_prompt_length", "torch_compile_max_bs"),
)
BOOLEANS = tuple(f.name for f in fields(Settings) if f.type == "bool")
CHOICES: dict[str, tuple[Any, ...]] = {
    "size": (*PRESETS, None),
    "precision": ("fp32", "bf16", "fp16"),
    "attention": ("bidirectional", "causal", "auto"),
    "attn_implementation": ("sdpa", "eager", "flash_attention_2"),
    "decoding": ("parallel", "autoregressive"),
    "image_preset": ("rlinf", "oft_libero"),
    "policy_setup": GRIPPERS,
    "action_normalization": ("auto", "bounds_q99", "bounds"),
    "value_type": ("chunk_level", "action_level"),
    "lora_init_weights": (True, False, "gaussian"),
}


def _with_overrides(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keys with those of ``override_config`` in place of the keys of that name."""
    for key, value in (given := kwargs.get("override_config") or {}).items():
        if key not in SIZES:
            known = f"known keys: {', '.join(SIZES)}"
            raise UnknownKeyError(f"unknown key 'actor.model.override_config.{key}'.{did_you_mean(key, SIZES)}", known)
        if kwargs.get(key) not in (None, value):
            raise bad(f"override_config.{key}", value, f"actor.model.{key} is {kwargs[key]}", "remove one of them")
    return {**kwargs, **given}


def _side(image_size: Any) -> int:
    """64 and [64, 64] → 64."""
    sides = [image_size] if isinstance(image_size, int) else list(image_size)
    if len(set(sides)) != 1 or not isinstance(sides[0], int) or sides[0] < 1:
        raise bad(
            "image_size", image_size, "the towers take square pictures", "set it to one number, or two equal ones"
        )
    return sides[0]
