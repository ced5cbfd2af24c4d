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
from webmlc.graph.builder import Builder
from webmlc.graph.ir import Attribute, Function, Module, Node
from webmlc.graph.ops.windows import Windows
from webmlc.graph.rewrite.rewriting import FunctionRewriter
from webmlc.graph.simplify.simplify_graph import remove_dead_code

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
    rewrites = {n: _Rewrite(f, machine=machine) for n, f in module.functions.items()}
    layers = (layer for rewrite in rewrites.values() for layer in rewrite.layers())
    forms = best_forms(layers, machine, module.algorithms)
    functions = {name: remove_dead_code(r.run(forms)) for name, r in rewrites.items()}
    return replace(module, functions=functions)


def winograd_alternatives(module: Module, machine: Machine) -> dict[str, tuple[str, ...]]:
    """The names of the algorithms of each convolution that has a form, the default algorithm first.
    They are the direct algorithm and the `TRIED_FORMS` forms with the largest gains.
    """
    rewrites = [_Rewrite(f, machine=machine) for f in module.functions.values()]
    layers = [layer for rewrite in rewrites for layer in rewrite.layers()]
    names: dict[str, tuple[str, ...]] = {}
    for layer, ranked in ranked_forms(layers, machine).items():
        forms = [name_of(forms) for forms, _ in ranked[:TRIED_FORMS]]
        default = forms[0] if ranked[0][1] > 0 else DIRECT
        names[layer.name] = tuple(dict.fromkeys((default, *forms, DIRECT)))
    return names


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written, and the machine that is to run it."""

    machine: Machine = field(kw_only=True)

    def layers(self) -> list[Layer]:
        """The sizes of every convolution that can have a form, one entry for each convolution."""
        return [layer for node in self.source.nodes if (layer := self.layer(node)) is not None]

    def run(self, forms: Mapping[Layer, Forms]) -> Function:
        """Write the function; a convolution takes the forms of its layer, if the layer has any."""
        for node in self.source.nodes:
            layer = self.layer(node)
            if layer is not None and layer in forms and self.can_bind(node, layer, forms[layer]):
                self.convolution(node, layer, forms[layer])
            else:
                self.keep(node)
        return self.written()

    def can_bind(self, node: Node, layer: Layer, forms: Forms) -> bool:
        """True if kernels can bind the planes of all images. A symbolic batch counts as one."""
        batch = as_int(self.types[node.inputs[0]].shape[0]) or 1
        return can_bind_planes(layer, forms, batch, self.machine)

    def layer(self, node: Node) -> Layer | None:
        """The sizes of a convolution over one or two dimensions; `None` for other nodes. One
        dimension is a feature map of one row.
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
        layer = Layer(channels, outputs, (height, width), kernel, strides, groups)
        is_static = None not in map(
            as_int, (*windows.sizes, *self.types[node.inputs[0]].shape[1:-1])
        )
        if not is_static and (set(strides) != {1} or max(kernel) > MAX_BLOCK_TAPS):
            return None
        return layer if windows.rank == 2 or layer.folded(self.machine) == layer else None

    def convolution(self, node: Node, layer: Layer, forms: Forms) -> None:
        data, weights = node.inputs
        (result,) = node.outputs
        build = Builder(node, self)
        windows: Windows = node.attributes["windows"]
        channels = layer.computed_outputs(self.machine)
        folds = layer.folded(self.machine) != layer
        steps = layer.strides if folds else (1, 1)
        by_rows = goes_by_rows(layer, forms, self.machine)
        if by_rows and as_int(windows.sizes[-1]) is None:
            forms = forms[0], replace(forms[1], part=self.machine.tile.rows)
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
        matrices = self.write_once(
            build, "WinogradWeights", self.whole(build, weights, forms), output=name, forms=forms
        )
        is_exact = channels == layer.outputs and not (by_rows and None in map(as_int, sizes))
        tiles = result if is_exact else f"{result}.tiles"
        if by_rows:
            shape = {"forms": forms, "sizes": sizes, "channels": channels}
            self.write_once(build, "WinogradConv", source, matrices, output=tiles, **shape)
        else:
            planes, product = f"{result}.planes", f"{result}.products"
            shape = {"forms": forms, "sizes": sizes}
            self.write_once(build, "WinogradInput", source, output=planes, **shape)
            self.write_once(
                build, "WinogradProduct", planes, matrices, output=product, channels=channels
            )
            self.write_once(build, "WinogradOutput", product, output=tiles, **shape)
        if not is_exact:
            shape = {"sizes": sizes, "channels": layer.outputs}
            self.write_once(build, "WinogradWanted", tiles, output=result, **shape)

    def write_once(
        self, build: Builder, op: str, *inputs: str, output: str, **attributes: Attribute
    ) -> str:
        """Write a stage, unless it is written already: convolutions may share inputs or weights."""
        if self.is_new(output):
            build(op, *inputs, output=output, domain="webmlc", **attributes)
        return output

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
        if not self.is_new(output):
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
    """A rough number for a size that may be symbolic."""
    return int(evaluate(size, {symbol.name: TYPICAL_IMAGE_SIZE for symbol in variables(size)}))


def _missing(form: Form, outputs: Expr, present: Expr, step: int) -> Expr:
    """The number of inputs that whole tiles of `outputs` need beyond the `present` ones, in whole
    steps.
    """
    if as_int(outputs) is None:  # of stride 1: the outputs that the last tiles lack
        return -outputs % (form.tile * form.part)
    needed, whole = form.inputs(outputs) * step, (present + (step - 1)) // step * step
    return simplify(maximum(needed, whole) - present)
