"""Frames between robots and policy servers, with a few bytes changed."""

from __future__ import annotations

import struct

import numpy as np

from embodied.client.wire import pack

# {"s": float32 [1, 2], "prompt": "go"} as openpi-client 0.1.2 packs it.
OF_OPENPI = bytes.fromhex(
    "82a17384c40b5f5f6e6461727261795f5fc3c40464617461c4080000803f00000040"
    "c4056474797065a33c6634c40573686170659102a670726f6d7074a2676f"
)
PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
SEEDS = [
    OF_OPENPI,
    pack({"images": PIXELS, "state": np.ones(8, np.float32), "prompt": "open", "embodied/request_id": 3}),
    pack({"a": [1, -2, 3.5, None, True, "x", b"y", {"b": np.float32(1)}], "z": np.zeros((0, 3))}),
    pack(
        {"embodied/requests": [{"images": PIXELS, "state": np.ones(8, np.float32), "prompt": "open"}, {"prompt": "go"}]}
    ),
    pack({"actions": np.ones((4, 7), ">f4"), "server_timing": {"infer_ms": 1.25, "batch": 200}}),
]
BYTES = [*range(0xC0, 0x100), 0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF]  # among them each type of msgpack


def mutated(random: np.random.Generator) -> bytes:
    """A frame with a few bytes changed, cut, added or doubled; sometimes of nothing but noise."""
    if random.random() < 0.05:
        return random.bytes(int(random.integers(1, 200)))
    frame = bytearray(SEEDS[random.integers(len(SEEDS))])
    for _ in range(random.integers(1, 5)):
        at = int(random.integers(len(frame) + 1))
        kind = random.integers(6)
        if kind == 0:
            del frame[at:]
        elif kind == 1:
            frame[at : at + 1] = bytes([random.choice(BYTES)])
        elif kind == 2:
            frame[at:at] = random.bytes(int(random.integers(1, 6)))
        elif kind == 3:
            frame[at : at + 4] = struct.pack(">I", random.choice([0, 1, 2**16, 2**31 - 1, 2**32 - 1]))
        elif kind == 4:
            frame[at:at] = frame[: int(random.integers(len(frame) + 1))]
        elif frame:
            frame[at % len(frame)] ^= 1 << int(random.integers(8))
    return bytes(frame)
