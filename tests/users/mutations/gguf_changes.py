"""Damage a GGUF file: its metadata, the list of its tensors, its weights or its header."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

from tests.users.mutations.gguf_container import (
    ARRAY,
    SCALARS,
    STRING,
    Container,
    Entry,
    TensorInfo,
    text,
)

COUNTS = (0, 1, 2, 3, 5, 7, 31, 64, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
FLOATS = (0.0, -1.0, 0.5, 1.0, 2.0, 30.0, 1e-30, 1e30, float("nan"), float("inf"), -float("inf"))
WEIGHTS = (0.0, -1.0, 0.5, float("nan"), float("inf"))
HUGE = (1 << 20, 1 << 32, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
TEXTS = (b"", b"x", b"llama", b"gpt2", b"default", b"yarn", b"\xff\xfe", b"{% if %}", b"a" * 5000)
KEYS = (
    b"attention.causal",
    b"attention.key_length",
    b"attention.scale",
    b"attention.sliding_window",
    b"expert_count",
    b"final_logit_softcapping",
    b"logit_scale",
    b"pooling_type",
    b"rope.dimension_count",
    b"rope.scaling.factor",
    b"rope.scaling.type",
    b"something.new",
    b"vocab_size",
)
"""Keys of an architecture that a change may add."""


def draw_change(container: Container, rng: random.Random) -> str:
    """Change a file, and return what has changed."""
    return rng.choice(CHANGES)(container, rng)


def _scalar(rng: random.Random, kind: int) -> bytes:
    form = SCALARS[kind]
    if form in "fd":
        return struct.pack(f"<{form}", rng.choice(FLOATS))
    size = struct.calcsize(form)
    return (rng.choice(COUNTS) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _value(rng: random.Random) -> tuple[int, bytes]:
    """A value of any kind."""
    kind = rng.choice((*SCALARS, STRING, STRING, ARRAY))
    if kind == STRING:
        return kind, text(rng.choice(TEXTS))
    if kind == ARRAY:
        inner, count = rng.choice(tuple(SCALARS)), rng.choice((0, 1, 3))
        items = b"".join(_scalar(rng, inner) for _ in range(count))
        return kind, struct.pack("<IQ", inner, count) + items
    return kind, _scalar(rng, kind)


def _entry(container: Container, rng: random.Random) -> Entry:
    return rng.choice(container.entries)


def _drop_key(container: Container, rng: random.Random) -> str:
    entry = _entry(container, rng)
    container.entries.remove(entry)
    container.entry_count -= 1
    return f"without {entry.key.decode()}"


def _repeat_key(container: Container, rng: random.Random) -> str:
    entry = _entry(container, rng)
    container.entries.append(Entry(entry.key, *_value(rng)))
    container.entry_count += 1
    return f"{entry.key.decode()} twice"


def _add_key(container: Container, rng: random.Random) -> str:
    prefix = next(
        (e.payload[8:] for e in container.entries if e.key == b"general.architecture"), b"x"
    )
    key = prefix + b"." + rng.choice(KEYS)
    container.entries.append(Entry(key, *_value(rng)))
    container.entry_count += 1
    return f"with {key.decode(errors='replace')}"


def _change_value(container: Container, rng: random.Random) -> str:
    """Another value of the same kind."""
    entry = _entry(container, rng)
    if entry.kind in SCALARS:
        entry.payload = _scalar(rng, entry.kind)
    elif entry.kind == STRING:
        entry.payload = text(rng.choice(TEXTS))
    elif len(entry.payload) >= 12:
        inner, count = struct.unpack_from("<IQ", entry.payload)
        if inner in SCALARS and count:
            size = struct.calcsize(SCALARS[inner])
            place = 12 + size * rng.randrange(count)
            changed = bytearray(entry.payload)
            changed[place : place + size] = _scalar(rng, inner)
            entry.payload = bytes(changed)
        elif inner == STRING and count:
            entry.payload = struct.pack("<IQ", inner, 1) + text(rng.choice(TEXTS))
    return f"another value of {entry.key.decode()}"


def _change_kind(container: Container, rng: random.Random) -> str:
    """Another kind, with a value of it, or with the bytes of the old one."""
    entry = _entry(container, rng)
    if rng.random() < 0.6:
        entry.kind, entry.payload = _value(rng)
    else:
        entry.kind = rng.choice((*range(14), 99))
    return f"{entry.key.decode()} is of kind {entry.kind}"


def _change_length(container: Container, rng: random.Random) -> str:
    """A string or an array that says to be longer, or shorter, than it is."""
    entry = rng.choice([e for e in container.entries if e.kind in (STRING, ARRAY)])
    place = 0 if entry.kind == STRING else 4
    length = rng.choice((*HUGE, 0, 1, 2))
    entry.payload = entry.payload[:place] + struct.pack("<Q", length) + entry.payload[place + 8 :]
    return f"{entry.key.decode()} has the length {length}"


def _tensor(container: Container, rng: random.Random) -> TensorInfo:
    return rng.choice(container.tensors)


def _drop_tensor(container: Container, rng: random.Random) -> str:
    tensor = _tensor(container, rng)
    container.tensors.remove(tensor)
    container.tensor_count -= 1
    return f"without {tensor.name.decode()}"


def _rename_tensor(container: Container, rng: random.Random) -> str:
    tensor = _tensor(container, rng)
    old, tensor.name = tensor.name, rng.choice((_tensor(container, rng).name, b"x", b"", b"\xff"))
    return f"{old.decode()} is called {tensor.name!r}"


def _change_sizes(container: Container, rng: random.Random) -> str:
    tensor = _tensor(container, rng)
    axis = rng.randrange(len(tensor.sizes))
    match rng.choice(("swap", "size", "near", "more", "fewer")):
        case "swap":
            tensor.sizes.reverse()
        case "size":
            tensor.sizes[axis] = rng.choice((*COUNTS, *HUGE))
        case "near":
            tensor.sizes[axis] = max(tensor.sizes[axis] + rng.choice((-1, 1, 32)), 0)
        case "more":
            tensor.sizes.append(rng.choice((1, 1, 2)))
        case _:
            del tensor.sizes[axis]
    return f"{tensor.name.decode(errors='replace')} has the sizes {tensor.sizes}"


def _change_type(container: Container, rng: random.Random) -> str:
    tensor = _tensor(container, rng)
    tensor.kind = rng.choice((*range(42), 255))
    return f"{tensor.name.decode(errors='replace')} has the type {tensor.kind}"


def _change_offset(container: Container, rng: random.Random) -> str:
    tensor = _tensor(container, rng)
    other = _tensor(container, rng).offset
    tensor.offset = rng.choice((0, 1, other, tensor.offset + 32, len(container.weights), *HUGE))
    return f"{tensor.name.decode(errors='replace')} is at {tensor.offset}"


def _change_weights(container: Container, rng: random.Random) -> str:
    place = rng.randrange(len(container.weights) - 4)
    container.weights[place : place + 4] = struct.pack("<f", rng.choice(WEIGHTS))
    return f"other weights at {place}"


def _change_header(container: Container, rng: random.Random) -> str:
    match rng.choice(("magic", "version", "tensors", "entries")):
        case "magic":
            container.magic = rng.choice((b"GGML", b"FUGG", b"\0\0\0\0"))
        case "version":
            container.version = rng.choice((0, 1, 2, 4, 1 << 24))
        case "tensors":
            container.tensor_count = rng.choice((*COUNTS, *HUGE))
        case _:
            container.entry_count = rng.choice((*COUNTS, *HUGE))
    return "another header"


def _align(container: Container, rng: random.Random) -> str:
    value = rng.choice(COUNTS)
    container.entries.append(Entry(b"general.alignment", 4, struct.pack("<I", value)))
    container.entry_count += 1
    return f"alignment {value}"


CHANGES: tuple[Callable[[Container, random.Random], str], ...] = (
    _drop_key,
    _repeat_key,
    _add_key,
    _change_value,
    _change_value,
    _change_value,
    _change_kind,
    _change_length,
    _drop_tensor,
    _rename_tensor,
    _change_sizes,
    _change_type,
    _change_offset,
    _change_weights,
    _change_header,
    _align,
)
"""The changes, each as often as it stands here."""
