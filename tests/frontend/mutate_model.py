"""Damage to a model: one field of its protobuf tree is deleted, doubled, moved or overwritten.

    broken = mutate(model, random.Random(7))

Every message of the tree can be hit: names, types, dimensions, attributes, data, nodes, sub-graphs.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

import onnx
from google.protobuf.message import Message  # type: ignore[import-untyped]

TEXTS = ("", "x", "y", "w", "Conv", "Relu", "axis", "n", "Loop", "ai.onnx.ml", "to", "If", "s")
BYTES = (b"", b"abcd", bytes(12), b"\xff\xfe", b"NOTSET")
INTEGERS = (0, 1, -1, 2, 3, 7, 8, 11, 16, -(2**63), 2**62, 10**6, 10**10, 2**31 - 1)
FLOATS = (0.0, 1e30, -1.0, float("nan"))


def mutate(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """A copy with one to three faults."""
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        message = rng.choice(_messages(broken))
        fields = [f for f, _ in message.ListFields()]
        if not fields or rng.random() < 0.2:
            fields = list(message.DESCRIPTOR.fields)
        field = rng.choice(fields)
        with contextlib.suppress(ValueError):  # a number that the field cannot hold
            (_change_list if field.is_repeated else _change)(message, field, rng)
    return broken


def _messages(message: Message) -> list[Any]:
    found: list[Any] = [message]
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else [value]:
                found += _messages(inner)
    return found


def _value(field: Any, rng: random.Random) -> Any:
    if field.type == field.TYPE_STRING:
        return rng.choice(TEXTS)
    if field.type == field.TYPE_BYTES:
        return rng.choice(BYTES)
    return rng.choice(FLOATS if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE) else INTEGERS)


def _change(message: Any, field: Any, rng: random.Random) -> None:
    if field.type == field.TYPE_MESSAGE:
        if message.HasField(field.name):
            message.ClearField(field.name)
        else:
            getattr(message, field.name).SetInParent()
    elif rng.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _value(field, rng))


def _change_list(message: Any, field: Any, rng: random.Random) -> None:
    elements = getattr(message, field.name)
    holds_messages = field.type == field.TYPE_MESSAGE
    action = rng.choice(("delete", "double", "shuffle", "add"))
    if action == "delete" and len(elements):
        del elements[rng.randrange(len(elements))]
    elif action == "double" and len(elements):
        chosen = rng.choice(list(elements))
        elements.append(_copy(chosen) if holds_messages else chosen)
    elif action == "shuffle":
        copies = [_copy(e) if holds_messages else e for e in elements]
        rng.shuffle(copies)
        del elements[:]
        elements.extend(copies)
    elif holds_messages:
        elements.add()
    else:
        elements.append(_value(field, rng))


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
