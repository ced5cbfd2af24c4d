"""Intrinsics: the only table of the operations that `tensorize` puts in the place of a loop nest.

An intrinsic is a description plus an implementation, both loop functions over the same parameters:
`tensorize` matches the description against a schedule, and writes the implementation there. An
implementation is ordinary loop IR. If a row has texts, its implementation calls an instruction with
these texts (`describe_instruction`), and the description says what the instruction computes.

    schedule.tensorize("i1", "matmul_4x4_f32")
    schedule.tensorize("j1", "f32x4.relaxed_madd")

The names of rows with texts are those of the instructions of WebAssembly and the functions of WGSL.
The operands of a row whose name ends with `.words` are packed words of bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from webmlc.core.dtypes import DType
from webmlc.core.expr import Call, Var
from webmlc.core.instruction import INSTRUCTIONS, Instruction, InstructionCall, Text
from webmlc.loops.ir import LoopFunction, Store, inside_loops
from webmlc.loops.text import parse_function
from webmlc.schedule.describe_instruction import describe_instruction, nest, nest_of


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """A row: the loops around one store that say what it computes, the loop function that computes
    it, and the instruction that the implementation calls, if it calls one.
    """

    name: str
    semantics: LoopFunction
    implementation: LoopFunction
    instruction: Instruction | None = None


INTRINSICS: dict[str, Intrinsic] = {}
"""Every intrinsic by name."""


def intrinsic_of_texts(name: str, description: LoopFunction, *texts: Text) -> Intrinsic:
    """The intrinsic of an instruction. Raises `UserError` for a description of no instruction."""
    semantics = nest_of(description)
    instruction, implementation = describe_instruction(name, semantics, texts)
    return Intrinsic(name, semantics, implementation, instruction)


def intrinsic_of_fold(name: str, description: LoopFunction, text: Text) -> Intrinsic:
    """The intrinsic of an instruction that folds the values of the threads of a subgroup. The
    description is a loop with one update of the first element of its output.
    """
    semantics = nest_of(description)
    loops, store = nest(semantics.body)
    assert isinstance(store, Store) and isinstance(store.value, Call)  # of the rows below
    result, term = store.value.args
    operand = Var("A", term.dtype)
    instruction = Instruction(name, (operand,), operand, 1, (text,), folds=True)
    value = replace(store.value, args=(result, InstructionCall(instruction, (term,))))
    body = inside_loops(loops, replace(store, value=value))
    return Intrinsic(name, semantics, replace(semantics, body=body), instruction)


def add_intrinsic(row: Intrinsic) -> None:
    """Add a row to the table, or put it in the place of an earlier row of its name."""
    INTRINSICS[row.name] = row
    INSTRUCTIONS.pop(row.name, None)
    if row.instruction is not None:
        INSTRUCTIONS[row.name] = row.instruction


def _kernel(parameters: str, body: str) -> LoopFunction:
    return parse_function(f"@T.kernel\ndef description({parameters}):\n{body}")


def _add(name: str, parameters: str, body: str, *texts: Text) -> None:
    add_intrinsic(intrinsic_of_texts(name, _kernel(parameters, body), *texts))


def _add_nest(name: str, parameters: str, body: str, implementation: str) -> None:
    description, written = _kernel(parameters, body), _kernel(parameters, implementation)
    add_intrinsic(Intrinsic(name, nest_of(description), written))


# -- nests of the loop language ------------------------------------------------------------------

_MATRICES = {"A": "Buffer", "B": "Buffer", "C": "Output"}.items()
_add_nest(
    "matmul_4x4_f32",
    ", ".join(f'{name}: T.{kind}((4, 4), "float32")' for name, kind in _MATRICES),
    """\
    for i, j, k in T.grid(4, 4, 4):
        C[i, j] = C[i, j] + A[i, k] * B[k, j]
""",
    # Rows of C stay in registers; each row of B is loaded once for all rows of A.
    """\
    tile = T.alloc_buffer((4, 4), "float32", scope="local")
    for i0 in T.unrolled(4):
        for j0 in T.vectorized(4):
            tile[i0, j0] = C[i0, j0]
    for k1 in T.unrolled(4):
        for i1 in T.unrolled(4):
            for j1 in T.vectorized(4):
                tile[i1, j1] = T.fma(A[i1, k1], B[k1, j1], tile[i1, j1])
    for i2 in T.unrolled(4):
        for j2 in T.vectorized(4):
            C[i2, j2] = tile[i2, j2]
""",
)
_add_nest(
    "madd_f32x4",
    'A: T.Buffer((), "float32"), B: T.Buffer((4,), "float32"), C: T.Output((4,), "float32")',
    """\
    for j in range(4):
        C[j] = C[j] + A[()] * B[j]
""",
    """\
    for j in T.vectorized(4):
        C[j] = T.fma(A[()], B[j], C[j])
""",
)
_add_nest(
    "dot_f32x4",
    'A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32"), C: T.Output((), "float32")',
    """\
    for k in range(4):
        C[()] = C[()] + A[k] * B[k]
""",
    # Two sums of two: half the latency of a chain of four.
    """\
    C[()] = C[()] + (T.fma(A[1], B[1], A[0] * B[0]) + T.fma(A[3], B[3], A[2] * B[2]))
""",
)

# -- instructions of WebAssembly -----------------------------------------------------------------

_WORDS = 'A: T.Buffer((4,), "int32"), B: T.Buffer((4,), "int32"), C: T.Output((4,), "int32")'
_RELAXED_DOT = "(i32x4.relaxed_dot_i8x16_i7x16_add_s {B} {A} {C})"

_add(
    "f32x4.relaxed_madd",
    'A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32"), C: T.Output((4,), "float32")',
    """\
    for j in range(4):
        C[j] = C[j] + A[j] * B[j]
""",
    Text("wasm", "(f32x4.relaxed_madd {A} {B} {C})", "relaxed"),
)
_add(
    "i32x4.dot_i16x8_s",
    'A: T.Buffer((4, 2), "int16"), B: T.Buffer((4, 2), "int16"), C: T.Output((4,), "int32")',
    """\
    for j, k in T.grid(4, 2):
        C[j] = C[j] + T.cast(A[j, k], "int32") * T.cast(B[j, k], "int32")
""",
    Text("wasm", "(i32x4.dot_i16x8_s {A} {B})"),
)
# Signed bytes: the products of the even bytes and of the odd bytes, extended to 16 bits.
_EVEN = "(i16x8.shr_s (i16x8.shl {0} (i32.const 8)) (i32.const 8))"
_ODD = "(i16x8.shr_s {0} (i32.const 8))"
_add(
    "i8x16.dot_s",
    'A: T.Buffer((4, 4), "int8"), B: T.Buffer((4, 4), "int8"), C: T.Output((4,), "int32")',
    """\
    for j, k in T.grid(4, 4):
        C[j] = C[j] + T.cast(A[j, k], "int32") * T.cast(B[j, k], "int32")
""",
    Text(
        "wasm",
        f"(i32x4.add (i32x4.dot_i16x8_s {_EVEN.format('{A}')} {_EVEN.format('{B}')})"
        f" (i32x4.dot_i16x8_s {_ODD.format('{A}')} {_ODD.format('{B}')}))",
    ),
)
# The instruction is exact on every machine if no byte of A exceeds 127 ...
_add(
    "i32x4.relaxed_dot_i8x16_i7x16_add_s",
    'A: T.Buffer((4, 4), "uint8"), B: T.Buffer((4, 4), "int8"), C: T.Output((4,), "int32")',
    """\
    for j, k in T.grid(4, 4):
        C[j] = C[j] + T.cast(A[j, k] & T.uint8(127), "int32") * T.cast(B[j, k], "int32")
""",
    Text(
        "wasm",
        _RELAXED_DOT.replace("{A}", f"(v128.and {{A}} (v128.const i8x16{' 127' * 16}))"),
        "relaxed",
    ),
)
_add(
    "i32x4.relaxed_dot_i8x16_i7x16_add_s.words",
    _WORDS,
    """\
    for j in range(4):
        C[j] = C[j] + T.dot_u7_i8(A[j], B[j])
""",
    Text("wasm", _RELAXED_DOT, "relaxed"),
)
# ... and for all bytes on machines with the feature "dot".
_add(
    "i32x4.relaxed_dot_i8x16_u8x16_add_s",
    'A: T.Buffer((4, 4), "uint8"), B: T.Buffer((4, 4), "int8"), C: T.Output((4,), "int32")',
    """\
    for j, k in T.grid(4, 4):
        C[j] = C[j] + T.cast(A[j, k], "int32") * T.cast(B[j, k], "int32")
""",
    Text("wasm", _RELAXED_DOT, "dot"),
)
_add(
    "i32x4.relaxed_dot_i8x16_u8x16_add_s.words",
    _WORDS,
    """\
    for j in range(4):
        C[j] = C[j] + T.dot_u8_i8(A[j], B[j])
""",
    Text("wasm", _RELAXED_DOT, "dot"),
)
_add(
    "i16x8.relaxed_dot_i8x16_i7x16_s.words",
    _WORDS,
    """\
    for j in range(4):
        C[j] = (
            (A[j] & 255) * (B[j] << 24 >> 24) + (A[j] >> 8 & 255) * (B[j] << 16 >> 24) & 65535
            | (A[j] >> 16 & 255) * (B[j] << 8 >> 24) + (A[j] >> 24 & 255) * (B[j] >> 24) << 16
        )
""",
    Text("wasm", "(i16x8.relaxed_dot_i8x16_i7x16_s {B} {A})", "relaxed"),
)

# -- functions of WGSL ---------------------------------------------------------------------------

_DOT4 = "dot4I8Packed(bitcast<u32>({A}), bitcast<u32>({B}))"

_add(
    "dot4I8Packed",
    'A: T.Buffer((4,), "int8"), B: T.Buffer((4,), "int8"), C: T.Output((), "int32")',
    """\
    for k in range(4):
        C[()] = C[()] + T.cast(A[k], "int32") * T.cast(B[k], "int32")
""",
    Text("webgpu", _DOT4),
)
_add(
    "dot4I8Packed.words",
    'A: T.Buffer((), "int32"), B: T.Buffer((), "int32"), C: T.Output((), "int32")',
    """\
    C[()] = C[()] + T.dot_i8(A[()], B[()])
""",
    Text("webgpu", _DOT4),
)
_add(
    "dot4U8Packed",
    'A: T.Buffer((4,), "uint8"), B: T.Buffer((4,), "uint8"), C: T.Output((), "uint32")',
    """\
    for k in range(4):
        C[()] = C[()] + T.cast(A[k], "uint32") * T.cast(B[k], "uint32")
""",
    Text("webgpu", _DOT4.replace("I8", "U8")),
)

# -- folds of subgroups --------------------------------------------------------------------------

# By operator: the function of WGSL for floats and for integers. A name with an underscore is a
# function of ours, which keeps a NaN.
_FOLDS = {
    "add": ("subgroupAdd", "subgroupAdd"),
    "mul": ("subgroupMul", "subgroupMul"),
    "max": ("subgroup_maximum", "subgroupMax"),
    "min": ("subgroup_minimum", "subgroupMin"),
    "relaxed_max": ("subgroupMax", None),
}
_FOLDED_TYPES = (DType.float32, DType.int32, DType.uint32)


def fold_name(op: str, dtype: DType) -> str:
    """The name of the intrinsic that folds values of a type by an operator."""
    ending = "" if dtype is DType.float32 else f".{dtype}"
    words = "".join(word.capitalize() for word in op.split("_"))
    return f"subgroup{words}{ending}"


for _op, _names in _FOLDS.items():
    for _dtype in _FOLDED_TYPES:
        _function = _names[0 if _dtype.is_float else 1]
        if _function is not None:
            _description = _kernel(
                f'A: T.Buffer((32,), "{_dtype}"), C: T.Output((), "{_dtype}")',
                f"""\
    for u in range(32):
        C[()] = T.{_op}(C[()], A[u])
""",
            )
            _text = Text("webgpu", f"{_function}({{A}})", "subgroups")
            _fold = fold_name(_op, _dtype)
            add_intrinsic(intrinsic_of_fold(_fold, _description, _text))
