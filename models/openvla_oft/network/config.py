"""Sizes of an OpenVLA-OFT network. Presets: ``tiny`` (1.4 M parameters, trains on a CPU), ``7b`` (the released one).

Facts of the released network: config.json and tensor index of moojink/openvla-7b-oft-finetuned-libero-10.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ...shared.keys import bad

N_BINS = 256  # action tokens: the last 256 ids of the unpadded vocabulary
GRIPPERS = ("libero", "bridge", "none")  # conventions of the last action dimension, see tokens/action_tokenizer.py
# The targets of the adapters released with OpenVLA-OFT; "proj" covers attention and the Conv2d patch embedding.
RELEASED_TARGETS = (
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"),
    *("qkv", "proj", "fc1", "fc2", "fc3"),
)
DEAD_TARGETS = ("q", "kv")  # released targets that occur only in attn_pool, which is not built
VOCAB_MULTIPLE = 64  # embedding rows are padded to the next multiple, leaving room for <PAD>


@dataclass(frozen=True)
class TowerConfig:
    """One vision transformer as in its checkpoint. The last of the ``depth`` blocks is never run."""

    width: int
    depth: int
    heads: int
    mlp_width: int
    prefix_tokens: int  # cls + registers, 0 = none; dropped from the output
    layer_scale: bool


@dataclass(frozen=True)
class NetConfig:
    """Everything that fixes the network's shapes and what it computes. Equal configurations load equal weights."""

    image_size: int  # H = W, pixels
    patch_size: int
    featurizer: TowerConfig  # DINOv2 with registers
    fused_featurizer: TowerConfig  # SigLIP
    vocab_size: int  # padding rows not counted; action tokens are its last 256 ids
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    initializer_range: float = 0.02  # std of weight matrices, random initialisation only
    pos_embed_std: float = 0.02  # random initialisation only
    layer_scale_init: float = 1e-5  # random initialisation only
    rms_norm_eps: float = 1e-6  # LlamaConfig's default, as released; Meta's own value is 1e-5
    rope_theta: float = 1e4
    attention: str = "bidirectional"  # bidirectional or causal: a property of the checkpoint
    stop_token: bool = True  # </s> after the placeholders
    num_images: int = 1
    proprio_dim: int = 0  # 0 = no proprio token
    num_action_chunks: int = 8  # K
    action_dim: int = 7  # A
    decoding: str = "parallel"  # or autoregressive (OpenVLA before OFT): token by token, one action a call
    film: bool = False  # the instruction modulates the vision towers (OFT+)

    @property
    def autoregressive(self) -> bool:
        """Whether action tokens are decoded one after another."""
        return self.decoding == "autoregressive"

    @property
    def patches(self) -> int:
        """Patch tokens of one image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding and of lm_head: 32000 → 32064, 1024 → 1088."""
        return (self.vocab_size // VOCAB_MULTIPLE + 1) * VOCAB_MULTIPLE

    @property
    def first_action_id(self) -> int:
        """Id of the first of the 256 action tokens, which are the last of the vocabulary."""
        return self.vocab_size - N_BINS

    @property
    def action_tokens(self) -> int:
        """Number of action tokens, T = K·A."""
        return self.num_action_chunks * self.action_dim

    @property
    def tail_tokens(self) -> int:
        """Tokens after the prompt: the placeholders, or all action tokens except the last."""
        return self.action_tokens - 1 if self.autoregressive else self.action_tokens + self.stop_token

    @property
    def vision_width(self) -> int:
        """Width of the towers' concatenated features."""
        return self.featurizer.width + self.fused_featurizer.width

    def with_attention(self, attention: str) -> NetConfig:
        """Returns the same configuration with another attention mask."""
        return replace(self, attention=attention)

    def to_dict(self) -> dict[str, Any]:
        """Converts the configuration to JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> NetConfig:
        """Makes a configuration from what :meth:`to_dict` returned. Raises TypeError for missing or unknown names."""
        towers = {name: TowerConfig(**values[name]) for name in ("featurizer", "fused_featurizer")}
        return cls(**{**values, **towers})

    def differences(self, other: NetConfig) -> list[str]:
        """Names of the fields that differ, except those that only matter for random initialisation."""
        only_init = {"initializer_range", "pos_embed_std", "layer_scale_init"}
        names = [f.name for f in fields(self) if f.name not in only_init]
        return [name for name in names if getattr(self, name) != getattr(other, name)]


MOST = 10_000_000  # largest value that a number in a config may have
MAY_BE_ZERO = ("proprio_dim", "prefix_tokens")
WORDS = {"attention": ("bidirectional", "causal"), "decoding": ("parallel", "autoregressive")}


def check_plain(values: dict[str, Any]) -> None:
    """Check :meth:`NetConfig.to_dict` of a file. Raises ValueError, or KeyError for a tower that is missing."""
    for kind, own in (
        (NetConfig, values),
        *((TowerConfig, values[name]) for name in ("featurizer", "fused_featurizer")),
    ):
        for one in fields(kind):
            if one.name in own and not _plain(one.name, str(one.type), own[one.name]):
                raise ValueError(f"{one.name} is {own[one.name]!r:.80}")


def _plain(name: str, kind: str, value: Any) -> bool:
    """Returns whether a value can be that of a field of this type."""
    if kind == "int":
        return type(value) is int and (0 if name in MAY_BE_ZERO else 1) <= value <= MOST
    if kind == "float":
        return type(value) in (int, float) and 0 <= value <= MOST
    if kind == "bool":
        return type(value) is bool
    return value in WORDS[name] if kind == "str" else isinstance(value, dict)


OPENVLA_7B = NetConfig(
    image_size=224,
    patch_size=14,
    featurizer=TowerConfig(width=1024, depth=24, heads=16, mlp_width=4096, prefix_tokens=5, layer_scale=True),
    fused_featurizer=TowerConfig(width=1152, depth=27, heads=16, mlp_width=4304, prefix_tokens=0, layer_scale=False),
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=11008,
    num_hidden_layers=32,
    num_attention_heads=32,
)

TINY = replace(
    OPENVLA_7B,
    image_size=64,
    patch_size=8,
    featurizer=replace(OPENVLA_7B.featurizer, width=64, depth=4, heads=4, mlp_width=256),
    fused_featurizer=replace(OPENVLA_7B.fused_featurizer, width=64, depth=4, heads=4, mlp_width=256),
    vocab_size=1024,
    hidden_size=128,
    intermediate_size=352,
    num_hidden_layers=3,  # zero placeholders give the first layer no sense of position
    num_attention_heads=4,
    # At this width, the initial values of large networks are far too small to train from scratch.
    initializer_range=0.08,
    pos_embed_std=0.5,
    layer_scale_init=1.0,
)

PRESETS = {"tiny": TINY, "7b": OPENVLA_7B}


def resize_towers(
    config: NetConfig, width: int | None, depths: tuple[int | None, int | None], heads: tuple[int | None, int | None]
) -> NetConfig:
    """Returns ``config`` with another width, depth or number of heads for both towers. The MLP ratio stays."""

    def resized(tower: TowerConfig, depth: int | None, heads: int | None) -> TowerConfig:
        new_width = tower.width if width is None else width
        mlp_width = tower.mlp_width * new_width // tower.width
        return replace(
            tower, width=new_width, mlp_width=mlp_width, depth=depth or tower.depth, heads=heads or tower.heads
        )

    return replace(
        config,
        featurizer=resized(config.featurizer, depths[0], heads[0]),
        fused_featurizer=resized(config.fused_featurizer, depths[1], heads[1]),
    )


def check_sizes(net: NetConfig) -> None:
    """Check the sizes that must divide each other. Raises ConfigError with the key under ``actor.model``."""
    if net.image_size % net.patch_size:
        raise bad("image_size", net.image_size, f"patch_size {net.patch_size} does not divide it", "choose a multiple")
    if net.hidden_size % (2 * net.num_attention_heads):
        fix = "choose a multiple of twice num_attention_heads (rotary positions need an even width)"
        raise bad("hidden_size", net.hidden_size, f"it is shared by {net.num_attention_heads} heads", fix)
    for tower in (net.featurizer, net.fused_featurizer):
        if tower.width % tower.heads:
            raise bad("vision_hidden_size", tower.width, f"{tower.heads} heads do not divide it", "choose a multiple")
        if tower.depth < 2:
            raise bad("vision_num_layers", tower.depth, "the last layer is never run", "set it to 2 or more")
    if net.vocab_size <= N_BINS:
        raise bad("vocab_size", net.vocab_size, "the last 256 ids are action tokens", "set it to 1024 or more")
