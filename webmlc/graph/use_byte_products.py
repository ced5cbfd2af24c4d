"""Quantised products take four channels at once, as CPUs do.

In: a function after layouts. Out: the same meaning; a `webmlc.Conv` or `webmlc.MatMul` of bytes
with constant weights reads both as int32 words of four channels, and sums their dot products.
A map's words are a `View` of its bytes, padded to whole words. Those of the weights depend on
constants only: they are put together once, at load, so that both devices share what is shipped.

    %y = webmlc.Conv(%p, %w)  ->  %v = View(%p)         uint8[n, y, x, 4·i] as int32[n, y, x, i]
                                  %q = PackBytes(%w)    int32[o/8, ky, kx, i, 8]
                                  %y = webmlc.Conv(%v, %q)

Maps of int8 are taken as unsigned, 128 more than they are: Σ x · w = Σ (x + 128) · w - 128 · Σ w.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.core.simplify import simplify
from webmlc.graph.function_writer import FunctionRewriter
from webmlc.graph.ir import Array, Function, Module, Node, TensorType
from webmlc.graph.ops.layout import BYTES_PER_WORD
from webmlc.graph.simplify_graph import remove_dead_code

_BYTES = (DType.int8, DType.uint8)
_PRODUCTS = (("webmlc", "Conv"), ("webmlc", "MatMul"))
_FEWEST_OUTPUTS = 8
"""Output channels from which padding a map to whole words pays."""


def use_byte_products(module: Module) -> Module:
    """Rewrite the products of every function.

    needs: layouts chosen, inferred types. guarantees: inferred types, no dead code.
    """
    functions = {n: remove_dead_code(_Rewrite(f).run()) for n, f in module.functions.items()}
    return replace(module, functions=functions)


@dataclass(slots=True)
class _Rewrite(FunctionRewriter):
    """The function being written, and who makes what its pads may start from."""

    def run(self) -> Function:
        for node in self.source.nodes:
            if self.is_chosen(node):
                self.product(node)
            else:
                self.nodes.append(node)
        return self.written()

    def is_chosen(self, node: Node) -> bool:
        """True for a product of bytes with constant ones whose channels are, or are worth being,
        whole words.
        """
        if (node.domain, node.op) not in _PRODUCTS or self.types[
            node.inputs[0]
        ].dtype not in _BYTES:
            return False
        weights = self.constants.get(node.inputs[1])
        channels = self.types[node.inputs[0]].shape[-1]
        if weights is None or weights.dtype != np.int8 or as_int(channels) is None:
            return False
        if weights.shape[-2] % BYTES_PER_WORD == 0:
            return True
        outputs = as_int(self.types[node.outputs[0]].shape[-1]) or 0
        return node.attributes.get("groups", 1) == 1 and outputs >= _FEWEST_OUTPUTS

    def product(self, node: Node) -> None:
        """Write one product over words."""
        data, weights = node.inputs
        (result,) = node.outputs
        dtype = self.types[data].dtype
        is_signed = dtype is DType.int8
        packed = f"{weights}.words"
        if packed not in self.types:  # convolutions may share weights
            self.emit("PackBytes", (weights,), packed, node.origin, "webmlc")
        operands = (self.words(self.whole(data, node.origin), node.origin), packed)
        attributes = {**node.attributes, "bytes": dtype.name}
        output = f"{result}.unsigned" if is_signed else result
        self.emit(node.op, operands, output, node.origin, node.domain, **attributes)
        if is_signed:
            shift = self.constant(f"{result}.excess", self.excess(node))
            self.emit("Sub", (output, shift), result, node.origin)

    def excess(self, node: Node) -> Array:
        """What the products of a signed map come to too high, by output channel."""
        weights = self.constants[node.inputs[1]]
        groups = int(node.attributes.get("groups", 1))
        panels = weights if groups > 1 else weights[np.newaxis]
        summed = panels.sum(tuple(range(2, panels.ndim - 1)), dtype=np.int32)
        count = as_int(self.types[node.outputs[0]].shape[-1]) or 0
        excess: Array = summed.reshape(groups, -1)[:, : count // groups].reshape(-1) << 7
        return excess

    def whole(self, data: str, origin: tuple[str, ...]) -> str:
        """The map with as many channels as whole words have: what already pads it, pads more."""
        known = self.types[data]
        missing = -(as_int(known.shape[-1]) or 0) % BYTES_PER_WORD
        name = f"{data}.whole"
        if not missing or name in self.types:
            return name if missing else data
        pads = np.array([0] * (2 * known.rank - 1) + [missing], np.int64)
        maker = self.makers.get(data)
        if maker is not None and maker.op == "Pad" and len(maker.inputs) == 3:
            source, amounts, value = maker.inputs
            pads = pads + self.constants[amounts]
        else:
            source, value = data, self.constant(f"{name}.value", np.zeros((), known.dtype.numpy))
        operands = (source, self.constant(f"{name}.amounts", pads), value)
        return self.emit("Pad", operands, name, origin, mode="constant")

    def words(self, data: str, origin: Sequence[str]) -> str:
        """A view of the map's bytes as words."""
        known = self.types[data]
        name = f"{data}.words"
        if name in self.types:
            return name
        shape = (*known.shape[:-1], simplify(known.shape[-1] // BYTES_PER_WORD))
        return self.view(data, TensorType(DType.int32, shape), name, tuple(origin))
