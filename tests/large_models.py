"""Models whose size is a parameter, to see how building them grows.

`MODELS` makes each for a number `n`: of nodes, operands, outputs or levels. As a script: seconds
and megabytes that a build takes at n, 2n and 4n, each in a process of its own that may not take
more than `SECONDS` and `GIGABYTES`.

    python -m tests.large_models                    # every model
    python -m tests.large_models chain_exp 1000     # one, from a size on
    python -m tests.large_models both chain_exp 1000 --once
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from webmlc.build_options import BuildOptions, TargetName
from webmlc.core.errors import UserError
from webmlc.package.write import write_package
from webmlc.pipeline import compile_model

OPSET = 18
WIDTH = 4
"""Elements of most tensors."""
TARGETS: tuple[TargetName, ...] = ("wasm", "webgpu", "both")
ONCE, HERE = "--once", "--here"
"""Words of the command line: one size only; in this process, without limits."""
SECONDS, GIGABYTES = 60, 6
"""The limits of a build that the script measures."""

Make = Callable[[int], ModelProto]


def _floats(name: str, *shape: int | str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _integers(name: str, *shape: int | str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, shape)


def _model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[ValueInfoProto],
    constants: dict[str, Any] | None = None,
    functions: Sequence[FunctionProto] = (),
) -> ModelProto:
    tensors = [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()]
    graph = helper.make_graph(nodes, "large", inputs, outputs, tensors)
    domains = [helper.make_opsetid("", OPSET)]
    if functions:
        domains.append(helper.make_opsetid("local", 1))
    return helper.make_model(graph, opset_imports=domains, functions=list(functions), ir_version=10)


def _inputs(n: int) -> list[str]:
    return [f"x{i}" for i in range(n)]


def variadic(op: str, n: int, **attributes: Any) -> ModelProto:
    """One node of n inputs, each an input of the model."""
    node = helper.make_node(op, _inputs(n), ["y"], **attributes)
    shape = (n, WIDTH) if op == "Concat" else (1, WIDTH)
    return _model([node], [_floats(x, 1, WIDTH) for x in _inputs(n)], [_floats("y", *shape)])


def concat_of_results(n: int) -> ModelProto:
    """A Concat of n results of other nodes."""
    nodes = [helper.make_node("Exp", [f"x{i % 4}"], [f"e{i}"]) for i in range(4)]
    nodes += [helper.make_node("Mul", [f"e{i % 4}", f"c{i}"], [f"p{i}"]) for i in range(n)]
    nodes.append(helper.make_node("Concat", [f"p{i}" for i in range(n)], ["y"], axis=0))
    constants = {f"c{i}": np.array([[1 + i]], np.float32) for i in range(n)}
    inputs = [_floats(f"x{i}", 1, WIDTH) for i in range(4)]
    return _model(nodes, inputs, [_floats("y", n, WIDTH)], constants)


def split(n: int) -> ModelProto:
    """One Split whose n outputs are the model's."""
    outputs = [f"y{i}" for i in range(n)]
    node = helper.make_node("Split", ["x"], outputs, axis=0, num_outputs=n)
    return _model([node], [_floats("x", n, WIDTH)], [_floats(y, 1, WIDTH) for y in outputs])


def split_and_join(n: int) -> ModelProto:
    """The n parts of a Split, each through a node of its own, and joined again."""
    parts = [f"p{i}" for i in range(n)]
    nodes = [helper.make_node("Split", ["x"], parts, axis=0, num_outputs=n)]
    nodes += [helper.make_node("Relu", [p], [f"{p}r"]) for p in parts]
    nodes.append(helper.make_node("Concat", [f"{p}r" for p in parts], ["y"], axis=0))
    return _model(nodes, [_floats("x", n, WIDTH)], [_floats("y", n, WIDTH)])


def inputs(n: int) -> ModelProto:
    """n inputs, added one after the other."""
    nodes = [
        helper.make_node("Add", ["x0" if i == 1 else f"s{i - 1}", f"x{i}"], [f"s{i}"])
        for i in range(1, n)
    ]
    nodes.append(helper.make_node("Identity", [f"s{n - 1}"], ["y"]))
    return _model(nodes, [_floats(x, 1, WIDTH) for x in _inputs(n)], [_floats("y", 1, WIDTH)])


def outputs(n: int) -> ModelProto:
    """n outputs, each a function of the one before."""
    nodes = [helper.make_node("Sin", [f"y{i - 1}" if i else "x"], [f"y{i}"]) for i in range(n)]
    return _model(nodes, [_floats("x", WIDTH)], [_floats(f"y{i}", WIDTH) for i in range(n)])


def chain(
    op: str,
    n: int,
    shape: tuple[int | str, ...] = (WIDTH,),
    operands: Sequence[str] = ("{}",),
    constants: dict[str, Any] | None = None,
    **attributes: Any,
) -> ModelProto:
    """n nodes of one operator, each of the one before."""
    nodes = []
    for i in range(n):
        value = f"v{i - 1}" if i else "x"
        result = f"v{i}" if i < n - 1 else "y"
        names = [operand.format(value) for operand in operands]
        nodes.append(helper.make_node(op, names, [result], **attributes))
    return _model(nodes, [_floats("x", *shape)], [_floats("y", *shape)], constants)


def doubling(n: int) -> ModelProto:
    """x = x + x, n times."""
    return chain("Add", n, operands=("{}", "{}"))


def shared(n: int) -> ModelProto:
    """x = sin(x) · x, n times, with a choice between."""
    nodes = []
    for i in range(n):
        value, result = f"v{i - 1}" if i else "x", f"v{i}" if i < n - 1 else "y"
        nodes += [
            helper.make_node("Sin", [value], [f"s{i}"]),
            helper.make_node("Less", [f"s{i}", value], [f"l{i}"]),
            helper.make_node("Where", [f"l{i}", f"s{i}", value], [result]),
        ]
    return _model(nodes, [_floats("x", WIDTH)], [_floats("y", WIDTH)])


def shape_arithmetic(n: int) -> ModelProto:
    """The size of an input, added to itself n times."""
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    nodes += [helper.make_node("Add", [f"s{i}", f"s{i}"], [f"s{i + 1}"]) for i in range(n)]
    nodes.append(helper.make_node("Identity", [f"s{n}"], ["y"]))
    return _model(nodes, [_floats("x", "length")], [_integers("y", 1)])


def shape_growth(n: int) -> ModelProto:
    """The size of an input to the power of two, n times: what no 32-bit number holds."""
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    nodes += [helper.make_node("Mul", [f"s{i}", f"s{i}"], [f"s{i + 1}"]) for i in range(n)]
    nodes.append(helper.make_node("Identity", [f"s{n}"], ["y"]))
    return _model(nodes, [_floats("x", "length")], [_integers("y", 1)])


def sizes(n: int) -> ModelProto:
    """The sizes of n inputs, which differ, as one tensor."""
    nodes = [helper.make_node("Shape", [x], [f"s{x}"]) for x in _inputs(n)]
    nodes.append(helper.make_node("Concat", [f"s{x}" for x in _inputs(n)], ["y"], axis=0))
    inputs = [_floats(x, f"size_of_{x}") for x in _inputs(n)]
    return _model(nodes, inputs, [_integers("y", n)])


def concat_growth(n: int) -> ModelProto:
    """x = Concat(x, x) along a symbolic axis, cut to its first elements again, n times."""
    nodes = []
    for i in range(n):
        value, result = f"v{i - 1}" if i else "x", f"v{i}" if i < n - 1 else "y"
        nodes += [
            helper.make_node("Concat", [value, value], [f"c{i}"], axis=0),
            helper.make_node("Slice", [f"c{i}", "start", "end"], [result]),
        ]
    constants = {"start": np.array([0]), "end": np.array([3])}
    return _model(nodes, [_floats("x", "length")], [_floats("y", "cut")], constants)


def _body(level: int, n: int, constant: bool) -> GraphProto:
    """The body of a Loop at a level: v becomes 2v + 1 in the innermost."""
    inputs = [_integers(f"i{level}"), _condition(f"c{level}"), _floats(f"v{level}", WIDTH)]
    nodes = [helper.make_node("Identity", [f"c{level}"], [f"d{level}"])]
    tensors = []
    if level < n:
        inner = _body(level + 1, n, constant)
        trips = f"trips{level}" if constant else "trips"
        tensors = [numpy_helper.from_array(np.array(3), trips)] if constant else []
        nodes.append(helper.make_node("Loop", [trips, "", f"v{level}"], [f"w{level}"], body=inner))
    else:
        nodes += [
            helper.make_node("Add", [f"v{level}", f"v{level}"], [f"t{level}"]),
            helper.make_node("Add", [f"t{level}", "one"], [f"w{level}"]),
        ]
    outputs = [_condition(f"d{level}"), _floats(f"w{level}", WIDTH)]
    return helper.make_graph(nodes, f"body{level}", inputs, outputs, tensors)


def _condition(name: str) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.BOOL, ())


def loops(n: int, *, constant: bool = False) -> ModelProto:
    """n Loops, each inside the other, of as many iterations as an input says; or of three."""
    node = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=_body(1, n, constant))
    constants: dict[str, Any] = {"one": np.array(1, np.float32)}
    inputs = [_integers("trips"), _floats("x", WIDTH)]
    if constant:
        constants["trips"] = np.array(3)
        del inputs[0]
    return _model([node], inputs, [_floats("y", WIDTH)], constants)


def _branch(level: int, n: int) -> GraphProto:
    """The first branch of the If at a level."""
    if level == n:
        return _leaf(f"then{level}", "Sin")
    node = helper.make_node(
        "If",
        ["c"],
        [f"w{level}"],
        then_branch=_branch(level + 1, n),
        else_branch=_leaf(f"else{level}", "Exp"),
    )
    return helper.make_graph([node], f"then{level}", [], [_floats(f"w{level}", WIDTH)])


def _leaf(name: str, op: str) -> GraphProto:
    node = helper.make_node(op, ["x"], [f"leaf{name}"])
    return helper.make_graph([node], name, [], [_floats(f"leaf{name}", WIDTH)])


def branches(n: int) -> ModelProto:
    """n Ifs, each inside the first branch of the other."""
    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=_branch(1, n), else_branch=_leaf("else0", "Neg")
    )
    return _model([node], [_floats("x", WIDTH), _condition("c")], [_floats("y", WIDTH)])


def functions(n: int) -> ModelProto:
    """n local functions, each of which calls the one before twice: 2ⁿ nodes."""
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
    bodies = [
        helper.make_function(
            "local", "f0", ["x"], ["y"], [helper.make_node("Sin", ["x"], ["y"])], imports
        )
    ]
    for i in range(1, n):
        calls = [
            helper.make_node(f"f{i - 1}", ["x"], ["t"], domain="local"),
            helper.make_node(f"f{i - 1}", ["t"], ["y"], domain="local"),
        ]
        bodies.append(helper.make_function("local", f"f{i}", ["x"], ["y"], calls, imports))
    node = helper.make_node(f"f{n - 1}", ["x"], ["y"], domain="local")
    return _model([node], [_floats("x", WIDTH)], [_floats("y", WIDTH)], functions=bodies)


def resize(n: int) -> ModelProto:
    """A Resize of one element to n × n."""
    constants = {"sizes": np.array([1, 1, n, n])}
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], name="grow", mode="linear")
    return _model([node], [_floats("x", 1, 1, 1, 1)], [_floats("y", 1, 1, n, n)], constants)


def sparse(n: int) -> ModelProto:
    """An initialiser of n elements, one of which is not zero."""
    model = _model(
        [helper.make_node("Gather", ["w", "x"], ["y"], axis=0)],
        [_integers("x", 1)],
        [_floats("y", 1)],
    )
    values = numpy_helper.from_array(np.array([1], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1]), "w_indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [n]))
    return model


def mul_add(n: int) -> ModelProto:
    """Products and sums of an input in turn."""
    nodes = []
    for i in range(n):
        value, result = f"v{i - 1}" if i else "x", f"v{i}" if i < n - 1 else "y"
        nodes.append(helper.make_node(("Mul", "Add")[i % 2], [value, "z"], [result]))
    return _model(nodes, [_floats("x", WIDTH), _floats("z", WIDTH)], [_floats("y", WIDTH)])


def pad_slice(n: int) -> ModelProto:
    """Pads and Slices in turn."""
    nodes = []
    for i in range(n):
        value, result = f"v{i - 1}" if i else "x", f"v{i}" if i < n - 1 else "y"
        nodes += [
            helper.make_node("Pad", [value, "pads"], [f"p{i}"]),
            helper.make_node("Slice", [f"p{i}", "start", "end"], [result]),
        ]
    constants = {"pads": np.array([1, 1]), "start": np.array([0]), "end": np.array([WIDTH])}
    return _model(nodes, [_floats("x", WIDTH)], [_floats("y", WIDTH)], constants)


SQUARE = (WIDTH, WIDTH)
_WITH = ("{}", "c")
_ONES = {"c": np.ones(WIDTH, np.float32)}
_HALF = {"c": np.eye(WIDTH, dtype=np.float32) * 0.5}
_KERNEL = {"c": np.full((2, 2, 1, 1), 0.5, np.float32)}
_ZERO = {"c": np.array([0])}
_ORDER = {"c": np.array([3, 1, 0, 2])}

MODELS: dict[str, tuple[Make, int]] = {
    "concat": (partial(variadic, "Concat", axis=0), 500),
    "concat_of_results": (concat_of_results, 500),
    "sum": (partial(variadic, "Sum"), 500),
    "max": (partial(variadic, "Max"), 500),
    "mean": (partial(variadic, "Mean"), 500),
    "split": (split, 500),
    "split_and_join": (split_and_join, 500),
    "inputs": (inputs, 500),
    "outputs": (outputs, 500),
    "chain_exp": (partial(chain, "Exp"), 1000),
    "chain_add": (partial(chain, "Add", operands=_WITH, constants=_ONES), 1000),
    "chain_mul_add": (mul_add, 1000),
    "chain_matmul": (partial(chain, "MatMul", shape=SQUARE, operands=_WITH, constants=_HALF), 500),
    "chain_conv": (
        partial(chain, "Conv", shape=(1, 2, 4, 4), operands=_WITH, constants=_KERNEL),
        500,
    ),
    "chain_softmax": (partial(chain, "Softmax", shape=SQUARE), 500),
    "chain_reduce": (
        partial(chain, "ReduceSum", shape=(1, 4, 4), operands=_WITH, constants=_ZERO),
        500,
    ),
    "chain_transpose": (partial(chain, "Transpose", shape=SQUARE, perm=[1, 0]), 1000),
    "chain_pad_slice": (pad_slice, 500),
    "chain_gather": (partial(chain, "Gather", operands=_WITH, constants=_ORDER), 500),
    "chain_cumsum": (partial(chain, "CumSum", operands=_WITH, constants=_ZERO), 500),
    "chain_symbolic": (partial(chain, "Sin", shape=("a", "b")), 1000),
    "doubling": (doubling, 100),
    "shared": (shared, 100),
    "shape_arithmetic": (shape_arithmetic, 50),
    "shape_growth": (shape_growth, 5),
    "sizes": (sizes, 200),
    "concat_growth": (concat_growth, 10),
    "loops": (loops, 5),
    "constant_loops": (partial(loops, constant=True), 5),
    "branches": (branches, 5),
    "functions": (functions, 10),
    "resize": (resize, 250_000),
    "sparse": (sparse, 1 << 34),
}
"""How each model is made, and the smallest size the script builds it at."""


def measure(name: str, n: int, target: TargetName = "wasm") -> str:
    """Build a model in this process; the seconds and megabytes that it took, or why it failed."""
    model = MODELS[name][0](n)
    begin = time.process_time()
    try:
        parts = compile_model(model, BuildOptions(target))
        with TemporaryDirectory() as folder:
            write_package(Path(folder), parts)
        steps = ", ".join(f"{len(p.body)} steps" for p in parts.programs.values())
        result = f"{steps}, {sum(map(len, parts.modules.values()))} bytes of modules"
    except UserError as error:
        result = f"{type(error).__name__}: {error}".splitlines()[0][:150]
    seconds = time.process_time() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return f"{seconds:6.2f} s {peak:5} MB  {result}"


def limited(
    command: Sequence[str], seconds: int, gigabytes: int
) -> subprocess.CompletedProcess[str]:
    """Run Python in the repository's folder, for at most so many seconds of processor time and
    bytes of addresses.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_AS, (gigabytes << 30, gigabytes << 30))

    return subprocess.run(
        [sys.executable, *command],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )


def main(arguments: Sequence[str]) -> None:
    """See the module's docstring."""
    names = [a for a in arguments if a in MODELS] or list(MODELS)
    sizes = [int(a) for a in arguments if a.isdigit()]
    targets: list[TargetName] = [t for t in TARGETS if t in arguments] or ["wasm"]
    if HERE in arguments:
        print(measure(names[0], sizes[0], targets[0]))
        return
    for name in names:
        first = sizes[0] if sizes else MODELS[name][1]
        for n in (first,) if ONCE in arguments else (first, 2 * first, 4 * first):
            command = ["-m", "tests.large_models", name, str(n), targets[0], HERE]
            done = limited(command, SECONDS, GIGABYTES)
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            failure = f"ended with {done.returncode}: {last[:150]}"
            print(
                f"{name:18} {n:8} {failure if done.returncode else done.stdout.strip()}", flush=True
            )


if __name__ == "__main__":
    main(sys.argv[1:])
