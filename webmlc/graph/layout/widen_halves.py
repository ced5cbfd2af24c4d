"""Half-precision models compute in float32: no processor here adds in less.

needs: inferred types, constants packed. guarantees: operators that calculate have no float16 or
bfloat16 operands; a value is rounded to half precision where the model casts it, or a caller or
control flow reads it, and nowhere between. Large constants stay as small as they came: a Cast
widens them, at load where the target can (`package/program.py`). Nodes that only move elements of
inputs and constants still move halves.
before → after (x, w, y: float16):

    %c = Conv(%x, %w)              %x.wide = Cast(%x)
    %y = Relu(%c)           →      %w.wide = Cast(%w)
                                   %c.wide = Conv(%x.wide, %w.wide)
                                   %y.wide = Relu(%c.wide)
                                   %y = Cast(%y.wide)

onnxruntime's CPU provider does the same, and the sums of a reduction need it: 11 bits do not hold
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Call
from webmlc.core.rewrite import walk
from webmlc.graph.compute import Read, Reduction, Scatter, Tensor, placeholder
from webmlc.graph.ir import Function, Module, Node, TensorType
from webmlc.graph.ops.control import CONTROL
from webmlc.graph.ops.operator import ELEMENT_TYPES, NotSupportedError, Scope
from webmlc.graph.rewrite.function_writer import FunctionWriter
from webmlc.graph.rewrite.meaning import compute_node, kind_of, row_of
from webmlc.graph.simplify.simplify_graph import remove_dead_code

HALVES = frozenset({DType.float16, DType.bfloat16})
SMALL = 4096
"""Bytes of a constant that is widened in the package."""
_NUMBERS = {dtype: number for number, dtype in ELEMENT_TYPES.items()}


def widen_halves(module: Module) -> Module:
    """Rewrite every function; one without halves stays as it is."""
    functions = {}
    for name, function in module.functions.items():
        writer = _Widening(function, widens_at_load=function is module.main)
        functions[name] = writer.run()
    return replace(module, functions=functions)


@dataclass(slots=True)
class _Widening(FunctionWriter):
    """The function so far, and the float32 form of those halves that have one."""

    widens_at_load: bool = True
    wide: dict[str, str] = field(default_factory=dict)
    scope: Scope = field(init=False)

    def run(self) -> Function:
        self.scope = Scope.of(self.source)
        values = [*self.source.types, *self.source.constants]
        if not any(map(self.is_half, values)):
            return self.source
        self.types.update((v, self.source.types[v]) for v in self.source.inputs)
        self.constants.update(self.source.constants)
        for node in self.source.nodes:
            if not self.calculates(node) or not self.widened(node):
                self.kept(node)
        for value in self.source.outputs:
            self.narrow(value, ())
        return remove_dead_code(self.written())

    def is_half(self, value: str) -> bool:
        known = self.scope.type_of(value) if value else None
        return known is not None and known.dtype in HALVES

    def calculates(self, node: Node) -> bool:
        """True for a node to widen: of halves that it reads it makes new values, or one of them has
        its float32 form already.
        """
        halves = [value for value in node.inputs if self.is_half(value)]
        if not halves or (node.domain, node.op) in CONTROL:
            return False
        if any(value not in self.types and value not in self.constants for value in halves):
            return True
        return node.op != "View" and not (kind_of(node) == "injective" and self.moves(node))

    def moves(self, node: Node) -> bool:
        """True where every element of the result is one that the node reads, or is the same for
        all.
        """
        known = [self.scope.type_of(value) if value else None for value in node.inputs]
        tensors = [None if t is None else placeholder("x", t.shape, t.dtype) for t in known]
        results = compute_node(node, self.scope, tuple(tensors))
        return not any(map(_calculates, results))

    def widened(self, node: Node) -> bool:
        """Write the node over float32; False where it is about the bits of its operand."""
        inputs = tuple(self.widen(v, node) if self.is_half(v) else v for v in node.inputs)
        types = {v: t for v in inputs if v and (t := self.known(v)) is not None}
        scope = Scope(types, self.constants, self.scope.values)
        names = {v: f"{v}.wide" for v in node.outputs if self.is_half(v)}
        try:
            found = row_of(node).infer(scope.context(replace(node, inputs=inputs)))
        except NotSupportedError:
            return False
        outputs = []
        for value, inferred in zip(filter(None, node.outputs), found, strict=False):
            is_wide = value in names and inferred.dtype is DType.float32
            output = names[value] if is_wide else value
            self.types[output] = TensorType(inferred.dtype, self.source.types[value].shape)
            if is_wide:
                self.wide[value] = output
            outputs.append((value, output))
        renamed = dict(outputs)
        made = tuple(renamed.get(v, v) for v in node.outputs)
        self.nodes.append(replace(node, inputs=inputs, outputs=made))
        return True

    def kept(self, node: Node) -> None:
        """Write the node as it is."""
        for value in filter(None, node.inputs):
            self.narrow(value, node.origin)
        known = self.source.types
        self.types.update((v, known[v]) for v in node.outputs if v in known)
        self.nodes.append(node)

    def known(self, value: str) -> TensorType | None:
        return self.types.get(value) or self.scope.type_of(value)

    def narrow(self, value: str, origin: tuple[str, ...]) -> None:
        """Write a value as the model has it, where only its float32 form is there."""
        if value in self.wide and value not in self.types and value not in self.constants:
            self.cast(self.wide[value], self.source.types[value].dtype, value, origin)

    def widen(self, value: str, node: Node) -> str:
        """The float32 form of a value."""
        if value not in self.wide:
            array = self.constants.get(value)
            name = f"{value}.wide"
            if array is not None and (array.nbytes <= SMALL or not self.widens_at_load):
                self.constant(name, array.astype(np.float32))
            else:
                self.cast(value, DType.float32, name, node.origin)
            self.wide[value] = name
        return self.wide[value]

    def cast(self, value: str, dtype: DType, output: str, origin: tuple[str, ...]) -> None:
        known = self.known(value)
        assert known is not None, value
        self.types[output] = TensorType(dtype, known.shape)
        attributes = {"to": _NUMBERS[dtype]}
        self.nodes.append(Node("Cast", (value,), (output,), attributes, "", origin))


def _calculates(root: Tensor) -> bool:
    """True where a tensor is made by arithmetic on halves."""
    stack, seen = [root], {root}
    while stack:
        tensor = stack.pop()
        if isinstance(tensor.body, Reduction | Scatter) and tensor.body.combine is not None:
            return True
        for node in (node for root in tensor.expressions for node in walk(root)):
            match node:
                case Call(op=op, args=args) if op != "select" and args[-1].dtype in HALVES:
                    return True
                case Read(tensor=made) if made not in seen:
                    seen.add(made)
                    stack.append(made)
    return False
