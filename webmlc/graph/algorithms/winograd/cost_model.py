"""Choose the form of Winograd's algorithm for each convolution, by its modelled cost on a machine.

In: the sizes of convolutions (`Layer`). Out: for each layer the forms of its rows and columns with
the largest gain, or none. The gain is the saved work, less the worth of the kernels' code.

    best_forms([Layer(64, 64, (56, 56))] * 4, RELAXED)  ->  F(4, 3) along rows and along columns

The model counts multiply-adds of the inner loop of a product (`algorithms/cost.py`). For each
element of its planes, a transform costs one multiply-add a point, or half of that if the planes
stay in the cache. On a GPU a transform costs at least the time of its memory accesses, and each
further dispatch has a fixed cost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product

from webmlc.core.expr import as_int, const
from webmlc.core.machine import Machine
from webmlc.graph.algorithms.cost import DIRECT, ELEMENT_BYTES, Cost, gain, product_cost
from webmlc.graph.algorithms.winograd.operators import MANY_POINTS, POINTS, Form, Forms
from webmlc.graph.ops.layout import PACK

TILES = (1, 2, 3, 4, 5, 6, 7, 8)
"""The numbers of outputs along a tile that are tried. With one output, a dimension has a product
for each tap, as without tiles.
"""
MAX_SHORT_TILE = 6
"""The most outputs along a tile of a window of few taps. Larger tiles would save little and have
larger errors.
"""
MAX_BLOCK_TAPS = 5
"""The longest window that is one block of taps. Longer windows, and all windows of tiles of one
output, have blocks of as many taps as a tile's outputs are apart: the tile's length times the
stride.
"""
LOAD_COST = 3
"""Multiply-adds that each transformed weight must save in a run. They pay for the weight's memory
and for loading it, which takes as long as eighty multiply-adds (chosen by hand).
"""
CODE = 350_000
"""Multiply-adds that a plane must save in a run, in all layers of one shape together. They pay for
the hundred bytes of code or more that the plane adds to the layers' kernels (chosen by hand).
"""
_MORE_DISPATCHES = 2
"""The dispatches of Winograd's form beyond the product, which a direct convolution also has: both
transforms.
"""
FIXED_PLANES = 4
"""The code that the kernels of every form have, as the number of planes with equally long code."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of one image: its input channels, output channels and groups; and along each
    dimension its output size, the taps of its window, its stride and its dilation. If a size is
    known only at run time, `sizes` has a typical size. Equal layers share their kernels.
    """

    channels: int
    outputs: int
    sizes: tuple[int, int]
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    groups: int = 1
    dilations: tuple[int, int] = (1, 1)

    @property
    def name(self) -> str:
        """The name of the layer in a search: its sizes."""
        (height, width), (kh, kw), (sh, sw) = self.sizes, self.kernel, self.strides
        steps = f", steps of {sh}x{sw}" if self.strides != (1, 1) else ""
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        if self.dilations != (1, 1):
            steps += f", dilations {'x'.join(map(str, self.dilations))}"
        return (
            f"conv {self.channels} to {self.outputs} over {height}x{width}, {kh}x{kw}"
            f"{steps}{groups}"
        )

    def folded(self, machine: Machine) -> Layer:
        """The same layer, with the inputs that its strides step over as channels: windows of stride
        1 over a smaller feature map. The layer itself if its own channels fill vectors.
        """
        (kh, kw), (sh, sw) = self.kernel, self.strides
        channels = self.channels * sh * sw
        if self.channels % machine.lanes == 0 or channels % machine.lanes or self.groups > 1:
            return self
        return Layer(channels, self.outputs, self.sizes, (-(-kh // sh), -(-kw // sw)))

    def computed_outputs(self, machine: Machine) -> int:
        """The number of output channels, rounded up to whole vectors. The last few may be left out
        afterwards.
        """
        return -(-self.outputs // machine.lanes) * machine.lanes

    def forms(self, machine: Machine) -> list[Forms]:
        """The forms that the folded layer can have: each form along rows with each form along
        columns.

        Tiles of one output have fewer weights. So they are tried only if the weights come from
        memory.
        """
        folded = self.folded(machine)
        fits_panels = self.groups == 1 or self.outputs % (PACK * self.groups) == 0
        if folded.channels % machine.lanes or not fits_panels:
            return []
        # Errors along both dimensions multiply.
        max_points = len(MANY_POINTS if 1 in folded.kernel else POINTS)
        weights = math.prod(folded.kernel) * folded.channels // self.groups * self.outputs
        min_tile = 2 if _stays_cached(weights, machine) else 1
        windows = zip(folded.kernel, folded.strides, strict=True)
        rows, columns = (
            [replace(form, dilation=dilation) for form in _forms(*window, max_points, min_tile)]
            for window, dilation in zip(windows, folded.dilations, strict=True)
        )
        return [forms for forms in product(rows, columns) if max(f.tile for f in forms) > 1]


def _forms(kernel: int, stride: int, max_points: int, min_tile: int) -> list[Form]:
    """The forms of windows along one dimension, of at most `max_points` points and at least
    `min_tile` outputs a tile. A window of one tap has a single form: each output by itself.
    """
    if kernel == 1:
        return [Form(1, stride, 1, 1)]
    forms = (
        Form(
            kernel,
            stride,
            tile,
            taps=kernel if tile > 1 and kernel <= MAX_BLOCK_TAPS else tile * stride,
        )
        for tile in TILES
        if tile >= min_tile
    )
    taps = -(-kernel // stride)
    max_tile = max(MAX_SHORT_TILE, taps + 3)
    return [form for form in forms if form.points <= max_points and form.tile <= max_tile]


def best_forms(
    layers: Iterable[Layer], machine: Machine, algorithms: Mapping[str, str] | None = None
) -> dict[Layer, Forms]:
    """The forms with the largest gain for each layer, which counts as often as it occurs.

    `algorithms` names, for some layers, the forms to take or the direct algorithm.
    """
    best: dict[Layer, Forms] = {}
    for layer, ranked in ranked_forms(layers, machine).items():
        default = name_of(ranked[0][0]) if ranked[0][1] > 0 else DIRECT
        chosen = (algorithms or {}).get(layer.name, default)
        named = {name_of(forms): forms for forms, _ in ranked}
        if chosen in named:
            best[layer] = named[chosen]
    return best


def ranked_forms(layers: Iterable[Layer], machine: Machine) -> dict[Layer, list[tuple[Forms, int]]]:
    """The forms of each layer that has any, with their gains, the largest gain first."""
    ranked: dict[Layer, list[tuple[Forms, int]]] = {}
    for layer, count in Counter(layers).items():
        gains = [
            (
                forms,
                gain(direct_cost(layer), winograd_cost(layer, forms, machine), count, _code(forms)),
            )
            for forms in layer.forms(machine)
        ]
        if gains:
            ranked[layer] = sorted(gains, key=lambda item: -item[1])
    return ranked


def name_of(forms: Forms) -> str:
    """The name of a layer's forms in a search: the outputs of a tile along rows and columns."""
    return f"winograd {'x'.join(str(form.tile) for form in forms)}"


def _code(forms: Forms) -> int:
    """The multiply-adds that kernels of these forms must save to pay for their code."""
    return CODE * (math.prod(form.planes for form in forms) + FIXED_PLANES)


def direct_cost(layer: Layer) -> int:
    """The cost of the convolution as it is: a multiply-add for each tap."""
    taps = math.prod(layer.kernel) * layer.channels // layer.groups
    return taps * math.prod(layer.sizes) * layer.outputs


def winograd_cost(layer: Layer, forms: Forms, machine: Machine) -> Cost:
    """The least cost of these forms over all possible numbers of bands."""
    costs = (_cost(layer, forms, bands, machine) for bands in _bands(layer, forms, machine))
    return min(costs, key=lambda cost: cost.total)


def goes_by_rows(layer: Layer, forms: Forms, machine: Machine) -> bool:
    """True if it is faster to transform and multiply one row of tiles after the other, although
    each row reads the weights again.
    """
    bands = _bands(layer, forms, machine)
    whole, *rows = (_cost(layer, forms, count, machine) for count in bands)
    return any(cost.total < whole.total for cost in rows)


def _bands(layer: Layer, forms: Forms, machine: Machine) -> list[int]:
    """The possible numbers of bands of tiles: a single band, or one for each row of tiles. Bands of
    rows need a machine that runs bands, a single group, and rows of tiles that neither share planes
    of inputs nor interleave.
    """
    (rows, columns), height = forms, layer.sizes[0]
    is_single = rows.blocks * columns.blocks * layer.groups == 1 and layer.dilations == (1, 1)
    if not is_single or not machine.costs.runs_bands:
        return [1]
    return [1, as_int(rows.tiles(const(height))) or 1]


def _cost(layer: Layer, forms: Forms, bands: int, machine: Machine) -> Cost:
    """The cost of these forms with the tiles in `bands` bands."""
    planes = _planes(layer, forms, bands, machine)
    rows = _product_rows(planes.rows, planes.weights, machine)
    points = sum(form.points for form in forms)
    transforms = sum(
        max(
            elements * points // (2 if _stays_cached(elements, machine) else 1),
            elements * machine.costs.copy_operations,
        )
        for elements in (planes.inputs, planes.products)
    )
    products = product_cost(machine, rows, planes.depth, layer.computed_outputs(machine))
    return Cost(
        products=bands * planes.count * products,
        transforms=bands * transforms + _MORE_DISPATCHES * machine.costs.dispatch_operations,
        load=planes.weights * LOAD_COST,
    )


@dataclass(frozen=True, slots=True)
class _Planes:
    """The planes of a band: their number; the elements of all input planes, all product planes and
    all weight planes; the rows and the depth of the product of one plane.
    """

    count: int
    inputs: int
    products: int
    weights: int
    rows: int
    depth: int


def _planes(layer: Layer, forms: Forms, bands: int, machine: Machine) -> _Planes:
    """The planes of these forms with the tiles in `bands` bands."""
    channels, outputs = layer.folded(machine).channels, layer.computed_outputs(machine)
    tiles = [as_int(f.tiles(const(n))) or 1 for f, n in zip(forms, layer.sizes, strict=True)]
    down, across = tiles[0] // bands, tiles[1]
    blocks = [form.blocks for form in forms]
    lengths = zip((down, across), forms, strict=True)
    input_tiles = math.prod(n + (form.blocks - 1) * form.dilation for n, form in lengths)
    count = math.prod(form.planes for form in forms)
    depth = math.prod(blocks) * channels // layer.groups
    return _Planes(
        count=count,
        inputs=count * input_tiles * channels,
        products=count * down * across * outputs,
        weights=count * depth * outputs,
        rows=down * across,
        depth=depth,
    )


def can_bind_planes(layer: Layer, forms: Forms, batch: int, machine: Machine) -> bool:
    """True if a kernel can bind the input planes and the product planes of a whole batch, and the
    planes of the weights.
    """
    planes = _planes(layer, forms, 1, machine)
    largest = max(batch * planes.inputs, batch * planes.products, planes.weights)
    return largest * ELEMENT_BYTES <= machine.costs.binding_bytes


def _product_rows(count: int, weights: int, machine: Machine) -> int:
    """The rows of full register tiles that take as long as `count` rows with `weights` weights.

    A product has a row for each tile of outputs. A remainder of three rows or more takes as long as
    one further row, and so does the start of a product. Weights that no cache holds are waited for:
    after the first register tile, the wait takes as long as some rows; a single register tile takes
    at least as long as its weights need to arrive.
    """
    full, remainder = divmod(count, machine.tile.rows)
    rows = count + (remainder > 2)
    if _stays_cached(weights, machine):
        return rows + 1
    if full > 1 or (full and remainder):
        return rows + machine.costs.weight_wait_rows
    return max(rows, machine.costs.weight_stream_rows)


def _stays_cached(elements: int, machine: Machine) -> bool:
    """True if the second-level cache still holds `elements` elements for the next kernel."""
    return elements * ELEMENT_BYTES <= machine.costs.l2_resident_bytes
