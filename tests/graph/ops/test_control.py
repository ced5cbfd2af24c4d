"""Control flow and containers that are decided at build time, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from webmlc.core.errors import UnsupportedError
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.evaluate import evaluate_module
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.ir import Array, Module
from webmlc.graph.simplify.constants import fold_constants
from webmlc.graph.simplify.simplify_graph import simplify_graph

RNG = np.random.default_rng(0)


def parse(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text)


def optimise(model: onnx.ModelProto) -> Module:
    return simplify_graph(fold_constants(infer_shapes(normalise(read_model(model)))))


def check(text: str, **feeds: Array) -> Module:
    """Check that the graph computes the same as onnxruntime, and return it."""
    model = parse(text)
    module = optimise(model)
    main = module.main
    actual = evaluate_module(module, feeds)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for info, want in zip(model.graph.output, expected, strict=True):
        if info.name in main.sequences:
            parts = main.sequences[info.name]
            assert parts is not None and len(parts) == len(want)
            for part, element in zip(parts, want, strict=True):
                np.testing.assert_allclose(actual[part], element, rtol=1e-6)
        else:
            np.testing.assert_allclose(actual[info.name], want, rtol=1e-6)
    return module


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def test_a_sequence_is_built_and_read() -> None:
    module = check(
        """g (float[2, 3] x, float[2, 3] y) =>
            (float[2, a] z, float[2, 3] first, seq(float[2, 3]) s) {
            one = Constant<value_int = 1>()
            minus = Constant<value_int = -1>()
            pair = SequenceConstruct(x, y)
            swapped = SequenceInsert(pair, y, minus)
            s = SequenceErase(swapped, one)
            z = ConcatFromSequence<axis = -1>(s)
            first = SequenceAt(s, minus)
        }""",
        x=normal(2, 3), y=normal(2, 3),
    )  # fmt: skip
    assert module.main.sequences == {"s": ("s/0", "s/1")}
    assert {node.op for node in module.main.nodes} == {"Concat", "Identity"}


def test_a_tensor_is_split_mapped_and_stacked() -> None:
    check(
        """g (float[5, 4] x, float[4] y) => (float[a, b, c] z, int64 n) {
            two = Constant<value_int = 2>()
            parts = SplitToSequence<axis = 1>(x, two)
            mapped = SequenceMap(parts, two) <
                body = b (float[5, 2] v, int64 k) => (float[5, 2] w) {
                    f = Cast<to = 1>(k)
                    w = Mul(v, f)
                }
            >
            n = SequenceLength(mapped)
            z = ConcatFromSequence<axis = 1, new_axis = 1>(mapped)
        }""",
        x=normal(5, 4), y=normal(4),
    )  # fmt: skip


def test_an_optional_is_the_value_that_it_holds() -> None:
    module = check(
        """g (float[3] x) => (float[3] y, bool b) {
            o = Optional(x)
            b = OptionalHasElement(o)
            v = OptionalGetElement(o)
            y = If(b) <
                then_branch = t () => (float[3] p) { p = Relu(v) },
                else_branch = e () => (float[3] q) { q = Neg(x) }
            >
        }""",
        x=normal(3),
    )
    assert [node.op for node in module.main.nodes] == ["Relu", "Identity"]


LOOP = """g (float[2] x) => (float[2] y, float[a, 2] z) {
    count = Constant<value_int = 3>()
    y, z = Loop(count, , x) <
        body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] s) {
            d = Identity(c)
            f = Cast<to = 1>(i)
            g = Add(f, x)
            w = Mul(v, g)
            s = Neg(w)
        }
    >
}"""


def test_a_short_loop_is_unrolled() -> None:
    module = check(LOOP, x=normal(2))
    assert [node.op for node in module.main.nodes].count("Mul") == 3


@pytest.mark.parametrize("condition", ["d = Identity(c)", "d = Less(i, limit)"])
@pytest.mark.parametrize("count", ["count", ""])
def test_a_loop_that_never_starts_scans_nothing(condition: str, count: str) -> None:
    """Also test a loop that only its condition ends."""
    check(
        """g (float[2] x) => (float[2] y, float[a, 2] z) {
            count = Constant<value_int = 300>()
            limit = Constant<value_int = 200>()
            zero = Constant<value_int = 0>()
            never = Cast<to = 9>(zero)
            y, z = Loop(COUNT, never, x) <
                body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w, float[2] s) {
                    CONDITION
                    w = Mul(v, x)
                    s = Neg(w)
                }
            >
        }""".replace("COUNT", count).replace("CONDITION", condition),
        x=normal(2),
    )


def test_a_loop_carries_a_sequence() -> None:
    check(
        """g (float[2] x) => (float[a] y) {
            count = Constant<value_int = 4>()
            none = SequenceEmpty()
            s = Loop(count, , none) <
                body = b (int64 i, bool c, seq(float[a]) v) => (bool d, seq(float[a]) w) {
                    d = Identity(c)
                    f = Cast<to = 1>(i)
                    g = Mul(f, x)
                    w = SequenceInsert(v, g)
                }
            >
            y = ConcatFromSequence<axis = 0>(s)
        }""",
        x=normal(2),
    )


def test_a_scan_has_axes_and_directions() -> None:
    check(
        """g (float[2] h, float[2, 4] x, float[4, 2] y) => (float[2] k, float[2, 4] z) {
            k, z = Scan<num_scan_inputs = 2, scan_input_axes = [1, 0],
                scan_input_directions = [1, 0], scan_output_axes = [1],
                scan_output_directions = [1],
                body = b (float[2] s, float[2] p, float[2] q) => (float[2] t, float[2] o) {
                    m = Mul(p, q)
                    t = Add(s, m)
                    o = Sub(t, p)
                }
            >(h, x, y)
        }""",
        h=normal(2), x=normal(2, 4), y=normal(4, 2),
    )  # fmt: skip


def test_values_that_are_not_tensors_are_refused_with_a_reason() -> None:
    model = parse(
        """g (float[2] t, optional(float[2]) s) => (float[2] y) {
            y = OptionalGetElement(s)
        }"""
    )
    with pytest.raises(UnsupportedError) as error:
        read_model(model)
    assert "input (node 's'): it is an optional that may be empty at run time" in str(error.value)


@pytest.mark.parametrize("name", ["step", "going", "scores", "best", "taken", "i", "z/ArgMax"])
def test_a_loop_of_an_expansion_reads_values_of_the_model(name: str) -> None:
    """The names in the model do not matter."""
    centres = np.arange(6, dtype=np.float32)[:, None] * 0.6
    check(
        """g (float[1, 6, 4] BOXES, float[1, 1, 6] x) => (int64[a, 3] z) {
            count = Constant<value_int = 4>()
            overlap = Constant<value_float = 0.2>()
            z = NonMaxSuppression(BOXES, x, count, overlap)
        }""".replace("BOXES", f'"{name}"'),
        **{name: np.hstack([centres, centres, centres + 1, centres + 1])[None]},
        x=RNG.random((1, 1, 6)).astype(np.float32),
    )


@pytest.mark.parametrize("name", ["y/step", "y/condition", "y/body", "y/Gather", "y/body/step"])
def test_the_body_of_a_scan_reads_values_of_the_model(name: str) -> None:
    check(
        """g (float[3, 2] SLICES, float[2] x) => (float[2] y) {
            y = Scan<num_scan_inputs = 1, body = b (float[2] v, float[2] w) => (float[2] u) {
                t = Mul(v, x)
                u = Add(t, w)
            }>(x, SLICES)
        }""".replace("SLICES", f'"{name}"'),
        **{name: normal(3, 2)}, x=normal(2),
    )  # fmt: skip
