"""Print the declarations of a kernel's bindings and workgroup memory, and find the registers that
the shader declares where it first stores to them.

In: a function ready to print, and which of its buffers are constants. Out: one line each.

    @group(0) @binding(0) var<storage, read> relu_in0: array<vec4<f32>>;
    var<workgroup> stage: array<vec4f, 64>;
"""

from __future__ import annotations

from collections import Counter

from webmlc.core.errors import InternalError
from webmlc.core.expr import as_int
from webmlc.core.machine import MAX_WORKGROUP_BYTES, WORD_BYTES
from webmlc.loops.ir import Buffer, LoopFunction, Seq, Store, loads, stores, walk_statements
from webmlc.target import VECTOR_LANES
from webmlc.target.share_memory import counted_bytes
from webmlc.target.webgpu.names import NUMBER, memory_name
from webmlc.target.webgpu.table import half_type, type_name


def array_type(buffer: Buffer, function: LoopFunction) -> str:
    """The WGSL type of an array of constant size."""
    size = _constant_size(buffer, function)
    lanes = VECTOR_LANES if buffer.in_vectors else 1
    is_half = buffer.storage == "halves"
    element = half_type(lanes) if is_half else type_name(buffer.dtype, lanes)
    return f"array<{element}, {size // lanes}>"


def _constant_size(buffer: Buffer, function: LoopFunction) -> int:
    """The number of elements of a flat buffer, which must be a literal."""
    size = as_int(buffer.shape[0]) if buffer.shape else 1
    if size is None:
        raise InternalError(
            f"webgpu: kernel {function.name}: {buffer.scope} buffer {buffer.name} has no constant "
            "size"
        )
    return size


def _check_workgroup_memory(function: LoopFunction) -> None:
    """Raise InternalError if the variables exceed the workgroup memory that every device has."""
    sizes: dict[str, int] = {}
    for buffer in function.allocations:
        if buffer.scope == "shared":
            is_half = buffer.storage == "halves"
            element = buffer.dtype.bytes if is_half else max(WORD_BYTES, buffer.dtype.bytes)
            sizes[buffer.name] = counted_bytes(_constant_size(buffer, function) * element)
    if sum(sizes.values()) > MAX_WORKGROUP_BYTES:
        parts = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise InternalError(
            f"webgpu: kernel {function.name}: it needs {sum(sizes.values())} bytes of workgroup "
            f"memory ({parts}), more than {MAX_WORKGROUP_BYTES}"
        )


def _element_type(buffer: Buffer) -> str:
    """The element type of a parameter, in the form in which the shader addresses it."""
    if buffer.storage == "atomic words":
        return "atomic<u32>"
    if buffer.storage == "words":
        is_pair = buffer.in_vectors and buffer.dtype.bytes == 2
        return "vec2u" if is_pair else "u32"
    lanes = VECTOR_LANES if buffer.in_vectors else 1
    return half_type(lanes) if buffer.storage == "halves" else type_name(buffer.dtype, lanes)


def uniform(binding: int, words: int) -> str:
    """The declaration of the uniform, which holds words of 32 bits as vectors."""
    vectors = -(-words // VECTOR_LANES)
    array = f"array<vec4<i32>, {vectors}>"
    return f"@group(0) @binding({binding}) var<uniform> symbols_{NUMBER}: {array};"


def section_name(number: int) -> str:
    """The override that marks an optional section, whose text a pipeline may leave out."""
    return f"section_{number}_{NUMBER}"


def word(position: int) -> str:
    """A word of the uniform."""
    vector, component = divmod(position, VECTOR_LANES)
    return f"symbols_{NUMBER}[{vector}].{'xyzw'[component]}"


def declarations(
    function: LoopFunction,
    constants: frozenset[str],
    optional_sections: int = 0,
) -> list[str]:
    """The declarations of the bindings, of workgroup memory, and of an override for each optional
    section.

    Raises InternalError, with the kernel's name, for more workgroup memory than a device has.
    """
    _check_workgroup_memory(function)
    lines = [f"override {section_name(number)} = true;" for number in range(optional_sections)]
    for position, buffer in enumerate(function.params):
        access = "read" if buffer.name in constants else "read_write"
        element = _element_type(buffer)
        lines.append(
            f"@group(0) @binding({position}) "
            f"var<storage, {access}> {memory_name(buffer)}: array<{element}>;"
        )
    if function.symbols:
        lines.append(uniform(len(function.params), len(function.symbols)))
    for buffer in function.allocations:
        match buffer.scope:
            case "shared":
                array = array_type(buffer, function)
                lines.append(f"var<workgroup> {memory_name(buffer)}: {array};")
            case "global":
                raise InternalError(
                    f"webgpu: kernel {function.name}: buffer {buffer.name} is global and no "
                    "parameter: a dispatch cannot wait for all its workgroups, so what writes it "
                    "must be a kernel of its own"
                )
    return lines


def declared_in_place(function: LoopFunction) -> dict[int, str]:
    """The stores that can declare their register: `let r = x_0[i];` for `var r: f32; r = x_0[i];`.
    Such a store is the register's first, in a sequence whose later statements hold all uses of the
    register.

    Maps the identity of the store to `let` where it is the register's only store, else to `var`.
    """
    store_counts = Counter(store.buffer.name for store in stores(function.body))
    access_counts = store_counts + Counter(load.buffer.name for load in loads(function.body))
    declarations: dict[int, str] = {}
    for stmt in walk_statements(function.body):
        if isinstance(stmt, Seq):
            declarations |= _declared_in(stmt, access_counts, store_counts)
    return declarations


def _declared_in(
    sequence: Seq,
    access_counts: Counter[str],
    store_counts: Counter[str],
) -> dict[int, str]:
    """The declaring stores that stand directly in `sequence`."""
    first_stores: dict[str, Store] = {}
    counts_here = Counter[str]()
    for stmt in sequence.statements:
        if isinstance(stmt, Store) and stmt.buffer.storage == "register":
            first_stores.setdefault(stmt.buffer.name, stmt)
        names = [load.buffer.name for load in loads(stmt)] + [s.buffer.name for s in stores(stmt)]
        counts_here.update(name for name in names if name in first_stores)
    return {
        id(store): "let" if store_counts[name] == 1 else "var"
        for name, store in first_stores.items()
        if counts_here[name] == access_counts[name]
    }
