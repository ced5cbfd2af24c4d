"""Control flow and variables of TensorFlow Lite run in packages, on both devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc
from tests.frontend.tflite.tflite_file import (
    FileGraph,
    FileOperator,
    FileTensor,
    constant,
    tflite_file,
)
from webmlc.core.errors import UnsupportedError
from webmlc.frontend.doors.door import Example
from webmlc.frontend.tflite.export_tflite import export_tflite

DEVICES = pytest.mark.parametrize("device", ["wasm", "webgpu"])
X = np.array([1, -2, 3], np.float32)


def saved(graphs: Sequence[FileGraph], folder: Path) -> Path:
    path = folder / "model.tflite"
    path.write_bytes(tflite_file(graphs))
    return path


def run(graphs: Sequence[FileGraph], folder: Path, device: Any, *runs: Any) -> list[np.ndarray]:
    """The first output of the first graph, for the inputs of each run."""
    manifest = webmlc.build(saved(graphs, folder), folder / "package", target=device)
    model = webmlc.load(folder / "package", device=device)
    try:
        outputs = [model.run(inputs) for inputs in runs]
    finally:
        model.dispose()
    return [output[manifest.outputs[0].name] for output in outputs]


def unary(name: str, *, size: int = 3) -> FileGraph:
    """A subgraph of one operator."""
    tensors = [FileTensor("a", (size,)), FileTensor("b", (size,))]
    return FileGraph(tensors, [FileOperator(name, [0], [1])], [0], [1])


DOUBLE = FileGraph(
    [FileTensor("a", (3,), sizes=(-1,)), FileTensor("b", (6,), sizes=(-1,))],
    [FileOperator("CONCATENATION", [0, 0], [1], "ConcatenationOptions", {"Axis": 0})],
    [0],
    [1],
)
"""A subgraph whose result is twice as long as its input."""
BRANCHES = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}


@DEVICES
@pytest.mark.parametrize("other", [unary("EXP"), DOUBLE])
def test_a_branch_of_a_run(other: FileGraph, device: Any, tmp_path: Path) -> None:
    """Branches may give results of different sizes."""
    tensors = [
        FileTensor("c", (1,), "BOOL"),
        FileTensor("x", (3,)),
        FileTensor("y", (3,), sizes=(-1,)),
    ]
    main = FileGraph(tensors, [FileOperator("IF", [0, 1], [2], "IfOptions", BRANCHES)], [0, 1], [2])
    inputs = [{"c": np.array([flag]), "x": X} for flag in (True, False)]
    first, second = run([main, unary("NEG"), other], tmp_path, device, *inputs)
    np.testing.assert_array_equal(first, -X)
    expected = np.concatenate([X, X]) if other is DOUBLE else np.exp(X)
    np.testing.assert_allclose(second, expected, 1e-6)


def counted(body: Sequence[FileOperator], tensors: Sequence[FileTensor]) -> list[FileGraph]:
    """A loop over a counter, the limit of it, and a vector. The body has these operators after the
    counter's sum, and returns its tensor 5.
    """
    ports = [FileTensor("i", (), "INT32"), FileTensor("n", (), "INT32"), FileTensor("x", (3,))]
    results = [FileTensor(f"{port.name}_out", port.shape, port.element) for port in ports]
    loop = {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2}
    start = constant("start", np.array(0, np.int32))
    one = constant("one", np.array(1, np.int32))
    while_ = FileOperator("WHILE", [6, 1, 2], [3, 4, 5], "WhileOptions", loop)
    less = FileOperator("LESS", [0, 1], [3], "LessOptions")
    step = FileOperator("ADD", [0, 3], [4], "AddOptions")
    inner = [*ports, one, FileTensor("next", (), "INT32"), FileTensor("y", (3,)), *tensors]
    return [
        FileGraph([*ports, *results, start], [while_], [1, 2], [5]),
        FileGraph([*ports, FileTensor("again", (), "BOOL")], [less], [0, 1, 2], [3]),
        FileGraph(inner, [step, *body], [0, 1, 2], [4, 1, 5]),
    ]


@DEVICES
def test_a_loop_of_a_run(device: Any, tmp_path: Path) -> None:
    """The vector is added to itself; the loop may run no iteration."""
    graphs = counted([FileOperator("ADD", [2, 2], [5], "AddOptions")], [])
    inputs = [{"n": np.array(n, np.int32), "x": X} for n in (0, 5)]
    first, second = run(graphs, tmp_path, device, *inputs)
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(second, 32 * X)


@DEVICES
def test_a_branch_in_a_loop_and_a_call_in_a_branch(device: Any, tmp_path: Path) -> None:
    """Odd counters negate through a call, and even ones square."""
    tensors = [
        constant("two", np.array(2, np.int32)),
        FileTensor("rest", (), "INT32"),
        FileTensor("odd", (), "BOOL"),
    ]
    body = [
        FileOperator("FLOOR_MOD", [0, 6], [7], "FloorModOptions"),
        FileOperator("CAST", [7], [8], "CastOptions"),
        FileOperator("IF", [8, 2], [5], "IfOptions",
                     {"ThenSubgraphIndex": 3, "ElseSubgraphIndex": 4}),
    ]  # fmt: skip
    graphs = [*counted(body, tensors), calling(5), unary("SQUARE"), unary("NEG")]
    (result,) = run(graphs, tmp_path, device, {"n": np.array(3, np.int32), "x": X})
    np.testing.assert_array_equal(result, X**4)


def with_variable(first: float) -> list[FileGraph]:
    """A file that adds its input to a variable, which begins with `first`."""
    handle = FileOperator("VAR_HANDLE", [], [0], "VarHandleOptions", {"SharedName": "total"})
    tensors = [
        FileTensor("handle", (), "RESOURCE"),
        FileTensor("x", (3,)),
        FileTensor("before", (3,)),
        FileTensor("after", (3,)),
    ]
    operators = [
        FileOperator("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": 1}),
        handle,
        FileOperator("READ_VARIABLE", [0], [2], "ReadVariableOptions"),
        FileOperator("ADD", [2, 1], [3], "AddOptions"),
        FileOperator("ASSIGN_VARIABLE", [0, 3], [], "AssignVariableOptions"),
    ]
    start = FileGraph(
        [tensors[0], constant("first", np.full(3, first, np.float32))],
        [handle, FileOperator("ASSIGN_VARIABLE", [0, 1], [], "AssignVariableOptions")],
        [],
        [],
    )
    return [FileGraph(tensors, operators, [1], [3]), start]


@DEVICES
@pytest.mark.parametrize("first", [0, 5])
def test_a_session_keeps_a_variable(first: float, device: Any, tmp_path: Path) -> None:
    webmlc.build(saved(with_variable(first), tmp_path), tmp_path / "package", target=device)
    model = webmlc.load(tmp_path / "package", device=device)
    try:
        session = model.session()
        for times in (1, 2, 3):
            np.testing.assert_array_equal(session.run({"x": X})["after"], first + times * X)
        session.reset()
        np.testing.assert_array_equal(session.run({"x": X})["after"], first + X)
    finally:
        model.dispose()


def test_a_variable_that_no_run_assigns_is_a_constant(tmp_path: Path) -> None:
    main, start = with_variable(5)
    main = FileGraph(main.tensors, main.operators[:-1], main.inputs, main.outputs)
    model = export_tflite(saved([main, start], tmp_path), Example())
    assert [port.name for port in model.graph.input] == ["x"]


def calling(number: int, inputs: Sequence[int] = (0,)) -> FileGraph:
    """A subgraph that calls another one."""
    call = FileOperator("CALL", inputs, [1], "CallOptions", {"Subgraph": number})
    return FileGraph(unary("NEG").tensors, [call], [0], [1])


@pytest.mark.parametrize(
    ("graphs", "message"),
    [
        ([calling(0)], "subgraph 0 calls itself"),
        ([calling(1), calling(2), calling(1)], "subgraph 1 calls itself"),
        ([calling(1, [0, 0]), unary("NEG")], "subgraph 1 has 1 inputs"),
        ([calling(1), unary("RANDOM_UNIFORM")], "RANDOM_UNIFORM"),
    ],
)
def test_calls_that_cannot_be_written_are_refused(
    graphs: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        export_tflite(saved(graphs, tmp_path), Example())
