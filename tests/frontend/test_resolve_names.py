"""Local functions are written out, and values of different scopes have different names.

Each model is compared with onnxruntime, whose scopes and defaults are those that exporters rely on.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from webmlc.core.errors import ModelError
from webmlc.frontend.read_model import read_model
from webmlc.host.load import load
from webmlc.pipeline import build

HEADER = '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>'
MAIN = "g (float[n, 3] x, bool c) => (float[n, 3] y)"
FUNCTIONS = {
    "a default": f"""{HEADER} {MAIN} {{ y = local.f (x) }}
        <domain: "local", opset_import: ["" : 21]> f <alpha: float = 0.5> (a) => (b)
        {{ b = LeakyRelu <alpha: float = @alpha> (a) }}""",
    "a default and a value": f"""{HEADER} {MAIN} {{ y = local.f <alpha: float = 2.0> (x) }}
        <domain: "local", opset_import: ["" : 21]> f <alpha: float = 0.5> (a) => (b)
        {{ k = Constant <value_float: float = @alpha> () b = Mul (a, k) }}""",
    "a value that no call gives": f"""{HEADER} {MAIN} {{ y = local.f (x) }}
        <domain: "local", opset_import: ["" : 21]> f <axis> (a) => (b)
        {{ b = Softmax <axis: int = @axis> (a) }}""",
    "a default in a branch": f"""{HEADER} {MAIN} {{ y = local.f (x, c) }}
        <domain: "local", opset_import: ["" : 21]> f <alpha: float = 0.5> (a, p) => (b)
        {{ b = If (p) <then_branch = t () => (float[n, 3] q)
                {{ q = LeakyRelu <alpha: float = @alpha> (a) }},
            else_branch = e () => (float[n, 3] r) {{ r = Neg (a) }}> }}""",
    "a function that calls another": f"""{HEADER} {MAIN} {{ t = local.f (x)  y = local.f (t) }}
        <domain: "local", opset_import: ["" : 21, "local" : 1]> f <by: float = 3.0> (a) => (b)
        {{ t = local.h <alpha: float = @by> (a) b = Add (t, a) }}
        <domain: "local", opset_import: ["" : 21]> h <alpha: float = 0.25> (a) => (t)
        {{ t = Elu <alpha: float = @alpha> (a) }}""",
    "an older opset": f"""{HEADER} {MAIN} {{ y = local.f (x) }}
        <domain: "local", opset_import: ["" : 12]> f (a) => (b)
        {{ s = ReduceSum <axes: ints = [1]> (a) t = Softmax (a) b = Mul (s, t) }}""",
    "an output that is an input": f"""{HEADER} {MAIN} {{ t, y = local.f (x) }}
        <domain: "local", opset_import: ["" : 21]> f (a) => (a, b) {{ b = Neg (a) }}""",
}
RUNTIME_DIFFERS = {
    "an older opset": "it reads all functions as operators of the model's opset",
    "an output that is an input": "it refuses them",
}
"""The models of which onnxruntime is no oracle. onnx.reference is theirs."""
SCOPES = {
    "the same names in both branches": f"""{HEADER} {MAIN} {{
        y = If (c) <then_branch = t () => (float[n, 3] o) {{ q = Neg (x) o = Abs (q) }},
                    else_branch = e () => (float[n, 3] o) {{ q = Relu (x) o = Mul (q, q) }}> }}""",
    "a branch with the names of the graph": f"""{HEADER} {MAIN} {{
        q = Neg (x)
        t = If (c) <then_branch = t () => (float[n, 3] o) {{ o = Abs (q) }},
                    else_branch = e () => (float[n, 3] o) {{ o = Relu (q) }}>
        o = Mul (t, t)
        y = Add (o, q) }}""",
    "nested branches": f"""{HEADER} {MAIN} {{
        y = If (c) <then_branch = t () => (float[n, 3] o) {{
            q = Neg (x)
            o = If (c) <then_branch = t () => (float[n, 3] r) {{ z = Add (q, x) r = Mul (z, q) }},
                        else_branch = e () => (float[n, 3] r) {{ r = Neg (q) }}> }},
          else_branch = e () => (float[n, 3] r) {{ z = Sin (x) r = Cos (z) }}> }}""",
}


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("name", [*FUNCTIONS, *SCOPES])
def test_models_with_functions_and_scopes(name: str, condition: bool, tmp_path: Path) -> None:
    model = parse((FUNCTIONS | SCOPES)[name])
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    feeds = {"x": x, "c": np.array(condition)}
    if name in RUNTIME_DIFFERS:
        expected = ReferenceEvaluator(model).run(None, feeds)[0]
    else:
        session = onnxruntime.InferenceSession(model.SerializeToString())
        expected = session.run(None, feeds)[0]
    build(model, tmp_path, "wasm", cache=False)
    package = load(tmp_path)
    actual = package.run({port.name: feeds[port.name] for port in package.inputs})
    package.dispose()
    assert np.allclose(actual["y"], expected, 1e-5, 1e-6)


def test_each_value_has_one_name() -> None:
    main = read_model(parse(SCOPES["a branch with the names of the graph"])).main
    branches = [n.attributes["then_branch"] for n in main.nodes if n.op == "If"]
    values = [o for n in (*main.nodes, *branches[0].nodes) for o in n.outputs]
    assert len(values) == len(set(values))
    assert {"q", "t", "o", "y"} <= {o for n in main.nodes for o in n.outputs}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{ y = Relu(z) }", "node 'y' reads 'z', but no node writes a value of this name"),
        ("{ t = Relu(x) }", "the model returns 'y', but no node writes a value of this name"),
        ("{ y = Relu(x) y = Neg(x) }", "the value 'y' is written twice in one graph, also by 'y'"),
        ("{ x = Relu(x) y = Neg(x) }", "the model has a cycle"),
        ("{ y = local.f (x, x) }", "node 'y' calls 'f' with 2 inputs and 1 outputs; the function"),
        ("{ y = local.g (x) }", "function 'g' returns 'b', but no node writes a value"),
    ],
)
def test_names_without_a_meaning(body: str, message: str) -> None:
    functions = """<domain: "local", opset_import: ["" : 21]> f (a) => (b) { b = Neg (a) }
        <domain: "local", opset_import: ["" : 21]> g (a) => (b) { c = Neg (a) }"""
    with pytest.raises(ModelError, match=message):
        read_model(parse(f"{HEADER} g (float[n, 3] x) => (float[n, 3] y) {body} {functions}"))


@pytest.mark.parametrize("field", ["input", "output"])
def test_inputs_and_outputs_have_names(field: str) -> None:
    model = parse(f"{HEADER} g (float[n, 3] x) => (float[n, 3] y) {{ y = Relu(x) }}")
    getattr(model.graph, field).add()
    with pytest.raises(ModelError, match="an input or an output of the model has no name"):
        read_model(model)


def test_inputs_and_outputs_declared_twice_count_once() -> None:
    model = parse(f"{HEADER} g (float[n, 3] x) => (float[n, 3] y) {{ y = Relu(x) }}")
    model.graph.input.append(model.graph.input[0])
    model.graph.output.append(model.graph.output[0])
    main = read_model(model).main
    assert (main.inputs, main.outputs) == (("x",), ("y",))
