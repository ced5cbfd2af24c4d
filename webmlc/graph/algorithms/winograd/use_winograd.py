"""Compute convolutions in Winograd's form where this form is faster.

In: a function after layouts. Out: the same meaning. Each convolution that `cost_model.py` chooses
becomes three transforms around matrix products (`operators.py`), with fewer products than it has
taps. The weights' transform depends only on constants, so it runs once, at load. The package ships
the weights before the transform, which are smaller.

    %y = webmlc.Conv(%p, %w)  ->  %v = WinogradInput(%p); %u = WinogradWeights(%w)
                                  %m = WinogradProduct(%v, %u); %y = WinogradOutput(%m)
                           or ->  %u = WinogradWeights(%w); %y = WinogradConv(%p, %u)

Feature maps of symbolic size are supported for windows of stride 1: padding to whole tiles works
for any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, as_int, const, maximum
from webmlc.core.machine import Machine
from webmlc.core.rewrite import evaluate, variables
from webmlc.core.simplify import simplify
from webmlc.graph.algorithms.cost import DIRECT
from webmlc.graph.algorithms.winograd.cost_model import (
    MAX_BLOCK_TAPS,
    Layer,
    best_forms,
    can_bind_planes,
    goes_by_rows,
    name_of,
    ranked_forms,
)
from webmlc.graph.algorithms.winograd.operators import Form, Forms
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ir import Function, Module
from webmlc.graph.ops.operator import Context, Scope
from webmlc.graph.ops.windows import Windows
from webmlc.graph.rewrite.patterns import P, Rule, by_operator, constant, value
from webmlc.graph.rewrite.rewriting import Rewriting, remove_dead_code

TYPICAL_IMAGE_SIZE = 512
"""The value of a symbol, in pixels, when a form is chosen for a feature map of symbolic size: the
symbol is the size of an input image, and feature maps are a fraction of it (an estimate).
"""
TRIED_FORMS = 3
"""The number of forms of a layer that a search tries: the forms with the largest gains by the cost
model (chosen by hand).
"""


def use_winograd(module: Module, machine: Machine) -> Module:
    """Rewrite the convolutions of every function that are faster in Winograd's form on the machine.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code.
    """
    layers = (
        layer for function in module.functions.values() for layer in _layers(function, machine)
    )
    forms = best_forms(layers, machine, module.algorithms)
    convolution = P("Conv", value("data"), constant("weights"), domain="webmlc")
    rules = by_operator([Rule(convolution, _use_winograd)])
    return module.map_functions(
        lambda f: remove_dead_code(_Convolutions(f, rules, machine=machine, forms=forms).run())
    )


def winograd_alternatives(module: Module, machine: Machine) -> dict[str, tuple[str, ...]]:
    """The names of the algorithms of each convolution that has a form, the default algorithm first.
    They are the direct algorithm and the `TRIED_FORMS` forms with the largest gains.
    """
    layers = [layer for f in module.functions.values() for layer in _layers(f, machine)]
    names: dict[str, tuple[str, ...]] = {}
    for layer, ranked in ranked_forms(layers, machine).items():
        forms = [name_of(forms) for forms, _ in ranked[:TRIED_FORMS]]
        default = forms[0] if ranked[0][1] > 0 else DIRECT
        names[layer.name] = tuple(dict.fromkeys((default, *forms, DIRECT)))
    return names


def _layers(function: Function, machine: Machine) -> list[Layer]:
    """The sizes of every convolution that can have a form, one entry for each convolution."""
    contexts = map(Scope.of(function).context, function.nodes)
    return [layer for context in contexts if (layer := _layer(context, machine)) is not None]


def _layer(context: Context, machine: Machine) -> Layer | None:
    """The sizes of a convolution over one or two dimensions; `None` for other nodes. One dimension
    is a feature map of one row.
    """
    node = context.node
    if (node.domain, node.op) != ("webmlc", "Conv"):
        return None
    windows: Windows = node.attributes["windows"]
    groups, outputs = (int(node.attributes[name]) for name in ("groups", "channels"))
    weights = context.constant(1)
    if weights is None or weights.dtype != np.float32:
        return None
    if set(windows.kernel) == {1} or windows.rank > 2:
        return None
    # A window of one tap has no holes.
    holes = [d if k > 1 else 1 for d, k in zip(windows.dilations, windows.kernel, strict=True)]
    if set(holes) != {1} and set(windows.strides) != {1}:
        return None
    sizes = [_typical(size) for size in windows.sizes]
    (height, width), kernel, strides, dilations = (
        (1, *values)[-2:] for values in (sizes, windows.kernel, windows.strides, holes)
    )
    channels = weights.shape[-2] * groups
    layer = Layer(channels, outputs, (height, width), kernel, strides, groups, dilations)
    is_static = None not in map(as_int, (*windows.sizes, *context.shape(0)[1:-1]))
    if not is_static and (set(strides) != {1} or max(kernel) > MAX_BLOCK_TAPS):
        return None
    return layer if windows.rank == 2 or layer.folded(machine) == layer else None


def _use_winograd(
    data: Value, weights: Value, y: Value, context: Context, rewriting: _Convolutions
) -> str | None:
    """A convolution whose layer has forms  ->  transforms around matrix products"""
    machine, layer = rewriting.machine, _layer(context, rewriting.machine)
    if layer is None or layer not in rewriting.forms:
        return None
    forms, batch = rewriting.forms[layer], as_int(data.shape[0]) or 1  # a symbol counts as one
    if not can_bind_planes(layer, forms, batch, machine):
        return None
    sizes: tuple[Expr, ...] = context.node.attributes["windows"].sizes
    channels = layer.computed_outputs(machine)
    by_rows = goes_by_rows(layer, forms, machine)
    if by_rows and as_int(sizes[-1]) is None:
        forms = forms[0], replace(forms[1], part=machine.tile.rows)
    write = partial(y.build, domain="webmlc")
    source, matrices = rewriting.operands(y.build, layer, forms)
    is_exact = channels == layer.outputs and not (by_rows and None in map(as_int, sizes))
    result = str(y) if is_exact else f"{y}.tiles"
    shape: dict[str, Any] = {"forms": forms, "sizes": sizes}
    if by_rows:
        tiles = write("WinogradConv", source, matrices, output=result, channels=channels, **shape)
    else:
        planes = write("WinogradInput", source, output=f"{y}.planes", **shape)
        holes = {} if layer.dilations == (1, 1) else {"dilations": layer.dilations}
        named: dict[str, Any] = {"output": f"{y}.products", "channels": channels, **holes}
        product = write("WinogradProduct", planes, matrices, **named)
        tiles = write("WinogradOutput", product, output=result, **shape)
    if is_exact:
        return tiles
    return write("WinogradWanted", tiles, output=y, sizes=sizes, channels=layer.outputs)


@dataclass(slots=True)
class _Convolutions(Rewriting):
    """The function being written, the machine that is to run it, and the forms of its layers."""

    machine: Machine = field(kw_only=True)
    forms: Mapping[Layer, Forms] = field(kw_only=True)

    def operands(self, build: Builder, layer: Layer, forms: Forms) -> tuple[str, str]:
        """The feature map, in whole tiles, and the weights after their transform. Convolutions may
        share both.
        """
        data, weights = map(str, build.source.inputs)
        windows: Windows = build.source.attributes["windows"]
        folds = layer.folded(self.machine) != layer
        steps = layer.strides if folds else (1, 1)
        source = self.padded(data, windows.sizes, forms, steps)
        if folds:
            source = self.fold(build, source, steps)
            weights = self.fold_weights(build, weights, steps)
        elif layer.groups > 1 or windows.rank == 1:
            weights = self.join_groups(build, weights, layer.kernel)
        name = f"{weights}.F{'x'.join(str(form.tile) for form in forms)}"
        whole = self.whole(build, weights, forms)
        if self.producer(name) is None:
            build("WinogradWeights", whole, output=name, domain="webmlc", forms=forms)
        return source, name

    def whole(self, build: Builder, weights: str, forms: Forms) -> str:
        """The weights, with zeros up to the end of their last blocks."""
        missing = [form.blocks * form.taps - form.kernel for form in forms]
        if not any(missing):
            return weights
        pads = [(0, 0), *((0, count) for count in missing), (0, 0), (0, 0)]
        name = f"{weights}.{'x'.join(map(str, missing))}"
        return build.constant(np.pad(self.constants[weights], pads), name=name)

    def fold(self, build: Builder, data: str, steps: tuple[int, int]) -> str:
        """The feature map in which each block of `steps` inputs is the channels of one input."""
        output = f"{data}.folded"
        if self.producer(output) is not None:
            return output
        type_ = self.types[data]
        batch, height, width, channels = type_.shape
        (down, sh), (across, sw) = (
            (simplify(n // step), const(step))
            for n, step in zip((height, width), steps, strict=True)
        )
        apart = replace(type_, shape=(batch, down, sh, across, sw, channels))
        self.view(build, data, apart, f"{data}.apart")
        order = (0, 1, 3, 2, 4, 5)
        build("Transpose", f"{data}.apart", output=f"{data}.together", perm=order)
        folded = replace(type_, shape=(batch, down, across, simplify(channels * (sh * sw))))
        return self.view(build, f"{data}.together", folded, output)

    def fold_weights(self, build: Builder, weights: str, steps: tuple[int, int]) -> str:
        """The weights of a folded feature map, `[O/8, KH, KW, C, 8]`, with zeros to whole steps."""
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
        """The weights `[G, O/G/8, KH, KW, C/G, 8]` as `[O/8, KH, KW, C/G, 8]`: one group is below
        the other. Weights of one dimension become weights of one row.
        """
        array = self.constants[weights]
        joined = array.reshape(-1, *kernel, *array.shape[-2:])
        return build.constant(joined, name=f"{weights}.joined")

    def padded(
        self, data: str, sizes: tuple[Expr, ...], forms: Forms, steps: tuple[int, int]
    ) -> str:
        """The feature map, padded to whole tiles and whole steps. If a Pad computes the feature
        map, a larger Pad replaces it.
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
        maker, source, value = self.producer(data), data, f"{data}.zero"
        if maker is not None and maker.op == "Pad" and len(maker.inputs) == 3:
            source, amounts, value = maker.inputs
            pads = [simplify(a + b) for a, b in zip(pads, self.constants[amounts], strict=True)]
        else:
            build.constant(0, DType.float32, value)
        parts = (
            f"{form.kernel}to{form.tile * form.part}{_holes(form)}"
            if as_int(count) is None
            else str(as_int(count))
            for form, count in zip(forms[-rank:], missing, strict=True)
        )
        name = f"{data}.{'x'.join(parts)}"
        if name in self.types:
            return name
        return build("Pad", source, "", value, output=name, mode="constant", pads=tuple(pads))


def _holes(form: Form) -> str:
    """The part of a name that says how far apart the taps of windows are."""
    return "" if form.dilation == 1 else f"by{form.dilation}"


def _typical(size: Expr) -> int:
    """A rough number for a size that may be symbolic."""
    return int(evaluate(size, {symbol.name: TYPICAL_IMAGE_SIZE for symbol in variables(size)}))


def _missing(form: Form, outputs: Expr, present: Expr, step: int) -> Expr:
    """The number of inputs that whole tiles of `outputs` need beyond the `present` ones, in whole
    steps.
    """
    if as_int(outputs) is None:  # of stride 1: the outputs that the last tiles lack
        return -outputs % (form.tile * form.part * form.dilation)
    needed, whole = form.inputs(outputs) * step, (present + (step - 1)) // step * step
    return simplify(maximum(needed, whole) - present)
