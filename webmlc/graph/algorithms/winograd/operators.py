"""The operators of Winograd convolutions: tiles of outputs, with fewer products than taps.

A feature map is cut into tiles of, for example, 4x4 outputs, which depend on 6x6 inputs. The inputs
and the weights are transformed into 36 planes, each plane is a matrix product over channels, and
the result is transformed back (domain `webmlc`; `use_winograd.py` writes them):

    planes = WinogradInput(map)                # [N, 4·TH + 2, 4·TW + 2, C] -> [6, 6, N, TH, TW, C]
    matrices = WinogradWeights(weights)        # [O/8, 3, 3, C, 8] -> [6, 6, O/8, 1, 1, C, 8]
    sums = WinogradProduct(planes, matrices)   # -> [6, 6, N, TH, TW, O]
    result = WinogradOutput(sums)              # -> [N, H, W, O]

If a window has one dimension, or one tap along the other dimension, each transform works along one
dimension only. If the planes of a feature map outgrow the cache, one operator, `WinogradConv`, does
everything but the transform of the weights. Its kernel processes one row of tiles after the other,
and each row has its own planes. If the size of the feature map is known only at run time, the
kernel computes whole tiles, parts of a row, and vectors of outputs. So no loop tests where the
feature map ends. `WinogradWanted` then leaves out the surplus.

A `Form` says how one dimension is cut. Each transform is two linear combinations
(`core/combination.py`), along columns and along rows. A window of stride s is s windows of stride
1, each over every s-th input. The planes of these windows are side by side, and the output
transform adds them. A long window is cut into blocks, each one tile further, which share the planes
of the inputs. The product of blocks is itself a convolution over tiles (with windows of the 1s in
the shape above). If tiles have one output along a dimension, the product is a convolution along it,
too. That dimension has a product for each tap, and no more weights than the window. A window of
dilation d sees every d-th input, so the feature map is d feature maps that interleave: d
neighbouring tiles interleave, too.

Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2016); the
matrices are Toom and Cook's, see B. Barabasz et al., "Error Analysis and Improving the Accuracy of
Winograd Convolution for Deep Neural Networks" (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from webmlc.core.combination import combination
from webmlc.core.expr import Expr, as_int, const
from webmlc.core.simplify import simplify
from webmlc.graph.compute import Tensor, compute, reduce
from webmlc.graph.ir import TensorType
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.operator import Context, Operator

Matrix = tuple[tuple[Fraction, ...], ...]
Shape = tuple[Expr, ...]

POINTS = (0, 1, -1, 2, -2, Fraction(1, 2), Fraction(-1, 2))
"""The points at which polynomials are evaluated, besides infinity. Small points err least."""
_THIRD, _MIDDLE, _LARGE = Fraction(1, 3), Fraction(3, 4), Fraction(3, 2)
MANY_POINTS = (0, 1, -1, 3, -3, _THIRD, -_THIRD, _MIDDLE, -_MIDDLE, _LARGE, -_LARGE)
"""The points of a form that needs more than `POINTS` has. This set has the least error."""


@dataclass(frozen=True, slots=True)
class Transforms:
    """The matrices of one-dimensional transforms: of inputs, of weights, and to outputs."""

    input: Matrix
    weights: Matrix
    output: Matrix


@dataclass(frozen=True, slots=True)
class Form:
    """F(tile, taps) along one dimension: tiles of `tile` outputs, of windows of `kernel` taps at a
    distance of `stride` inputs. A block has `taps` taps. Tiles come in multiples of `part`. If the
    taps are `dilation` inputs apart, the stride is 1, and `dilation` neighbouring tiles interleave:

        F(2, 3), dilation 2:    outputs 0, 2 | 1, 3 | 4, 6 | 5, 7    are tiles 0 | 1 | 2 | 3
    """

    kernel: int
    stride: int
    tile: int
    taps: int
    part: int = 1
    dilation: int = 1

    @property
    def blocks(self) -> int:
        """The number of blocks of a window. Each begins one tile after the block before."""
        return -(-self.kernel // self.taps)

    @property
    def step(self) -> int:
        """The distance of neighbouring tiles in inputs, if they do not interleave."""
        return self.tile * self.stride

    @property
    def span(self) -> int:
        """The number of inputs that a tile depends on."""
        return (self.tile - 1) * self.stride + self.taps

    @property
    def points(self) -> int:
        """The number of points at which polynomials are evaluated, without infinity."""
        return self.tile + -(-self.taps // self.stride) - 2

    @property
    def planes(self) -> int:
        """The number of products of a tile."""
        return len(self.transforms.input)

    @property
    def transforms(self) -> Transforms:
        """The matrices, with the planes of all phases of the stride."""
        return _transforms(self.tile, self.taps, self.stride)

    def tiles(self, size: Expr) -> Expr:
        """The number of tiles that cover `size` outputs."""
        outputs, tiles = (count * self.part * self.dilation for count in (self.tile, 1))
        return simplify((size + (outputs - 1)) // outputs * tiles)

    def computed(self, size: Expr) -> Expr:
        """The number of outputs that are computed for `size` outputs: whole tiles if `size` is
        known only at run time.
        """
        return size if as_int(size) is not None else simplify(self.tiles(size) * self.tile)

    def inputs(self, size: Expr) -> Expr:
        """The number of inputs that the tiles of `size` outputs depend on."""
        rounds = self.tiles(size) // self.dilation
        return simplify(((rounds + (self.blocks - 2)) * self.step + self.span) * self.dilation)

    def input(self, tile: Expr, tap: Expr | int) -> Expr:
        """The place of an input of a tile."""
        if self.dilation == 1:
            return tile * self.step + tap
        phase = tile // self.dilation * (self.step - 1) * self.dilation + tile
        return simplify(phase + tap * self.dilation)

    def output(self, place: Expr) -> tuple[Expr, Expr]:
        """The tile of an output, and the place of the output in this tile."""
        if self.dilation == 1:
            return place // self.tile, place % self.tile
        tile = place // (self.tile * self.dilation) * self.dilation + place % self.dilation
        return simplify(tile), simplify(place // self.dilation % self.tile)


Forms = tuple[Form, Form]
"""The form of rows, and the form of columns."""


@lru_cache
def _transforms(tile: int, taps: int, stride: int) -> Transforms:
    """The matrices of all phases of a stride. Planes are below each other, outputs side by side."""
    span = (tile - 1) * stride + taps
    inputs: list[tuple[Fraction, ...]] = []
    weights: list[tuple[Fraction, ...]] = []
    outputs: list[tuple[Fraction, ...]] = [()] * tile
    for phase in range(min(stride, taps)):
        part = _toom_cook(tile, -(-(taps - phase) // stride))
        inputs += [_spread(row, phase, stride, span) for row in part.input]
        weights += [_spread(row, phase, stride, taps) for row in part.weights]
        outputs = [(*row, *more) for row, more in zip(outputs, part.output, strict=True)]
    return Transforms(tuple(inputs), tuple(weights), tuple(outputs))


def _spread(row: Sequence[Fraction], first: int, step: int, size: int) -> tuple[Fraction, ...]:
    """The elements of a row at `first`, `first + step`, ... of `size` zeros."""
    spread = [Fraction(0)] * size
    spread[first : first + step * len(row) : step] = row
    return tuple(spread)


def _toom_cook(tile: int, taps: int) -> Transforms:
    """F(tile, taps) of stride 1: `tile + taps - 1` inputs, and as many planes."""
    if taps == 1:
        unit = tuple(_spread([Fraction(1)], n, 1, tile) for n in range(tile))
        return Transforms(unit, ((Fraction(1),),) * tile, unit)
    count = tile + taps - 2
    chosen = POINTS if count <= len(POINTS) else MANY_POINTS
    points = [Fraction(point) for point in chosen[:count]]
    inputs: list[tuple[Fraction, ...]] = []
    weights: list[tuple[Fraction, ...]] = []
    for point in points:
        other_points = [other for other in points if other != point]
        scale = Fraction(1)
        for other in other_points:
            scale *= point - other
        inputs.append((*_polynomial(other_points), Fraction(0)))
        weights.append(tuple(point**power / scale for power in range(taps)))
    inputs.append(_polynomial(points))
    weights.append(_spread([Fraction(1)], taps - 1, 1, taps))
    last = [Fraction(power == tile - 1) for power in range(tile)]
    outputs = [(*(point**power for point in points), last[power]) for power in range(tile)]
    return Transforms(tuple(inputs), tuple(weights), tuple(outputs))


def _polynomial(roots: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Coefficients of the product of `x - root`, the constant first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *coefficients], [*coefficients, Fraction(0)]
        coefficients = [a - root * b for a, b in zip(shifted, scaled, strict=True)]
    return tuple(coefficients)


def _tensor(tensors: Sequence[Tensor | None], index: int = 0) -> Tensor:
    tensor = tensors[index]
    assert tensor is not None
    return tensor


def _forms(context: Context) -> Forms:
    """The forms of rows and columns."""
    forms: Forms = context.attribute("forms")
    return forms


def _are_both_cut(forms: Forms) -> bool:
    """True if windows have several taps along both dimensions: the first of the two transforms is
    then a separate stage.
    """
    return all(form.kernel > 1 for form in forms)


# -- input -----------------------------------------------------------------------------


def _infer_input(context: Context) -> TensorType:
    return TensorType(context.dtype(0), _planes_shape(context))


def _planes_shape(context: Context) -> Shape:
    batch, *_, channels = context.shape(0)
    forms, outputs = _forms(context), context.attribute("sizes")
    planes = (const(form.planes) for form in forms)
    sizes = zip(forms, [const(1)] * (2 - len(outputs)) + list(outputs), strict=True)
    tiles = (simplify(form.tiles(size) + (form.blocks - 1) * form.dilation) for form, size in sizes)
    return (*planes, batch, *tiles, channels)


def _input(context: Context, data: Tensor) -> Tensor:
    return input_planes(data, _forms(context), _planes_shape(context))


def input_planes(data: Tensor, forms: Forms, shape: Shape) -> Tensor:
    """The planes (of `shape`) of a feature map `[N, H, W, C]` that is large enough for whole tiles.
    `[N, W, C]` is a feature map of one row.
    """
    rows, columns = forms
    planes, _, batch, down, across, channels = shape

    def tap(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        return data[n, x, c] if data.rank == 3 else data[n, y, x, c]

    def column(n: Expr, y: Expr, x: Expr, b: Expr, i: Expr, c: Expr) -> Expr:
        taps = [tap(n, rows.input(y, a), columns.input(x, b), c) for a in range(rows.span)]
        return combination(rows.transforms.input, i, taps)

    columns_shape = (batch, down, across, const(columns.span), planes, channels)
    by_columns = compute("columns", columns_shape, column, keep=_are_both_cut(forms))

    def plane(i: Expr, j: Expr, n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        taps = [by_columns[n, y, x, b, i, c] for b in range(columns.span)]
        return combination(columns.transforms.input, j, taps)

    return compute("planes", shape, plane, keep=True)


# -- weights ---------------------------------------------------------------------------


def _infer_weights(context: Context) -> TensorType:
    panels, _, _, channels, lanes = context.shape(0)
    forms = _forms(context)
    planes = (const(form.planes) for form in forms)
    blocks = (const(form.blocks) for form in forms)
    return TensorType(context.dtype(0), (*planes, panels, *blocks, channels, lanes))


def _weights(context: Context, data: Tensor) -> Tensor:
    """The planes of weights that have whole blocks of taps."""
    rows, columns = forms = _forms(context)
    planes, _, panels, down, across, channels, lanes = context.outputs[0].shape

    def column(o: Expr, u: Expr, v: Expr, k: Expr, b: Expr, i: Expr, lane: Expr) -> Expr:
        place = v * columns.taps + b
        taps = [data[o, u * rows.taps + a, place, k, lane] for a in range(rows.taps)]
        return combination(rows.transforms.weights, i, taps)

    shape = (panels, down, across, channels, const(columns.taps), planes, lanes)
    by_columns = compute("columns", shape, column, keep=_are_both_cut(forms))

    def plane(i: Expr, j: Expr, o: Expr, u: Expr, v: Expr, k: Expr, lane: Expr) -> Expr:
        taps = [by_columns[o, u, v, k, b, i, lane] for b in range(columns.taps)]
        return combination(columns.transforms.weights, j, taps)

    return compute("planes", context.outputs[0].shape, plane)


# -- product ---------------------------------------------------------------------------


def _infer_product(context: Context) -> TensorType:
    return TensorType(context.dtype(0), _products_shape(context, context.shape(0)))


def _products_shape(context: Context, planes: Shape) -> Shape:
    *each, batch, down, across, _ = planes
    blocks, dilations = context.shape(1)[3:5], _dilations(context)
    counts = (
        simplify(n - (b - 1) * d) for n, b, d in zip((down, across), blocks, dilations, strict=True)
    )
    return (*each, batch, *counts, const(context.attribute("channels")))


def _dilations(context: Context) -> tuple[int, int]:
    """The distances of neighbouring blocks of a window, in tiles."""
    dilations: tuple[int, int] = context.attribute("dilations", (1, 1))
    return dilations


def _product(context: Context, planes: Tensor, matrices: Tensor) -> Tensor:
    return plane_products(planes, matrices, context.outputs[0].shape, _dilations(context))


def plane_products(
    planes: Tensor, matrices: Tensor, shape: Shape, dilations: tuple[int, int] = (1, 1)
) -> Tensor:
    """The sums (of `shape`) of products of planes with matrices of weights, over the channels of a
    group. The matrices have only the channels of one group.
    """
    down, across = dilations
    *_, group, _ = matrices.shape
    groups = simplify(planes.shape[-1] // group)
    outputs = simplify(shape[-1] // groups)

    def element(*axes: Expr) -> Expr:
        i, j, n, y, x, o, u, v, k = axes
        weight = matrices[i, j, o // PACK, u, v, k, o % PACK]
        channel = k if as_int(groups) == 1 else o // outputs * group + k
        return planes[i, j, n, y + u * down, x + v * across, channel] * weight

    return reduce("product", shape, matrices.shape[3:6], "add", element)


# -- output ----------------------------------------------------------------------------


def _infer_output(context: Context) -> TensorType:
    _, _, batch, _, _, channels = context.shape(0)
    return TensorType(context.dtype(0), (batch, *context.attribute("sizes"), channels))


def _output(context: Context, data: Tensor) -> Tensor:
    return output_tiles(data, _forms(context), context.outputs[0].shape)


def output_tiles(data: Tensor, forms: Forms, shape: Shape) -> Tensor:
    """The outputs (of `shape`, `[N, H, W, O]` or `[N, W, O]`) of the products' planes."""
    rows, columns = forms
    _, planes, batch, down, across, channels = data.shape

    def line(n: Expr, y: Expr, x: Expr, j: Expr, a: Expr, o: Expr) -> Expr:
        sums = [data[i, j, n, y, x, o] for i in range(rows.planes)]
        return combination(rows.transforms.output, a, sums)

    lines_shape = (batch, down, across, planes, const(rows.tile), channels)
    by_lines = compute("lines", lines_shape, line, keep=_are_both_cut(forms))

    def element(n: Expr, *axes: Expr) -> Expr:
        *above, w, o = axes
        h = above[0] if above else const(0)
        (y, a), (x, b) = rows.output(h), columns.output(w)
        sums = [by_lines[n, y, x, j, a, o] for j in range(columns.planes)]
        return combination(columns.transforms.output, b, sums)

    return compute("tile", shape, element)


# -- all three -------------------------------------------------------------------------


def _infer_whole(context: Context) -> TensorType:
    batch, sizes = context.shape(0)[0], context.attribute("sizes")
    forms = _forms(context)[-len(sizes) :]
    computed = (form.computed(size) for form, size in zip(forms, sizes, strict=True))
    shape = (batch, *computed, const(context.attribute("channels")))
    return TensorType(context.dtype(0), shape)


def _whole(context: Context, data: Tensor, matrices: Tensor) -> Tensor:
    forms = _forms(context)
    planes = input_planes(data, forms, _planes_shape(context))
    products = plane_products(planes, matrices, _products_shape(context, planes.shape))
    return output_tiles(products, forms, context.outputs[0].shape)


def _infer_wanted(context: Context) -> TensorType:
    shape = (context.shape(0)[0], *context.attribute("sizes"), const(context.attribute("channels")))
    return TensorType(context.dtype(0), shape)


def _wanted(context: Context, data: Tensor) -> Tensor:
    return compute("wanted", context.outputs[0].shape, lambda *index: data[index])


OPS: tuple[Operator, ...] = (
    Operator("WinogradInput", _infer_input, _input, domain="webmlc"),
    Operator("WinogradWeights", _infer_weights, _weights, domain="webmlc"),
    Operator("WinogradProduct", _infer_product, _product, kind="contraction", domain="webmlc"),
    Operator("WinogradOutput", _infer_output, _output, kind="contraction", domain="webmlc"),
    Operator("WinogradConv", _infer_whole, _whole, kind="contraction", domain="webmlc"),
    Operator("WinogradWanted", _infer_wanted, _wanted, kind="injective", domain="webmlc"),
)
