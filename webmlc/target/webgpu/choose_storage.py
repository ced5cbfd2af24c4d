"""Choose how a shader stores each buffer.

In: a lowered function. Out: the same function, whose buffers say how they are stored
(`loops.ir.Buffer`). Registers are variables. Elements of types smaller than a word are parts of
words, or halves if the adapter has them. The words are atomic if the kernel stores single elements.
Memory that is accessed as aligned vectors is an `array<vec4<...>>`, so that every access is one
load or store of 16 bytes. Single elements of such memory may also be read, as components.

    a[T.ramp(i * 4, 1, 4)]  ->  in vectors       a[T.ramp(i * 4 + 1, 1, 4)]  ->  scalars
"""

from __future__ import annotations

from dataclasses import replace

from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.core.expr import Call, Const, Expr, Ramp
from webmlc.core.simplify import divides
from webmlc.loops.ir import Buffer, LoopFunction, Store, own_accesses, stores
from webmlc.target import VECTOR_LANES
from webmlc.target.registers import register_lanes
from webmlc.target.scoped import replace_all_buffers, walk_scoped
from webmlc.target.webgpu.storage import PARTS

HALVES = "shader-f16"
"""The feature of WebGPU whose shaders have halves in memory."""


def choose_storage(function: LoopFunction, features: frozenset[str] = frozenset()) -> LoopFunction:
    """Needs the lowered form. Guarantees the same results, and the storage of every buffer for an
    adapter with these `features` of WebGPU.
    """
    registers = {*register_lanes(function)}
    registers |= {b for b in function.allocations if b.storage == "register"}
    vectors = _accessed_as_vectors(function) - registers
    stored = {store.buffer for store in stores(function.body)}

    def chosen(buffer: Buffer) -> Buffer:
        in_vectors, storage = buffer in vectors, buffer.storage
        if buffer in registers:
            storage = "register"
        elif buffer.dtype is DType.float16 and HALVES in features and buffer.scope != "local":
            storage = "halves"
        elif buffer.dtype in PARTS and buffer.scope == "global":
            storage = "atomic words" if buffer in stored and not in_vectors else "words"
        return replace(buffer, storage=storage, in_vectors=in_vectors)

    return replace_all_buffers(function, function.body, chosen)


def _accessed_as_vectors(function: LoopFunction) -> set[Buffer]:
    """The buffers that are accessed as vectors, if every such access is aligned."""
    is_aligned: dict[Buffer, bool] = {}
    accessed_as_vectors: set[Buffer] = set()
    for buffer in (*function.params, *function.allocations):
        if not divides(VECTOR_LANES, buffer.shape[0] if buffer.shape else Const(1)):
            is_aligned[buffer] = False  # no vector holds the last elements
    for stmt, ranges in walk_scoped(function):
        for access in own_accesses(stmt):
            match access.indices:
                case (Ramp(base=base, stride=Const(value=1)),):
                    accessed_as_vectors.add(access.buffer)
                    access_is_aligned = divides(VECTOR_LANES, base, ranges)
                case _:
                    access_is_aligned = not isinstance(access, Store)
            is_aligned[access.buffer] = is_aligned.get(access.buffer, True) and access_is_aligned
    return {buffer for buffer in accessed_as_vectors if is_aligned[buffer]}


def vector_index(base: Expr) -> Expr:
    """The index into a vector view for elements that start at `base`."""
    match base:
        case Call(op="mul", args=(unit, Const(value=value))) if value == VECTOR_LANES:
            return unit
        case Const(value=int() as value) if value % VECTOR_LANES == 0:
            return Const(value // VECTOR_LANES)
    raise InternalError(f"webgpu: {base} is no aligned base; legalise should have made it one")
