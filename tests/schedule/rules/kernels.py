"""Naive loop functions for the tests of rules, made from tensor expressions as fusion makes
them.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webmlc.core.combination import combination
from webmlc.core.dtypes import DType
from webmlc.core.expr import (
    Const,
    Expr,
    Var,
    as_expr,
    as_int,
    call,
    const,
    maximum,
    minimum,
    select,
)
from webmlc.core.rewrite import evaluate
from webmlc.core.simplify import simplify
from webmlc.graph.algorithms.attention.operators import attention as attention_of
from webmlc.graph.algorithms.attention.operators import packed_values, plain_values
from webmlc.graph.algorithms.strassen.operators import PRODUCTS, left_planes, strassen_product
from webmlc.graph.algorithms.winograd.operators import (
    Form,
    input_planes,
    output_tiles,
    plane_products,
)
from webmlc.graph.compute import Tensor, compute, placeholder, reduce, stages_of
from webmlc.graph.ops.layout import packed_product
from webmlc.loops.from_graph import _Lowering, symbols_in
from webmlc.loops.interp import run
from webmlc.loops.ir import (
    Axis,
    Block,
    Buffer,
    For,
    LoopFunction,
    Seq,
    Stmt,
    Store,
    map_statements,
    seq,
)
from webmlc.loops.kernel_form import CPU_FORM

Size = int | Expr
Arrays = dict[str, NDArray[Any]]
S = Var("s")


def naive(inputs: list[Tensor], *results: Tensor) -> LoopFunction:
    """The function that computes `results` of `inputs`, one block a stage, as `from_graph` does."""
    values = tuple(f"y{p}" for p in range(len(results)))
    body: Any = SimpleNamespace(nodes=(), outputs=values)
    lowering = _Lowering(body, "kernel", CPU_FORM)
    for tensor in inputs:
        lowering.buffers[tensor] = Buffer(tensor.name, tensor.shape, tensor.dtype)
    lowering.tensors.update(zip(body.outputs, results, strict=True))
    outputs = tuple(Buffer(f"out{p}", t.shape, t.dtype) for p, t in enumerate(results))
    statements = lowering.emit_stages(stages_of(results), outputs, {})
    params = (*(lowering.buffers[t] for t in inputs), *outputs)
    allocations = tuple(lowering.allocations)
    function = LoopFunction("kernel", params, len(outputs), (), allocations, seq(*statements))
    return replace(function, symbols=symbols_in(function))


def bordered(function: LoopFunction, *sizes: Size) -> LoopFunction:
    """The function, its result (of `sizes`: rows, columns, channels) in a map with a zero before
    each row and column and two after.
    """
    *inputs, result = function.params
    rows, columns, channels = (as_expr(size) for size in sizes)
    whole = replace(result, shape=(result.shape[0], rows + 3, columns + 3, channels))
    nests = function.body.statements if isinstance(function.body, Seq) else (function.body,)

    def moved(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Store) or stmt.buffer != result:
            return None
        n, y, x, c = stmt.indices
        return Store(whole, (n, y + 1, x + 1, c), stmt.value)

    slabs = []
    for number, (start, extents) in enumerate(
        (
            ((0, 0), (1, columns + 3)),
            ((rows + 1, 0), (2, columns + 3)),
            ((1, 0), (rows, 1)),
            ((1, columns + 1), (rows, 2)),
        )
    ):
        axes = [Var(f"fill{number}_{d}") for d in range(4)]
        shape = (result.shape[0], *(as_expr(e) for e in extents), channels)
        own = tuple(
            Axis(Var(f"v_{a.name}"), e, "spatial") for a, e in zip(axes, shape, strict=True)
        )
        n, y, x, c = (axis.var for axis in own)
        store = Store(whole, (n, y + start[0], x + start[1], c), Const(0.0, DType.float32))
        nest: Stmt = Block(f"fill{number}", own, tuple(axes), store)
        for axis, extent in reversed(list(zip(axes, shape, strict=True))):
            nest = For(axis, extent, nest)
        slabs.append(nest)
    body = seq(*nests[:-1], *slabs, map_statements(nests[-1], moved))
    return replace(function, params=(*inputs, whole), body=body)


def arguments(function: LoopFunction, symbols: dict[str, int]) -> Arrays:
    """Random inputs; outputs full of what no kernel computes."""
    generator = np.random.default_rng(0)
    found: Arrays = {}
    for position, buffer in enumerate(function.params):
        shape = tuple(int(evaluate(d, symbols)) for d in buffer.shape)
        dtype = buffer.dtype.numpy
        if position >= len(function.params) - function.outputs:
            found[buffer.name] = np.full(shape, 77, dtype)
        elif buffer.dtype.is_float:
            found[buffer.name] = generator.standard_normal(shape).astype(dtype)
        else:
            found[buffer.name] = generator.integers(0, 50, shape).astype(dtype)
    return found


def outputs_of(function: LoopFunction, symbols: dict[str, int]) -> list[NDArray[Any]]:
    """The results of the function for `arguments`."""
    data = arguments(function, symbols)
    run(function, data, symbols)
    return [data[b.name] for b in function.output_params()]


def _sizes(*sizes: Size) -> tuple[Expr, ...]:
    return tuple(as_expr(size) for size in sizes)


def _tensor(name: str, *shape: Size, dtype: DType = DType.float32) -> Tensor:
    return placeholder(name, _sizes(*shape), dtype)


def _f32(value: float) -> Const:
    return const(value, DType.float32)


def matmul(m: Size, n: Size, k: int, epilogue: bool = True) -> LoopFunction:
    """Packed right operand; bias and relu as epilogue."""
    a, b, c = _tensor("a", m, k), _tensor("b", (as_expr(n) + 7) // 8, k, 8), _tensor("c", n)
    shape = _sizes(m, n)
    y = reduce("matmul", shape, _sizes(k), "add", lambda i, j, r: a[i, r] * b[j // 8, r, j % 8])
    if not epilogue:
        return naive([a, b], y)
    z = compute("relu", shape, lambda i, j: maximum(y[i, j] + c[j], _f32(0)))
    return naive([a, b, c], z)


def matmul_of_words(m: Size, n: Size, k: int) -> LoopFunction:
    """A product of words of four signed bytes."""
    a = _tensor("a", m, k, dtype=DType.int32)
    b = _tensor("b", (as_expr(n) + 7) // 8, k, 8, dtype=DType.int32)
    y = reduce(
        "matmul", _sizes(m, n), _sizes(k), "add",
        lambda i, j, r: call("dot_i8", a[i, r], b[j // 8, r, j % 8]),
    )  # fmt: skip
    return naive([a, b], y)


def matmul_sigmoid(m: Size, n: Size, k: int) -> LoopFunction:
    """An epilogue that takes a polynomial."""
    a, b = _tensor("a", m, k), _tensor("b", (as_expr(n) + 7) // 8, k, 8)
    shape = _sizes(m, n)
    y = reduce("matmul", shape, _sizes(k), "add", lambda i, j, r: a[i, r] * b[j // 8, r, j % 8])
    one = _f32(1)
    z = compute("sigmoid", shape, lambda i, j: one / (one + call("exp", -y[i, j])))
    return naive([a, b], z)


def block_product(m: Size, n: Size, blocks: int, minimums: bool = True) -> LoopFunction:
    """Weights of 4 bits in blocks of 32, with a minimum for each block; relu as epilogue."""
    word = DType.int32
    x, w = _tensor("x", m, blocks, 8, dtype=word), _tensor("w", 3, blocks, 4, 8, dtype=word)
    xs, d, c = _tensor("xs", m, blocks), _tensor("d", 3, blocks, 8), _tensor("c", 3, blocks, 8)

    def nibbles(i: Expr, b: Expr, j: Expr, k: Expr, part: Expr) -> Expr:
        bits = call("shift_right", w[j // 8, b, k, j % 8], part * 4) & const(0x0F0F0F0F)
        return call("dot_u7_i8", bits, x[i, b, part * 4 + k])

    dots = reduce("dots", _sizes(m, blocks, n), _sizes(4, 2), "add", nibbles)

    def scaled(i: Expr, j: Expr, b: Expr) -> Expr:
        place = (j // 8, b, j % 8)
        value = d[place] * dots[i, b, j].astype(DType.float32)
        return xs[i, b] * (value + c[place] if minimums else value)

    y = reduce("product", _sizes(m, n), _sizes(blocks), "add", scaled)
    z = compute("relu", _sizes(m, n), lambda i, j: maximum(y[i, j], _f32(0)))
    return naive([x, xs, w, d, *([c] if minimums else [])], z)


def float_block_product(m: Size, n: int, blocks: int, normalised: bool = True) -> LoopFunction:
    """Float32 rows, normalised or not, times two matrices of 4 bits in blocks of 32; the product of
    the two as epilogue.
    """
    depth = 32 * blocks
    x, g = _tensor("x", m, depth), _tensor("g", depth)
    w = _tensor("w", 2 * n // 8, blocks, 4, 8, dtype=DType.int32)
    d, c = (_tensor(name, 2 * n // 8, blocks, 8) for name in ("d", "c"))
    squares = reduce("squares", _sizes(m), _sizes(depth), "add", lambda i, k: x[i, k] * x[i, k])

    def product(first: int) -> Tensor:
        def term(i: Expr, j: Expr, b: Expr, k: Expr, part: Expr, byte: Expr) -> Expr:
            panel, lane = (first + j) // 8, (first + j) % 8
            bits = call("shift_right", w[panel, b, k, lane], byte * 8 + part * 4) & const(15)
            weight = bits.astype(DType.float32) * d[panel, b, lane] + c[panel, b, lane]
            place = ((b * 2 + part) * 4 + k) * 4 + byte
            factor = call("sqrt", squares[i]) * g[place] if normalised else g[place]
            return x[i, place] * factor * weight

        return reduce("product", _sizes(m, n), _sizes(blocks, 4, 2, 4), "add", term)

    y, z = product(0), product(n)
    return naive([x, g, w, d, c], compute("mul", _sizes(m, n), lambda i, j: y[i, j] * z[i, j]))


def winograd_input(tiles: int, channels: int) -> LoopFunction:
    """The planes of F(2x2, 3x3) of a row of tiles."""
    a = _tensor("a", 4, 2 * tiles + 2, channels)
    matrix = Form(3, 1, 2, 3).transforms.input

    def column(x: Expr, b: Expr, i: Expr, c: Expr) -> Expr:
        return combination(matrix, i, [a[y, x * 2 + b, c] for y in range(4)])

    def plane(i: Expr, j: Expr, x: Expr, c: Expr) -> Expr:
        return combination(matrix, j, [columns[x, b, i, c] for b in range(4)])

    columns = compute("columns", _sizes(tiles, 4, 4, channels), column, keep=True)
    return naive([a], compute("planes", _sizes(4, 4, tiles, channels), plane))


def winograd_rows(tiles: int, channels: int) -> LoopFunction:
    """The planes of F(2x1, 3x1): one transform, no stage before it."""
    a = _tensor("a", 1, 2 * tiles + 2, 3, channels)
    shape = _sizes(4, 1, 1, tiles, 3, channels)
    return naive([a], input_planes(a, (Form(3, 1, 2, 3), Form(1, 1, 1, 1)), shape))


def winograd_output(form: Form, size: int, outputs: int, batch: Size = 1) -> LoopFunction:
    """The outputs of a square map of the products of such tiles; relu."""
    tiles = form.tiles(as_expr(size))
    a = _tensor("a", form.planes, form.planes, batch, tiles, tiles, outputs)
    y = output_tiles(a, (form, form), _sizes(batch, size, size, outputs))
    return naive([a], compute("relu", y.shape, lambda *i: maximum(y[i], _f32(0))))


def special_element(size: int) -> LoopFunction:
    """Another value for the first element: no formula for each."""
    a = _tensor("a", 4, size)

    def element(i: Expr, j: Expr) -> Expr:
        return select(i.equals(0), a[i, j] * _f32(2), a[i, j])

    return naive([a], compute("special", a.shape, element))


def winograd(form: Form, size: int, channels: int, outputs: int, batch: Size = 1) -> LoopFunction:
    """A whole convolution of a square map, in such tiles; relu."""
    tiles = as_int(form.tiles(as_expr(size)))
    assert tiles is not None
    side = tiles * form.step + form.span - form.step
    a = _tensor("a", batch, side, side, channels)
    b = _tensor("b", form.planes, form.planes, outputs // 8, 1, 1, channels, 8)
    planes = _sizes(form.planes, form.planes, batch, tiles, tiles)
    inputs = input_planes(a, (form, form), (*planes, as_expr(channels)))
    products = plane_products(inputs, b, (*planes, as_expr(outputs)))
    y = output_tiles(products, (form, form), _sizes(batch, size, size, outputs))
    return naive([a, b], compute("relu", y.shape, lambda *i: maximum(y[i], _f32(0))))


def strassen_input(m: int, k: int, batch: Size = 1) -> LoopFunction:
    """The planes of a left operand."""
    a = _tensor("a", batch, m, k)
    return naive([a], left_planes(a, _sizes(PRODUCTS, batch, (m + 1) // 2, k // 2)))


def strassen(m: int, n: int, k: int, batch: Size = 1, polynomial: bool = False) -> LoopFunction:
    """A product of such planes; bias, and relu or a polynomial."""
    a, c = _tensor("a", PRODUCTS, batch, (m + 1) // 2, k // 2), _tensor("c", n)
    b = _tensor("b", n // 8, k, 8)
    y = strassen_product(a, b, _sizes(batch, m, n))

    def finish(h: Expr, i: Expr, j: Expr) -> Expr:
        value = y[h, i, j] + c[j]
        return call("exp", value) if polynomial else maximum(value, _f32(0))

    return naive([a, b, c], compute("finish", y.shape, finish))


def attention_scores(heads: int, m: Size, n: Size, k: int) -> LoopFunction:
    """Both operands from run time, the right one row-major; scaled."""
    a, b = _tensor("a", heads, m, k), _tensor("b", heads, k, n)
    shape = _sizes(heads, m, n)
    y = reduce("matmul", shape, _sizes(k), "add", lambda h, i, j, r: a[h, i, r] * b[h, r, j])
    return naive([a, b], compute("scale", shape, lambda h, i, j: y[h, i, j] * _f32(0.125)))


def packed_scores(heads: int, m: Size, n: Size, k: int) -> LoopFunction:
    """Both operands from run time, the right one in panels of 8 columns; scaled."""
    a, shape = _tensor("a", heads, m, k), _sizes(heads, m, n)
    b = _tensor("b", heads, (shape[2] + 7) // 8, k, 8)
    y = reduce(
        "matmul", shape, _sizes(k), "add", lambda h, i, j, r: a[h, i, r] * b[h, j // 8, r, j % 8]
    )
    return naive([a, b], compute("scale", shape, lambda h, i, j: y[h, i, j] * _f32(0.125)))


def transposed_matmul(m: Size, n: Size, k: Size) -> LoopFunction:
    """Both operands contiguous along the reduction."""
    a, b = _tensor("a", m, k), _tensor("b", n, k)
    return naive(
        [a, b],
        reduce("matmul", _sizes(m, n), _sizes(k), "add", lambda i, j, r: a[i, r] * b[j, r]),
    )


def transposed_matmul_sigmoid(m: Size, n: Size, k: Size) -> LoopFunction:
    """The same with an epilogue that takes a polynomial."""
    a, b, one = _tensor("a", m, k), _tensor("b", n, k), _f32(1)
    y = reduce("matmul", _sizes(m, n), _sizes(k), "add", lambda i, j, r: a[i, r] * b[j, r])
    z = compute("sigmoid", _sizes(m, n), lambda i, j: one / (one + call("exp", -y[i, j])))
    return naive([a, b], z)


def convolution(
    height: Size, width: Size, channels: int, outputs: int, kernel: int, stride: int = 1,
    batch: Size = 1, skip: bool = True,
) -> LoopFunction:  # fmt: skip
    """NHWC over a padded map, packed weights; bias, a second input and relu as epilogue."""
    rows, columns = as_expr(height), as_expr(width)
    reach = kernel - stride
    x = _tensor("x", batch, rows * stride + reach, columns * stride + reach, channels)
    panel = 8 if outputs > 1 else 1
    w = _tensor("w", -(-outputs // panel), kernel, kernel, channels, panel)
    b, r = _tensor("b", outputs), _tensor("r", batch, height, width, outputs)
    shape = _sizes(batch, height, width, outputs)

    def product(n: Expr, y: Expr, v: Expr, o: Expr, ky: Expr, kx: Expr, i: Expr) -> Expr:
        return x[n, y * stride + ky, v * stride + kx, i] * w[o // panel, ky, kx, i, o % panel]

    total = reduce("conv", shape, _sizes(kernel, kernel, channels), "add", product)

    def epilogue(n: Expr, y: Expr, v: Expr, o: Expr) -> Expr:
        biased = total[n, y, v, o] + b[o]
        return maximum(biased + r[n, y, v, o] if skip else biased, _f32(0))

    inputs = [x, w, b, r] if skip else [x, w, b]
    return naive(inputs, compute("relu", shape, epilogue))


def grouped_convolution(
    size: int, groups: int, inputs: int, outputs: int, kernel: int = 3
) -> LoopFunction:
    """A convolution in groups of `inputs` and `outputs` channels."""
    x = _tensor("x", 1, size + kernel - 1, size + kernel - 1, groups * inputs)
    w = _tensor("w", groups, (outputs + 7) // 8, kernel, kernel, inputs, 8)

    def product(n: Expr, y: Expr, v: Expr, o: Expr, ky: Expr, kx: Expr, i: Expr) -> Expr:
        group, within = o // outputs, o % outputs
        weight = w[group, within // 8, ky, kx, i, within % 8]
        return x[n, y + ky, v + kx, group * inputs + i] * weight

    shape = _sizes(1, size, size, groups * outputs)
    return naive([x, w], reduce("conv", shape, _sizes(kernel, kernel, inputs), "add", product))


def depthwise(
    height: Size, width: Size, channels: int, kernel: int, stride: int = 1, epilogue: bool = True
) -> LoopFunction:
    """NHWC over a padded map."""
    reach = kernel - stride
    rows, columns = as_expr(height), as_expr(width)
    x = _tensor("x", 1, rows * stride + reach, columns * stride + reach, channels)
    w, b = _tensor("w", kernel, kernel, channels), _tensor("b", channels)
    shape = _sizes(1, height, width, channels)

    def product(n: Expr, y: Expr, v: Expr, c: Expr, ky: Expr, kx: Expr) -> Expr:
        return x[n, y * stride + ky, v * stride + kx, c] * w[ky, kx, c]

    total = reduce("depthwise", shape, _sizes(kernel, kernel), "add", product)
    if not epilogue:
        return naive([x, w], total)
    biased = compute("relu", shape, lambda *i: maximum(total[i] + b[i[-1]], _f32(0)))
    return naive([x, w, b], biased)


def depthwise_of_bytes(height: int, width: int, channels: int) -> LoopFunction:
    """Windows of 3x3 over a padded map of NHWC, whose sums are clipped to bytes."""
    x = _tensor("x", 1, height + 2, width + 2, channels, dtype=DType.uint8)
    w = _tensor("w", 3, 3, channels, dtype=DType.int8)
    shape = _sizes(1, height, width, channels)

    def product(n: Expr, y: Expr, v: Expr, c: Expr, ky: Expr, kx: Expr) -> Expr:
        data, weight = x[n, y + ky, v + kx, c], w[ky, kx, c]
        return data.astype(DType.int32) * weight.astype(DType.int32)

    total = reduce("depthwise", shape, _sizes(3, 3), "add", product)
    low, high = const(0), const(255)
    clipped = compute("clip", shape, lambda *i: minimum(maximum(total[i], low), high))
    return naive([x, w], compute("byte", shape, lambda *i: clipped[i].astype(DType.uint8)))


def pool(size: int, channels: int, kernel: int, combine: str) -> LoopFunction:
    """Stride 2 over a padded map; the average divides."""
    x = _tensor("x", 1, size * 2 + kernel - 2, size * 2 + kernel - 2, channels)
    shape = _sizes(1, size, size, channels)
    total = reduce(
        "pool", shape, _sizes(kernel, kernel), combine,
        lambda n, y, v, c, ky, kx: x[n, y * 2 + ky, v * 2 + kx, c],
    )  # fmt: skip
    if combine == "relaxed_max":
        return naive([x], total)
    scale = _f32(1 / (kernel * kernel))
    return naive([x], compute("average", shape, lambda *i: total[i] * scale))


def local_response(pixels: int, channels: int, size: int) -> LoopFunction:
    """Divide by a sum over neighbouring channels. There are fewer neighbours at the ends."""
    x = _tensor("x", pixels, channels)
    before = (size - 1) // 2

    def square(p: Expr, c: Expr, r: Expr) -> Expr:
        channel = c + r - before
        inside = (channel >= 0) & (channel < channels)
        return select(inside, x[p, channel] * x[p, channel], _f32(0))

    total = reduce("squares", x.shape, _sizes(size), "add", square)
    return naive([x], compute("lrn", x.shape, lambda *i: x[i] / (total[i] + 1.0)))


def global_average(size: Size, channels: int) -> LoopFunction:
    x = _tensor("x", 2, size, size, channels)
    shape = _sizes(2, 1, 1, channels)
    total = reduce("sum", shape, _sizes(size, size), "add", lambda n, _, __, c, y, v: x[n, y, v, c])
    return naive([x], compute("mean", shape, lambda *i: total[i] * _f32(0.1)))


def softmax(*shape: Size, axis: int = -1) -> LoopFunction:
    """Largest, exponentials, their sum, quotient."""
    x = _tensor("x", *shape)
    axis %= len(shape)
    rows, extent = _sizes(*shape[:axis], *shape[axis + 1 :]), _sizes(shape[axis])

    def at(row: tuple[Expr, ...], k: Expr) -> tuple[Expr, ...]:
        return (*row[:axis], k, *row[axis:])

    def without(i: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (*i[:axis], *i[axis + 1 :])

    top = reduce("max", rows, extent, "relaxed_max", lambda *i: x[at(i[:-1], i[-1])])
    e = compute("exp", x.shape, lambda *i: call("exp", x[i] - top[without(i)]))
    total = reduce("sum", rows, extent, "add", lambda *i: e[at(i[:-1], i[-1])])
    return naive([x], compute("softmax", x.shape, lambda *i: e[i] * (1 / total[without(i)])))


def attention(heads: int, m: int, n: int, d: int, *, masked: bool = False) -> LoopFunction:
    """Both products and the softmax between them, scaled and masked or neither."""
    q, v = _tensor("q", heads, m, 5), _tensor("v", heads, (d + 7) // 8, n, 8)
    k = _tensor("k", heads, (n + 7) // 8, 5, 8)
    mask = _tensor("mask", n)
    scores = packed_product("scores", _sizes(heads, m, n), q, k)
    if masked:
        logits = compute("masked", scores.shape, lambda *i: scores[i] * _f32(0.5) + mask[i[-1:]])
    result = attention_of(_sizes(heads, m, d), logits if masked else scores, v, packed_values)
    return naive([q, k, v, *([mask] if masked else [])], result)


def masked_attention(rows: Size, keys: Size, width: int) -> LoopFunction:
    """The last key of each row is its number: later ones are hidden."""
    q, k, v = _tensor("q", rows, width), _tensor("k", keys, width), _tensor("v", keys, width)
    shape, outer, count = _sizes(rows, keys), _sizes(rows), _sizes(keys)
    scores = reduce("scores", shape, _sizes(width), "add", lambda i, j, d: q[i, d] * k[j, d])

    def logit(i: Expr, j: Expr) -> Expr:
        return select(call("ge", i - j, 0), scores[i, j] * _f32(0.5), _f32(-np.inf))

    logits = compute("logits", shape, logit, keep=True)
    top = reduce("max", outer, count, "max", lambda i, j: logits[i, j])
    e = compute("exp", shape, lambda i, j: call("exp", logits[i, j] - top[i]), keep=True)
    total = reduce("sum", outer, count, "add", lambda i, j: e[i, j])
    result = _sizes(rows, width)
    product = reduce("product", result, count, "add", lambda i, d, j: e[i, j] * v[j, d])
    return naive([q, k, v], compute("attention", result, lambda i, d: product[i, d] / total[i]))


def attention_of_heads(batch: Size, heads: int, rows: Size, keys: Size, width: int) -> LoopFunction:
    """Attention of heads, which a transposition puts beside each other at the end."""
    q, k, v = (
        _tensor(n, batch, s, heads, width) for n, s in zip("qkv", (rows, keys, keys), strict=True)
    )
    shape = _sizes(batch, heads, rows, keys)
    scores = reduce(
        "scores", shape, _sizes(width), "add",
        lambda b, h, i, j, d: q[b, i, h, d] * k[b, j, h, d],
    )  # fmt: skip
    logits = compute("scaled", shape, lambda *i: scores[i] * _f32(0.5))
    values = compute("values", _sizes(batch, heads, keys, width), lambda b, h, j, d: v[b, j, h, d])
    result = attention_of((*shape[:3], *_sizes(width)), logits, values, plain_values)
    return naive(
        [q, k, v],
        compute("heads", q.shape, lambda b, i, h, d: result[b, h, i, d]),
    )


def layer_norm(batch: Size, rows: Size, width: int) -> LoopFunction:
    x, scale, shift = _tensor("x", batch, rows, width), _tensor("g", width), _tensor("b", width)
    outer, inner, share = _sizes(batch, rows), _sizes(width), _f32(1 / width)
    total = reduce("sum", outer, inner, "add", lambda a, i, j: x[a, i, j])
    mean = compute("mean", outer, lambda a, i: total[a, i] * share)

    def square(a: Expr, i: Expr, j: Expr) -> Expr:
        return (x[a, i, j] - mean[a, i]) * (x[a, i, j] - mean[a, i])

    squares = reduce("squares", outer, inner, "add", square)

    def normal(a: Expr, i: Expr, j: Expr) -> Expr:
        deviation = call("sqrt", squares[a, i] * share + _f32(1e-5))
        return (x[a, i, j] - mean[a, i]) / deviation * scale[j] + shift[j]

    return naive([x, scale, shift], compute("norm", x.shape, normal))


def total(*shape: Size, keep: int = 0, combine: str = "add") -> LoopFunction:
    """The sum over all axes but the first `keep`."""
    x = _tensor("x", *shape)
    rows, reduced = _sizes(*shape[:keep]), _sizes(*shape[keep:])
    return naive([x], reduce("sum", rows, reduced, combine, lambda *i: x[i]))


def column_sums(rows: Size, columns: Size, combine: str = "add") -> LoopFunction:
    """Sums of neighbouring columns, halved; or what else `combine` makes of them."""
    x = _tensor("x", rows, columns)
    sums = reduce("sum", _sizes(columns), _sizes(rows), combine, lambda c, r: x[r, c])
    return naive([x], compute("mean", sums.shape, lambda c: sums[c] * _f32(0.5)))


def batch_sums(batch: Size, rows: Size, columns: Size) -> LoopFunction:
    """Sums of squares along the middle axis."""
    x = _tensor("x", batch, rows, columns)
    shape = _sizes(batch, columns)
    return naive(
        [x], reduce("sum", shape, _sizes(rows), "add", lambda b, c, r: x[b, r, c] * x[b, r, c])
    )


def channel_means(batch: Size, channels: Size, *sizes: Size) -> LoopFunction:
    """Sums over the batch and all sizes: runs that a reduction outside them interrupts."""
    x = _tensor("X", batch, channels, *sizes)
    extents = [x.shape[0], *x.shape[2:]]
    sums = reduce("sum", _sizes(channels), extents, "add", lambda c, b, *i: x[(b, c, *i)])
    return naive([x], compute("mean", sums.shape, lambda c: sums[c] * 0.5))


def add(*shape: Size) -> LoopFunction:
    x, y = _tensor("x", *shape), _tensor("y", *shape)
    return naive([x, y], compute("add", x.shape, lambda *i: x[i] + y[i]))


def add_bias(*shape: Size) -> LoopFunction:
    x, y = _tensor("x", *shape), _tensor("y", shape[-1])
    return naive([x, y], compute("add", x.shape, lambda *i: x[i] + y[i[-1]]))


def transpose(permutation: tuple[int, ...], *shape: Size) -> LoopFunction:
    x = _tensor("x", *shape)
    sizes = _sizes(*(shape[p] for p in permutation))
    return naive(
        [x],
        compute(
            "transpose", sizes, lambda *i: x[tuple(i[permutation.index(d)] for d in range(len(i)))]
        ),
    )


def interleave(maps: int, channels: int, size: Size) -> LoopFunction:
    """The channels of several maps side by side, channels last."""
    inputs = [_tensor(f"x{m}", channels, size) for m in range(maps)]

    def element(i: Expr, c: Expr) -> Expr:
        value = inputs[-1][c - (maps - 1) * channels, i]
        for m in reversed(range(maps - 1)):
            value = select(c < (m + 1) * channels, inputs[m][c - m * channels, i], value)
        return value

    shape = _sizes(size, maps * channels)
    return naive(inputs, compute("interleaved", shape, element))


def pack_keys(heads: int, keys: Size, width: int) -> LoopFunction:
    """Rows as panels of eight columns; the last one fills its panel."""
    x = _tensor("x", heads, keys, width)
    count = x.shape[1]

    def element(head: Expr, panel: Expr, i: Expr, lane: Expr) -> Expr:
        return x[(head, minimum(panel * 8 + lane, count - 1), i)]

    panels = simplify((count + 7) // 8)
    return naive([x], compute("packed", (*_sizes(heads), panels, *_sizes(width, 8)), element))


def convert(size: Size) -> LoopFunction:
    """int64 to float32: no vectors."""
    x = _tensor("x", size, dtype=DType.int64)
    return naive([x], compute("convert", x.shape, lambda i: x[i].astype(DType.float32)))


def gather_rows(rows: int, width: int, count: Size) -> LoopFunction:
    """Rows of a table, picked by int64 indices."""
    table, index = _tensor("table", 50 + rows, width), _tensor("index", count, dtype=DType.int64)
    shape = _sizes(count, width)
    return naive(
        [table, index],
        compute("gather", shape, lambda i, j: table[index[i].astype(DType.int32), j]),
    )
