"""Convolutions in Winograd's form, where it is faster.

In: a function after layouts. Out: the same meaning; a chosen `webmlc.Conv` is three transforms
around matrix products, fewer than its taps (`ops/winograd.py`). The weights' transform depends on
constants only: it runs once, at load, so that the package ships the small form.

    %y = webmlc.Conv(%p, %w)  ->  %v = WinogradInput(%p); %u = WinogradWeights(%w)
                                  %m = WinogradProduct(%v, %u); %y = WinogradOutput(%m)
                           or ->  %u = WinogradWeights(%w); %y = WinogradConv(%p, %u)

Maps may have symbolic sizes where windows have stride 1: their padding is to whole tiles of any
size.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, const, maximum
from webmlc.core.rewrite import evaluate, variables
from webmlc.core.simplify import simplify
from webmlc.graph.algorithms.winograd.operators import MANY_POINTS, POINTS, Form, Forms
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Attribute, Function, Module, Node
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.windows import Windows
from webmlc.graph.rewrite.function_writer import FunctionRewriter
from webmlc.graph.simplify.simplify_graph import remove_dead_code

TILES = (1, 2, 3, 4, 5, 6, 7, 8)
"""Outputs along a tile. Of one: along this dimension a product for each tap, as without tiles."""
_COMMON = 6
"""Outputs along a tile of any window. With more, those of few taps would save little and err more.
"""
MOST_TAPS = 5
"""The longest window that is one block. Those of longer ones are as long as a tile."""
_CACHED = 500_000
"""Elements of planes, or of transformed weights, that the second-level cache keeps."""
_TILE = 6
"""Rows of a register tile: a product takes one row of every tile of outputs."""
_STREAM = 10
"""Rows in whose products a transformed weight arrives from memory, where one register tile takes
them all.
"""
_WAIT = 5
"""Rows that waiting for such weights costs where several tiles read them."""
_START_COST = 4
"""Steps of a product's inner loop that beginning and ending one take."""
_LOAD = 3
"""Multiply-adds of a run that each transformed weight must save: it takes memory, and at load as
long as eighty of these.
"""
_LANES = 4
"""Channels that the transforms take at once."""
TYPICAL_SIZE = 512
"""What a symbol counts as: it is the size of an input image, of which maps are a fraction."""
CODE = 350_000
"""Multiply-adds that a plane must save in all layers of one shape, which share their kernels: it is
a hundred bytes or more of code.
"""
_KERNELS = 4
"""Planes that take as much code as what the kernels have besides."""


def use_winograd(module: Module) -> Module:
    """Rewrite the convolutions of `main`.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code.
    """
    main = remove_dead_code(_Rewrite(module.main).run())
    return replace(module, functions={**module.functions, "main": main})


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of one image: its channels; its outputs (of a map that is known at run time
    only: of a typical one), the taps of its windows and their strides along each dimension; groups
    of channels and outputs. Equal layers share their kernels.
    """

    channels: int
    outputs: int
    sizes: tuple[int, int]
    kernel: tuple[int, int] = (3, 3)
    strides: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def folded(self) -> Layer:
        """The same layer, with the inputs that its strides step over as channels, where its own
        fill no vector: windows of stride 1 over a smaller map. Else itself.
        """
        (kh, kw), (sh, sw) = self.kernel, self.strides
        channels = self.channels * sh * sw
        if self.channels % _LANES == 0 or channels % _LANES or self.groups > 1:
            return self
        return Layer(channels, self.outputs, self.sizes, (-(-kh // sh), -(-kw // sw)))

    @property
    def made(self) -> int:
        """Its outputs in whole vectors, of which the last few may not be wanted."""
        return -(-self.outputs // _LANES) * _LANES

    def forms(self) -> list[Forms]:
        """The forms it can have, folded: of each along one dimension with each along the other.
        Only weights that come from memory are worth tiles of one output: they are fewer then.
        """
        folded = self.folded
        if folded.channels % _LANES or (self.groups > 1 and self.outputs % (PACK * self.groups)):
            return []
        most = len(MANY_POINTS if 1 in folded.kernel else POINTS)  # errors along both multiply
        weights = math.prod(folded.kernel) * folded.channels // self.groups * self.outputs
        least = 1 if weights > _CACHED else 2
        windows = zip(folded.kernel, folded.strides, strict=True)
        rows, columns = (_forms(kernel, stride, most, least) for kernel, stride in windows)
        return [forms for forms in product(rows, columns) if max(f.tile for f in forms) > 1]


def _forms(kernel: int, stride: int, most: int, least: int) -> list[Form]:
    """The forms of windows along one dimension, of at most so many points and at least so many
    outputs a tile; of one tap, each output for itself.
    """
    if kernel == 1:
        return [Form(1, stride, 1, 1)]
    forms = (
        Form(kernel, stride, tile, kernel if tile > 1 and kernel <= MOST_TAPS else tile * stride)
        for tile in TILES
        if tile >= least
    )
    taps = -(-kernel // stride)
    longest = max(_COMMON, taps + 3)
    return [form for form in forms if form.points <= most and form.tile <= longest]


def saved(layer: Layer, forms: Forms) -> int:
    """Multiply-adds that the transforms and products of a form save, by a model of both."""
    taps = math.prod(layer.kernel) * layer.channels // layer.groups
    direct = taps * math.prod(layer.sizes) * layer.outputs
    return direct - min(_cost(layer, forms, bands) for bands in _bands(layer, forms))


def goes_by_rows(layer: Layer, forms: Forms) -> bool:
    """True where planes of one row of tiles at a time are faster than those of the map, in spite of
    weights that every row reads anew.
    """
    whole, *rows = (_cost(layer, forms, bands) for bands in _bands(layer, forms))
    return any(cost < whole for cost in rows)


def _bands(layer: Layer, forms: Forms) -> list[int]:
    """In how many parts the tiles may be taken: as a whole, or by rows that share no inputs'
    planes; groups as a whole.
    """
    (rows, columns), height = forms, layer.sizes[0]
    if rows.blocks * columns.blocks * layer.groups > 1:
        return [1]
    return [1, as_int(rows.tiles(const(height))) or 1]


def _cost(layer: Layer, forms: Forms, bands: int) -> int:
    """Multiply-adds that a form takes as long as, its tiles in so many parts: an element of a plane
    as many as there are points, or half as many in the cache; and what its weights must save.
    """
    channels, outputs = layer.folded.channels, layer.made
    tiles = [as_int(f.tiles(const(n))) or 1 for f, n in zip(forms, layer.sizes, strict=True)]
    down, across = tiles[0] // bands, tiles[1]
    blocks = [form.blocks for form in forms]
    seen = (down + blocks[0] - 1) * (across + blocks[1] - 1)
    planes = math.prod(form.planes for form in forms)
    depth = math.prod(blocks) * channels // layer.groups
    rows = _rows(down * across, planes * depth * outputs)
    products = planes * (depth + _START_COST) * outputs * rows
    each = sum(form.points for form in forms)
    transforms = sum(
        elements * each // (2 if elements <= _CACHED else 1)
        for elements in (planes * seen * channels, planes * down * across * outputs)
    )
    return bands * (products + transforms) + planes * depth * outputs * _LOAD


def _rows(count: int, weights: int) -> int:
    """Rows of a full register tile that take as long as `count` rows do, with so many weights."""
    full, rest = divmod(count, _TILE)
    rows = full * _TILE + rest + (rest > 2)
    if weights <= _CACHED:
        return rows + 1
    return rows + _WAIT if (full and rest) or full > 1 else max(rows, _STREAM)


def best_forms(layers: Iterable[Layer]) -> dict[Layer, Forms]:
    """The forms of each layer that, as often as it occurs, save most beside their kernels' code."""
    best: dict[Layer, Forms] = {}
    for layer, count in Counter(layers).items():
        gains = {
            forms: count * saved(layer, forms)
            - CODE * (math.prod(form.planes for form in forms) + _KERNELS)
            for forms in layer.forms()
        }
        if gains and max(gains.values()) > 0:
            best[layer] = max(gains, key=lambda forms: gains[forms])
    return best


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written, and who makes what its pads may start from."""

    def run(self) -> Function:
        layers = {node.outputs: self.layer(node) for node in self.source.nodes}
        chosen = best_forms(layer for layer in layers.values() if layer is not None)
        for node in self.source.nodes:
            layer = layers[node.outputs]
            if layer is not None and layer in chosen:
                self.convolution(node, layer, chosen[layer])
            else:
                self.keep(node)
        return self.written()

    def layer(self, node: Node) -> Layer | None:
        """The sizes of a convolution of a map with one or two dimensions (of one row, or more),
        else `None`.
        """
        if (node.domain, node.op) != ("webmlc", "Conv"):
            return None
        windows: Windows = node.attributes["windows"]
        groups, outputs = (int(node.attributes[name]) for name in ("groups", "channels"))
        weights = self.constants.get(node.inputs[1])
        if weights is None or weights.dtype != np.float32 or set(windows.dilations) != {1}:
            return None
        if set(windows.kernel) == {1} or windows.rank > 2:
            return None
        sizes = [_typical(size) for size in windows.sizes]
        (height, width), kernel, strides = (
            (1, *values)[-2:] for values in (sizes, windows.kernel, windows.strides)
        )
        channels = weights.shape[-2] * groups
        found = Layer(channels, outputs, (height, width), kernel, strides, groups)
        known = (*windows.sizes, *self.types[node.inputs[0]].shape[1:-1])
        if None in map(as_int, known) and (set(strides) != {1} or max(kernel) > MOST_TAPS):
            return None
        return found if windows.rank == 2 or found.folded == found else None

    def convolution(self, node: Node, layer: Layer, forms: Forms) -> None:
        data, weights = node.inputs
        (result,) = node.outputs
        build = Builder(node, self)
        windows: Windows = node.attributes["windows"]
        folds = layer.folded != layer
        steps = layer.strides if folds else (1, 1)
        by_rows = goes_by_rows(layer, forms)
        if by_rows and as_int(windows.sizes[-1]) is None:
            forms = forms[0], replace(forms[1], part=_TILE)
        source = self.padded(data, windows.sizes, forms, steps)
        if folds:
            source, weights = (
                self.fold(build, source, steps),
                self.fold_weights(build, weights, steps),
            )
        elif layer.groups > 1 or windows.rank == 1:
            weights = self.join_groups(build, weights, layer.kernel)
        sizes = windows.sizes
        name = f"{weights}.F{'x'.join(str(form.tile) for form in forms)}"
        matrices = self.make(
            build, "WinogradWeights", self.whole(build, weights, forms), output=name, forms=forms
        )
        exact = layer.made == layer.outputs and not (by_rows and None in map(as_int, sizes))
        made = result if exact else f"{result}.tiles"
        if by_rows:
            shape = {"forms": forms, "sizes": sizes, "channels": layer.made}
            self.make(build, "WinogradConv", source, matrices, output=made, **shape)
        else:
            planes, product = f"{result}.planes", f"{result}.products"
            shape = {"forms": forms, "sizes": sizes}
            self.make(build, "WinogradInput", source, output=planes, **shape)
            channels = layer.made
            self.make(build, "WinogradProduct", planes, matrices, output=product, channels=channels)
            self.make(build, "WinogradOutput", product, output=made, **shape)
        if not exact:
            shape = {"sizes": sizes, "channels": layer.outputs}
            self.make(build, "WinogradWanted", made, output=result, **shape)

    def make(
        self, build: Builder, op: str, *inputs: str, output: str, **attributes: Attribute
    ) -> str:
        """Write one of the stages, once: convolutions may share a map or weights."""
        if self.is_new(output):
            build(op, *inputs, output=output, domain="webmlc", **attributes)
        return output

    def whole(self, build: Builder, weights: str, forms: Forms) -> str:
        """The weights, with zeros for what is missing of their last blocks."""
        missing = [form.blocks * form.taps - form.kernel for form in forms]
        if not any(missing):
            return weights
        pads = [(0, 0), *((0, count) for count in missing), (0, 0), (0, 0)]
        name = f"{weights}.{'x'.join(map(str, missing))}"
        return build.constant(np.pad(self.constants[weights], pads), name=name)

    def fold(self, build: Builder, data: str, steps: tuple[int, int]) -> str:
        """The map with `steps` inputs along each dimension as channels of one."""
        output = f"{data}.folded"
        if not self.is_new(output):
            return output
        known = self.types[data]
        batch, height, width, channels = known.shape
        (down, sh), (across, sw) = (
            (simplify(n // step), const(step))
            for n, step in zip((height, width), steps, strict=True)
        )
        apart = replace(known, shape=(batch, down, sh, across, sw, channels))
        self.view(build, data, apart, f"{data}.apart")
        order = (0, 1, 3, 2, 4, 5)
        build("Transpose", f"{data}.apart", output=f"{data}.together", perm=order)
        folded = replace(known, shape=(batch, down, across, simplify(channels * (sh * sw))))
        return self.view(build, f"{data}.together", folded, output)

    def fold_weights(self, build: Builder, weights: str, steps: tuple[int, int]) -> str:
        """The weights of a folded map: `[O/8, KH, KW, C, 8]`, with zeros for whole steps."""
        array = self.constants[weights]
        panels, *kernel, channels, lanes = array.shape
        taps = [-(-k // step) for k, step in zip(kernel, steps, strict=True)]
        whole = ((0, t * s - k) for t, s, k in zip(taps, steps, kernel, strict=True))
        padded = np.pad(array, [(0, 0), *whole, (0, 0), (0, 0)])
        apart = padded.reshape(panels, taps[0], steps[0], taps[1], steps[1], channels, lanes)
        together = apart.transpose(0, 1, 3, 2, 4, 5, 6)
        folded = together.reshape(panels, *taps, channels * steps[0] * steps[1], lanes)
        return build.constant(folded, name=f"{weights}.folded")

    def join_groups(self, build: Builder, weights: str, kernel: tuple[int, int]) -> str:
        """The weights `[G, O/G/8, KH, KW, C/G, 8]` of groups, one below the other, and those of one
        dimension as of one row: `[O/8, KH, KW, C/G, 8]`.
        """
        array = self.constants[weights]
        joined = array.reshape(-1, *kernel, *array.shape[-2:])
        return build.constant(joined, name=f"{weights}.joined")

    def padded(
        self, data: str, sizes: tuple[Expr, ...], forms: Forms, steps: tuple[int, int]
    ) -> str:
        """The map, large enough for whole tiles and in whole steps: what already pads it, pads
        more.
        """
        build = Builder.without_origin(self)
        rank = len(sizes)
        present = self.types[data].shape[1:-1]
        missing = [
            _missing(form, n, size, step)
            for form, n, size, step in zip(
                forms[-rank:], sizes, present, steps[-rank:], strict=True
            )
        ]
        if all(as_int(count) == 0 for count in missing):
            return data
        pads: list[Expr] = [const(0)] * (rank + 2) + [const(0), *missing, const(0)]
        maker, source, value = self.makers.get(data), data, f"{data}.zero"
        if maker is not None and maker.op == "Pad" and len(maker.inputs) == 3:
            source, amounts, value = maker.inputs
            pads = [simplify(a + b) for a, b in zip(pads, self.constants[amounts], strict=True)]
        else:
            build.constant(0, DType.float32, value)
        parts = (
            f"{form.kernel}to{form.tile * form.part}"
            if as_int(count) is None
            else str(as_int(count))
            for form, count in zip(forms[-rank:], missing, strict=True)
        )
        name = f"{data}.{'x'.join(parts)}"
        if name in self.types:
            return name
        return build("Pad", source, "", value, output=name, mode="constant", pads=tuple(pads))


def _typical(size: Expr) -> int:
    """A dimension of which only a rough number is wanted."""
    return int(evaluate(size, {symbol.name: TYPICAL_SIZE for symbol in variables(size)}))


def _missing(form: Form, outputs: Expr, present: Expr, step: int) -> Expr:
    """Inputs beyond those present that whole tiles of `outputs` see, in whole steps."""
    if as_int(outputs) is None:  # of stride 1: what is missing of the last tiles
        return -outputs % (form.tile * form.part)
    seen, whole = form.inputs(outputs) * step, (present + (step - 1)) // step * step
    return simplify(maximum(seen, whole) - present)
