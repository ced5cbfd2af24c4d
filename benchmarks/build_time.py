"""Measure how build time grows with the number of nodes, on chains of mixed nodes.

In: lengths of chains. Out: seconds per length, and the ratio to the first length. A pass that looks
at all nodes for each node stands out at once.

    .venv/bin/python benchmarks/build_time.py 200 400 2000
"""

from __future__ import annotations

import sys
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from webmlc.pipeline import compile_model

PERIOD = 10
"""The number of different nodes, after which the chain repeats."""
SHAPE = (1, 8, 12, 12)
"""The shape of the chain's input and of every tenth value."""


def chain(length: int) -> onnx.ModelProto:
    """A chain of `length` nodes (a multiple of ten): elementwise operators, a matrix product, a
    convolution, views, data movement, a concatenation and a reduction in turn.
    """
    rng = np.random.default_rng(0)
    constants = {
        "weights": rng.standard_normal((8, 8, 3, 3)).astype(np.float32) * 0.1,
        "matrix": rng.standard_normal((12, 12)).astype(np.float32) * 0.3,
        "flat": np.array([1, 8, 144]),
        "square": np.array(SHAPE),
        "half": np.array([4, 4]),
    }
    nodes: list[onnx.NodeProto] = []
    value = "x"
    for number in range(length):
        new_nodes, value = _nodes(number, value)
        nodes += new_nodes
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", value)]
    stored = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "chain", info[:1], info[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _nodes(number: int, value: str) -> tuple[list[onnx.NodeProto], str]:
    """The nodes at one place of the chain, and the name of their result."""
    name = f"v{number}"
    make = helper.make_node
    match number % PERIOD:
        case 0:
            return [make("Conv", [value, "weights"], [name], pads=[1] * 4)], name
        case 1:
            return [make("Relu", [value], [name])], name
        case 2:
            return [make("MatMul", [value, "matrix"], [name])], name
        case 3:
            return [make("Transpose", [value], [name], perm=[0, 1, 3, 2])], name
        case 4:
            return [make("Reshape", [value, "flat"], [name])], name
        case 5:
            return [make("Softmax", [value], [name], axis=-1)], name
        case 6:
            return [make("Reshape", [value, "square"], [name])], name
        case 7:
            return [make("Sigmoid", [value], [name])], name
        case 8:
            return [make("ReduceMean", [value], [name], axes=[1], keepdims=1)], name
    return [make("Concat", [value] * SHAPE[1], [name], axis=1)], name


def main(lengths: list[int]) -> None:
    """Print a row per length."""
    compile_model(chain(PERIOD))  # imports and caches count for no length
    first = 0.0
    for length in lengths:
        model = chain(length)
        start = time.process_time()
        compile_model(model)
        seconds = time.process_time() - start
        first = first or seconds
        print(f"{length:6d} nodes  {seconds:8.2f} s  {seconds / first:6.2f} times", flush=True)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [200, 400, 2000])
