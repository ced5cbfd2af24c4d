"""Layouts: feature maps become NHWC, weights are packed for vector loads.

In: an inferred function of ONNX operators (NCHW). Out: the same meaning, where convolutions and
pools are the `webmlc` operators of `ops/layout.py` over NHWC maps of any rank, and constant matrix
operands are packed `[N/8][K][8]`. One pass: every value may have an NHWC twin, made on demand;
elementwise operators, Concat, Pad, views that keep the channels and the like follow the layout of
their inputs, so transposes remain only where a layout really meets another (usually at the graph's
edge).

    %y = Conv(%x, %w)  ->  %x.nhwc = Transpose(%x); %y.nhwc = webmlc.Conv(%x.nhwc, %w.packed)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int, const
from webmlc.core.machine import MAX_BINDING_BYTES
from webmlc.graph.builder import Builder
from webmlc.graph.compute import identity
from webmlc.graph.ir import Array, Function, Module, Node, TensorType
from webmlc.graph.layout.convolution_layouts import (
    convolution,
    padded,
    transposed_convolution,
    windows_of,
)
from webmlc.graph.layout.integer_layouts import centred, less_zero_point, widened, zero_point
from webmlc.graph.layout.layout_values import (
    LayoutValues,
    channels_first,
    channels_last,
    keeps_order,
)
from webmlc.graph.layout.pack_weights import pack_matrix
from webmlc.graph.ops.layout import PACK
from webmlc.graph.ops.shapes import same
from webmlc.graph.rewrite.meaning import MAPS, kind_of

_GLOBAL_POOLS = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}
_RANKS = range(3, 6)
"""Ranks of maps: one to three spatial dimensions between batch and channels."""
_FLOAT: tuple[DType, ...] = (DType.float32,)
_WEIGHTS = (DType.int8, DType.int16)
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
_QUANTISATION = frozenset({"QuantizeLinear", "DequantizeLinear"})
_REDUCTIONS = frozenset(
    {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2"}
)


def choose_layouts(module: Module) -> Module:
    """Choose layouts in every function.

    needs: inferred types. guarantees: inferred types; nodes whose bytes do not change are `View`.
    """
    functions = {name: _Layouts(f).run() for name, f in module.functions.items()}
    return replace(module, functions=functions)


@dataclass(slots=True)
class _Layouts(LayoutValues):
    """The rules, by operator."""

    def run(self) -> Function:
        self.types.update(self.source.types)
        build = Builder.without_origin(self)
        for name, array in self.source.constants.items():
            build.constant(array, name=name)
        for node in self.source.nodes:
            self.rewrite(node)
        for output in self.source.outputs:
            self.nchw(output)
        return self.written()

    def rewrite(self, node: Node) -> None:
        """Write `node` in the layout that suits it."""
        key = node.op if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op}"
        maps = bool(node.inputs and node.inputs[0]) and self.rank(node.inputs[0]) in _RANKS
        match key:
            case "Conv" | "ConvInteger":
                written = maps and convolution(self, node)
            case "ConvTranspose":
                written = maps and transposed_convolution(self, node)
            case "MaxPool" | "AveragePool":
                written = maps and self.pool(node)
            case "GlobalAveragePool" | "GlobalMaxPool":
                written = maps and self.global_pool(node)
            case "MatMul" | "Gemm" | "MatMulInteger" if self.types[node.inputs[1]].is_empty:
                written = False  # there is nothing to pack
            case "MatMul" | "Gemm":
                written = self.matmul(node)
            case "MatMulInteger":
                written = self.integer_matmul(node)
            case _:
                written = False
        if written or (self.follows_nhwc(node) and self.follow(node, key)):
            return
        if key in _VIEWS and self.view_of_map(node):
            return
        inputs = tuple(self.nchw(i) for i in node.inputs)
        if key in _VIEWS or self.is_view(node):
            type_ = self.types[node.outputs[0]]
            self.view(Builder(node, self), inputs[0], type_, node.outputs[0])
        else:
            self.nodes.append(replace(node, inputs=inputs))

    # -- operators ---------------------------------------------------------------------

    def pool(self, node: Node) -> bool:
        kernel = tuple(node.attributes["kernel_shape"])
        windows = windows_of(self, node, kernel, bool(node.attributes.get("ceil_mode", 0)))
        if windows is None or len([o for o in node.outputs if o]) > 1:
            return False
        dtype = self.types[node.inputs[0]].dtype
        fill = identity("max", dtype).value if node.op == "MaxPool" else 0.0
        twin = f"{node.outputs[0]}.nhwc"
        data = padded(self, node, windows, fill)
        included = int(node.attributes.get("count_include_pad", 0))
        parts = [windows]
        if node.op == "MaxPool":
            parts = windows.separated(self.types[data].shape[1:-1]) or parts
        for number, part in enumerate(parts, 1):
            output = twin if number == len(parts) else f"{twin}.rows"
            data = Builder(node, self)(
                node.op,
                data,
                output=output,
                domain="webmlc",
                windows=part,
                count_include_pad=included,
            )
        self.define_nhwc(node.outputs[0], twin, node.origin)
        return True

    def global_pool(self, node: Node) -> bool:
        data = self.as_nhwc(node.inputs[0])
        twin = f"{node.outputs[0]}.nhwc"
        spatial = np.arange(1, self.rank(data) - 1, dtype=np.int64)
        build = Builder(node, self)
        axes = build.constant(spatial, name=f"{twin}.axes")
        build(_GLOBAL_POOLS[node.op], data, axes, output=twin, keepdims=1)
        self.define_nhwc(node.outputs[0], twin, node.origin)
        return True

    def matmul(self, node: Node) -> bool:
        """Pack the right operand of a matrix product; False where the plain operator serves
        better.
        """
        left, right = node.inputs[:2]
        known = _FLOAT
        if right in self.constants and node.op == "MatMul":
            known = (*_FLOAT, *_WEIGHTS)  # which `compute_in_integers` scales afterwards
        if self.types[left].dtype not in _FLOAT or self.types[right].dtype not in known:
            return False
        if node.op == "Gemm" and (node.attributes.get("transA", 0) or right not in self.constants):
            return False
        if (
            self.rank(left) < 2
            or self.rank(right) < 2
            or (self.rank(right) > 2 and node.op == "Gemm")
        ):
            return False
        build = Builder(node, self)
        packed, bias = f"{node.outputs[0]}.packed", node.inputs[2] if len(node.inputs) > 2 else ""
        product = f"{node.outputs[0]}.sum" if bias else node.outputs[0]
        if right in self.constants and self.rank(right) == 2:
            matrix = self.constants[right]
            if node.op == "Gemm":
                matrix = matrix.T if node.attributes.get("transB", 0) else matrix
                matrix = matrix * np.float32(node.attributes.get("alpha", 1.0))
            self.constant_product(node, matrix, packed, product)
        elif self.is_large(node):
            columns = self.types[node.outputs[0]].shape[-1]
            build("Pack", self.nchw(right), output=packed, domain="webmlc")
            operands = (self.nchw(left), packed)
            build("MatMul", *operands, output=product, domain="webmlc", columns=columns)
        else:
            return False
        if bias:
            build("Add", product, self.scaled(node, bias), output=node.outputs[0])
        return True

    # -- quantised products ------------------------------------------------------------

    def integer_matmul(self, node: Node) -> bool:
        """A product of quantised matrices over a packed right operand; False as for `matmul`."""
        left, right = node.inputs[:2]
        output, packed = node.outputs[0], f"{node.outputs[0]}.packed"
        if self.rank(left) < 2 or self.rank(right) < 2:
            return False
        if right in self.constants and self.rank(right) == 2:
            matrix, zero = centred(self, node, 1), zero_point(self, node)
            if matrix is None or (zero and self.types[zero].static_shape not in ((), (1,))):
                return False
            self.constant_product(node, matrix, packed, f"{output}.sum" if zero else output)
            if zero:
                less_zero_point(self, node, zero, matrix.sum(0, np.int32), output)
            return True
        if not self.is_large(node) or self.types[node.inputs[-1]].rank > 1:
            return False
        operands = [widened(self, node, slot) for slot in (0, 1)]
        build = Builder(node, self)
        build("Pack", operands[1], output=packed, domain="webmlc")
        columns = self.types[output].shape[-1]
        build("MatMul", operands[0], packed, output=output, domain="webmlc", columns=columns)
        return True

    def constant_product(self, node: Node, matrix: Array, packed: str, product: str) -> None:
        """The product with a constant matrix, in parts where a GPU could not bind it at once."""
        left, panels = self.nchw(node.inputs[0]), pack_matrix(matrix)
        build = Builder(node, self)
        at_once = max(MAX_BINDING_BYTES // panels[0].nbytes, 1)
        starts = range(0, len(panels), at_once)
        parts = []
        for start in starts:
            part = panels[start : start + at_once]
            suffix = f".{start}" if len(starts) > 1 else ""
            columns = const(min(len(part) * PACK, matrix.shape[1] - start * PACK))
            operands = (left, build.constant(part, name=f"{packed}{suffix}"))
            parts.append(f"{product}{suffix}")
            build("MatMul", *operands, output=parts[-1], domain="webmlc", columns=columns)
        if len(parts) > 1:
            build("Concat", *parts, output=product, axis=self.rank(left) - 1)

    def scaled(self, node: Node, value: str) -> str:
        """`beta · value`."""
        beta = float(node.attributes.get("beta", 1.0))
        if not value or beta == 1.0:
            return self.nchw(value) if value else ""
        build, output = Builder(node, self), f"{value}.scaled"
        if value in self.constants:
            return build.constant(self.constants[value] * np.float32(beta), name=output)
        factor = build.constant(beta, DType.float32, f"{node.outputs[0]}.beta")
        return build("Mul", self.nchw(value), factor, output=output)

    def is_large(self, node: Node) -> bool:
        """True where packing the right operand at run time pays: many rows read it again."""
        rows = as_int(self.types[node.outputs[0]].shape[-2])
        left, right = (self.types[i].shape[:-2] for i in node.inputs[:2])
        same_batch = len(left) == len(right) and all(map(same, left, right))
        return same_batch and (rows is None or rows >= 24)

    # -- followers ---------------------------------------------------------------------

    def follows_nhwc(self, node: Node) -> bool:
        return any(i in self.pending for i in node.inputs)

    def follow(self, node: Node, key: str) -> bool:
        """Write a layout-agnostic operator over NHWC twins; False where it depends on the order of
        dimensions.
        """
        build = Builder(node, self)
        attributes: Mapping[str, Any] = node.attributes
        inputs: list[str] | None = None
        ranks = {self.types[o].rank for o in node.outputs if o}
        rank = max(ranks)
        if len(ranks) > 1 or rank not in _RANKS:
            return False
        last, moved = channels_last(rank), channels_first(rank)
        if key in _QUANTISATION and any(i and self.rank(i) > 1 for i in node.inputs[1:]):
            return False
        if key in _QUANTISATION:
            inputs = [self.as_nhwc(node.inputs[0]), *node.inputs[1:]]
            axis = int(attributes.get("axis", 1))
            attributes = {**attributes, "axis": moved[axis]}
        elif kind_of(node) in MAPS:
            inputs = self.broadcast_inputs(node, rank)
        elif key == "Concat" and all(self.rank(i) == rank for i in node.inputs):
            inputs = [self.as_nhwc(i) for i in node.inputs]
            attributes = {**attributes, "axis": moved[attributes["axis"]]}
        elif key == "Pad" and len(node.inputs) < 4 and node.inputs[1] in self.constants:
            amounts = self.constants[node.inputs[1]].reshape(2, rank)[:, list(last)].reshape(-1)
            name = build.constant(amounts, name=f"{node.outputs[0]}.amounts")
            inputs = [self.as_nhwc(node.inputs[0]), name, *node.inputs[2:]]
        elif key == "webmlc.Repeat":
            inputs = [self.as_nhwc(node.inputs[0])]
            attributes = {**attributes, "repeats": tuple(attributes["repeats"][d] for d in last)}
        elif key == "Gather" and self.rank(node.inputs[1]) == 1:
            inputs = [self.as_nhwc(node.inputs[0]), node.inputs[1]]
            attributes = {**attributes, "axis": moved[attributes.get("axis", 0) % rank]}
        elif key in ("LRN", "webmlc.Resample", "webmlc.ChannelShuffle"):
            inputs = [self.as_nhwc(node.inputs[0]), *node.inputs[1:]]
            attributes = {**attributes, "axis": moved[attributes.get("axis", 1)]}
        elif key == "Resize" and self.resize_inputs(node) is not None:
            inputs = self.resize_inputs(node)
        elif key in _REDUCTIONS and attributes.get("keepdims", 1) and len(node.inputs) > 1:
            axes = self.constants.get(node.inputs[1])
            if axes is not None and axes.size:
                moved_axes = np.array([moved[a] for a in axes.tolist()], np.int64)
                name = build.constant(np.sort(moved_axes), name=f"{node.outputs[0]}.axes")
                inputs = [self.as_nhwc(node.inputs[0]), name]
        if inputs is None:
            return False
        twins = tuple(f"{o}.nhwc" if o else "" for o in node.outputs)
        build.many(node.op, *inputs, outputs=twins, domain=node.domain, **attributes)
        for value, twin in zip(node.outputs, twins, strict=True):
            if value:
                self.define_nhwc(value, twin, node.origin)
        return True

    def broadcast_inputs(self, node: Node, rank: int) -> list[str] | None:
        """The inputs of an elementwise operator in NHWC, constants rearranged; `None` where one
        cannot follow.
        """
        build = Builder.without_origin(self)
        inputs = []
        for value in node.inputs:
            array = self.constants.get(value)
            if not value or (array is not None and array.size == 1 and array.ndim <= rank):
                inputs.append(value)
            elif array is not None:
                wide = array.reshape((1,) * (rank - array.ndim) + array.shape)
                moved = wide.transpose(channels_last(rank))
                inputs.append(build.constant(moved, name=f"{value}.nhwc{rank}"))
            elif self.rank(value) == rank:
                inputs.append(self.as_nhwc(value))
            elif self.rank(value) == 0:
                inputs.append(value)
            else:
                return None
        return inputs

    def view_of_map(self, node: Node) -> bool:
        """Write a view that keeps batch and channels, and only joins or splits the dimensions
        between them, over the NHWC twin; False for other views.
        """
        value, output = node.inputs[0], node.outputs[0]
        before, after = self.types[value].shape, self.types[output].shape
        if value not in self.pending or len(after) not in _RANKS:
            return False
        if not all(map(same, before[:2], after[:2])):
            return False
        shape = tuple(after[d] for d in channels_last(len(after)))
        twin = f"{output}.nhwc"
        type_ = TensorType(self.types[value].dtype, shape)
        self.view(Builder(node, self), self.nhwc[value], type_, twin)
        self.define_nhwc(output, twin, node.origin)
        return True

    def resize_inputs(self, node: Node) -> list[str] | None:
        """Resize's inputs with scales and sizes reordered."""
        extra = [i for i in node.inputs[1:] if i]
        if node.attributes.get("axes") is not None or any(i not in self.constants for i in extra):
            return None
        build = Builder(node, self)
        inputs, order = [self.as_nhwc(node.inputs[0])], channels_last(self.rank(node.inputs[0]))
        for slot, value in enumerate(node.inputs[1:]):
            array = self.constants[value] if value else np.zeros(0)
            if array.size == len(order) and slot:
                inputs.append(build.constant(array[list(order)], name=f"{value}.nhwc"))
            elif array.size == 0:
                inputs.append(value)
            else:
                return None
        return inputs

    def is_view(self, node: Node) -> bool:
        """True for a Transpose that only moves dimensions of size one."""
        if node.op != "Transpose" or node.domain:
            return False
        known = self.types[node.inputs[0]]
        permutation = node.attributes.get("perm", tuple(reversed(range(known.rank))))
        return keeps_order(known, tuple(permutation))
