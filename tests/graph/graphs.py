"""Small graphs for the tests of graph passes, written as ONNX text and taken through inference."""

from __future__ import annotations

import onnx.parser

from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Module
from webmlc.graph.simplify.constants import fold_constants
from webmlc.graph.simplify.simplify_graph import simplify_graph


def module(text: str, opset: int = 17) -> Module:
    """The module of an ONNX graph in ONNX's text syntax, simplified."""
    read = normalise(read_model(parsed(text, opset)))
    return simplify_graph(fold_constants(infer_shapes(read)))


def parsed(text: str, opset: int = 17) -> onnx.ModelProto:
    """The model of an ONNX graph in ONNX's text syntax."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n' + text)


def zeros(name: str, *shape: int) -> str:
    """A float initialiser of zeros in ONNX's text syntax."""
    count = 1
    for size in shape:
        count *= size
    dimensions = ",".join(map(str, shape))
    return f"float[{dimensions}] {name} = {{{','.join(['0'] * count)}}}"
