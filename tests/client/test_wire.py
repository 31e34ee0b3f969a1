"""The codec of messages: openpi's encoding, and errors for everything else."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from mutated_frames import OF_OPENPI, PIXELS, mutated

from embodied.client import frames
from embodied.client.wire import DTYPES, Limits, pack, read_array, unpack
from embodied.errors import WireError

ARRAY_KEYS = (b"__ndarray__", b"data", b"dtype", b"shape")


def forged(dtype: Any = "<f4", shape: Any = (2,), data: Any = bytes(8), mark: Any = True, **more: Any) -> bytes:
    """A frame with an array that openpi's encoder would not write."""
    values = dict(zip(ARRAY_KEYS, (mark, data, dtype, shape), strict=True))
    return msgpack.packb({"a": values | {key.encode(): value for key, value in more.items()}})


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray):
        native = left.astype(left.dtype.newbyteorder("="))
        return right.dtype == native.dtype and right.shape == left.shape and right.tobytes() == native.tobytes()
    return type(left) is type(right) and (left == right or left != left)


def test_a_frame_of_openpi_is_read_and_written():
    found = unpack(OF_OPENPI)
    assert found["prompt"] == "go"
    assert same(found["s"], np.array([1, 2], np.float32))
    assert pack({"s": np.array([1, 2], np.float32), "prompt": "go"}) == OF_OPENPI


numbers = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=40),
    st.binary(max_size=300),
)
some_arrays = arrays.arrays(
    dtype=st.sampled_from([*DTYPES]).map(np.dtype),
    shape=arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)
values = base = st.one_of(numbers, some_arrays)
for _ in range(3):  # levels of lists and maps
    values = st.one_of(base, st.lists(values, max_size=4), st.dictionaries(st.text(max_size=40), values, max_size=4))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values)
def test_what_is_written_is_read_back(value):
    assert same(value, unpack(pack(value)))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(values)
def test_plain_values_are_read_as_msgpack_reads_them(value):
    frame = msgpack.packb(value, default=lambda array: [array.ndim])
    assert same(msgpack.unpackb(frame), unpack(frame))


@pytest.mark.parametrize(
    "scalar", [np.float32(1.5), np.int8(-3), np.uint64(2**64 - 1), np.bool_(True), np.float16(np.inf)]
)
def test_scalars_of_numpy_keep_their_type(scalar):
    found = unpack(pack({"x": scalar}))["x"]
    assert found.dtype == scalar.dtype
    assert found == scalar


def read_either_way(frame: bytes, limits: Limits) -> tuple[Any, Any]:
    """What is read, or why nothing is: with arrays that are recognised by their first bytes, and without."""
    found = []
    for known in (frames._ARRAY, re.compile(b"(?!)")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frames, "_ARRAY", known)
            try:
                found.append(unpack(frame, limits))
            except WireError as error:
                found.append(error.message)
    return found[0], found[1]


def test_arrays_are_recognised_without_another_result():
    random = np.random.default_rng(5)
    kinds = [
        np.array(3.5),
        np.zeros((0, 3)),
        np.arange(300, dtype=">i2"),
        np.ones((2, 3), bool),
        np.ones(70000, np.int8),
    ]
    seeds = [OF_OPENPI, *(pack({"a": [kind, 7], "b": "x"}) for kind in kinds), *(mutated(random) for _ in range(1000))]
    for frame in seeds:
        for limits in (Limits(), Limits(max_items=18, max_text=2), Limits(max_depth=2, max_dims=1)):
            quick, slow = read_either_way(frame, limits)
            assert same(quick, slow), (frame, limits, quick, slow)
    quick = unpack(OF_OPENPI)
    assert frames._described.cache_info().currsize, "none was recognised"
    assert same(quick["s"], np.array([1, 2], np.float32))


def test_what_follows_a_shape_is_neither_read_nor_kept(monkeypatch):
    kept: list[bytes] = []
    monkeypatch.setattr(frames, "_described", lambda name, packed: kept.append(packed))
    array = pack({"a": np.zeros((1,) * 15)}).removeprefix(b"\x81\xa1a")
    began = time.thread_time()
    with pytest.raises(WireError):
        unpack(b"\x92" + array + bytes(1 << 20))
    assert time.thread_time() - began < 0.5
    assert [len(packed) for packed in kept] == [16]


def test_numbers_of_the_other_byte_order_are_normalised():
    found = unpack(pack({"a": np.array([1, 2], ">f4")}))["a"]
    assert found.dtype == np.dtype("<f4")
    assert found.tolist() == [1, 2]


def test_pixels_are_not_copied_and_numbers_are_aligned():
    frame = pack({"images": PIXELS, "x": "odd", "state": np.ones(3)})
    found = unpack(frame)
    assert not found["images"].flags.owndata
    assert found["state"].flags.aligned


def test_a_bool_is_0_or_1():
    found = unpack(forged("|b1", (3,), bytes([0, 1, 7])))["a"]
    assert found.tolist() == [False, True, True]
    assert found.tobytes() == bytes([0, 1, 1])


REFUSED = {
    "an object, which would be read as a pointer": forged("|O", (1,), bytes(8)),
    "a structure": forged("|V8", (1,), bytes(8)),
    "a date": forged("<M8[s]", (1,), bytes(8)),
    "complex numbers": forged("<c8", (1,), bytes(8)),
    "text as an array": forged("<U2", (1,), bytes(8)),
    "a dtype of numpy's own syntax": forged("f4,f4", (1,), bytes(8)),
    "a dtype that is no text": forged(4),
    "a dtype that is a list": forged(["<f4"]),
    "a structured dtype": forged([["a", "<f4"]]),
    "too few bytes": forged("<f4", (3,), bytes(8)),
    "too many bytes": forged("<f4", (1,), bytes(8)),
    "a negative size": forged("<f4", (-2,), bytes(8)),
    "two negative sizes": forged("<f4", (-2, -1), bytes(8)),
    "a size that is a float": forged("<f4", (2.0,), bytes(8)),
    "a size that is a bool": forged("|u1", (True,), bytes(1)),
    "an empty array of many": forged("<f4", (0, 2**40), b""),
    "sizes whose product overflows": forged("<f4", (0, 2**62, 2**62), b""),
    "too many dimensions": forged("<f4", (1,) * 9, bytes(4)),
    "a shape that is no list": forged("<f4", 2, bytes(8)),
    "data that is text": forged("<f4", (2,), "12345678"),
    "a mark that is not true": forged(mark=1),
    "an array with another key": forged(**{"data2": 1}),
    "one mark alone": msgpack.packb({b"__ndarray__": True}),
    "a key of bytes": msgpack.packb({b"state": 1}),
    "a key that is a number": msgpack.packb({1: 2}),
    "a key that is nothing": msgpack.packb({None: 2}),
    "a key that is a list": b"\x81\x90\x01",
    "a key twice": b"\x82\xa1a\x01\xa1a\x02",
    "an extension": msgpack.packb(msgpack.ExtType(5, b"abc")),
    "a time": msgpack.packb(msgpack.Timestamp(5)),
    "the byte that msgpack never uses": b"\xc1",
    "nothing": b"",
    "something more": pack({"a": 1}) + b"\x00",
    "text that is no UTF-8": b"\xa2\xff\xfe",
    "a list of 4 billion": b"\xdd\xff\xff\xff\xff",
    "a map of 4 billion": b"\xdf\xff\xff\xff\xff",
    "bytes of 4 billion": b"\xc6\xff\xff\xff\xff",
    "text of 4 billion": b"\xdb\xff\xff\xff\xff",
    "lists in lists": b"\x91" * 100_000,
    "many lists": b"\xdc\x0f\xff" + b"\xdc\x0f\xff" * 1000,
    "a scalar that does not fit": msgpack.packb({b"__npgeneric__": True, b"data": 300, b"dtype": "|u1"}),
    "a scalar that is text": msgpack.packb({b"__npgeneric__": True, b"data": "3", b"dtype": "<f4"}),
    "a scalar of bytes": msgpack.packb({b"__npgeneric__": True, b"data": b"3", b"dtype": "<f4"}),
    "a scalar object": msgpack.packb({b"__npgeneric__": True, b"data": 3, b"dtype": "|O"}),
    "a float as a whole number": msgpack.packb({b"__npgeneric__": True, b"data": 3.5, b"dtype": "<i4"}),
}


@pytest.mark.parametrize("frame", REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_read_is_said(frame):
    with pytest.raises(WireError) as caught:
        unpack(frame)
    assert caught.value.remedy


def test_every_beginning_of_a_frame_is_refused():
    frame = pack({"images": PIXELS, "state": np.ones(3), "n": [1, 2.5, None], "g": np.float32(2)})
    for length in range(len(frame)):
        with pytest.raises(WireError):
            unpack(frame[:length])


@pytest.mark.parametrize(
    ("limits", "value"),
    [
        (Limits(max_bytes=100), {"a": np.zeros(200, np.uint8)}),
        (Limits(max_items=10), {"a": [1] * 10}),
        (Limits(max_items=10), {str(n): n for n in range(6)}),
        (Limits(max_depth=2), {"a": {"b": {"c": 1}}}),
        (Limits(max_text=3), {"a": "four"}),
        (Limits(max_dims=1), {"a": np.zeros((2, 2))}),
    ],
)
def test_each_limit_holds(limits, value):
    frame = pack(value)
    assert same(value, unpack(frame))
    with pytest.raises(WireError):
        unpack(frame, limits)


@pytest.mark.parametrize(
    "value",
    [
        {"a": object()}, {1: 2}, {"a": np.zeros(2, complex)}, {"a": np.array([{}])}, {"a": np.datetime64("2020")},
        {"a": np.array(["x"])}, {"a": 2**64}, {"a": "\ud800"}, {"a": {1, 2}}, {"a": 1j},
        {"a": [[[[[[[[1]]]]]]]]}, {"a": np.zeros(2, [("x", "<f4")])},
    ],
)  # fmt: skip
def test_what_could_not_be_read_is_not_written(value):
    with pytest.raises(WireError):
        pack(value)


def test_an_array_of_another_protocol_is_read_by_the_same_rules():
    assert read_array("|u1", [4, 4, 3], PIXELS.tobytes()).tolist() == PIXELS.tolist()
    with pytest.raises(WireError):
        read_array("|O", [1], bytes(8))


# -- mutated frames --------------------------------------------------------------------------------------------------


def feed(count: int, seed: int) -> tuple[int, int]:
    """How many of ``count`` mutated frames were read, and how many refused. Any other exception fails the test."""
    random, read = np.random.default_rng(seed), 0
    for _ in range(count):
        try:
            unpack(mutated(random))
            read += 1
        except WireError:
            pass
    return read, count - read


def test_thousands_of_mutated_frames_are_read_or_refused():
    read, refused = feed(3000, seed=0)
    assert read > 100
    assert refused > 1000


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data):
    with suppress(WireError):
        unpack(data)


@pytest.mark.slow
def test_a_hundred_thousand_mutated_frames_cost_no_memory():
    feed(5000, seed=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read, refused = feed(100_000, seed=2)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read > 2000
    assert refused > 50_000
    assert after - before < 20_000, "KiB"


def test_the_codec_needs_numpy_and_msgpack_alone():
    code = (
        "import sys\n"
        "for name in ('torch', 'hydra', 'transformers', 'PIL', 'aiohttp'): sys.modules[name] = None\n"
        "import numpy as np\n"
        "from embodied.client.wire import pack, unpack\n"
        "print(unpack(pack({'a': np.ones(2)}))['a'].tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert done.stdout == "[1.0, 1.0]\n"
