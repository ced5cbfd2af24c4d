"""Constants that only sums read have no subnormal numbers. Other constants keep them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.graph.graphs import module
from webmlc.graph.layout.choose_layouts import choose_layouts
from webmlc.graph.simplify.flush_subnormals import flush_subnormals

TINY = float(np.finfo(np.float32).tiny)  # the least normal number
BELOW = TINY / 2


def constants(text: str) -> dict[str, NDArray[np.float32]]:
    return dict(flush_subnormals(choose_layouts(module(text))).main.constants)


def test_weights_and_the_addends_of_their_products_are_flushed() -> None:
    values = constants(f"""g (float[1,1,2,2] x) => (float[1,2,2,2] y)
        <float[2,1,1,1] w = {{{BELOW}, {TINY}}}, float[2] b = {{-{BELOW}, -{TINY}}}> {{
            y = Conv(x, w, b)
        }}""")
    assert values["b"].tolist() == [0, -TINY]
    assert values["y.packed"].reshape(-1)[:2].tolist() == [0, TINY]


def test_factors_and_outputs_keep_subnormals() -> None:
    """The product of a subnormal and a large number may be large."""
    values = constants(f"""g (float[2] x) => (float[2] y, float[2] z, float[2] c)
        <float[2] a = {{{BELOW}, 1}}, float[2] b = {{{BELOW}, 2}}, float[2] c = {{{BELOW}, 3}}> {{
            y = Mul(x, a)
            s = Add(x, b)
            d = Add(s, c)
            z = Mul(d, b)
        }}""")
    assert [values[name][0] for name in "abc"] == [BELOW] * 3


WEIGHTS = f"{{{TINY}, {BELOW}, -{BELOW}, -{TINY}}}"
FLUSHED = [TINY, 0, 0, -TINY]


def test_weights_of_matrices_and_of_single_channels_are_flushed() -> None:
    matrix = constants(f"""g (float[3,2] x) => (float[3,2] y) <float[2,2] w = {WEIGHTS}> {{
            y = MatMul(x, w)
        }}""")
    assert matrix["y.packed"][0, :, :2].reshape(-1).tolist() == FLUSHED
    depthwise = constants(f"""g (float[1,2,1,4] x) => (float[1,2,1,3] y)
        <float[2,1,1,2] w = {WEIGHTS}> {{
            y = Conv <group = 2> (x, w)
        }}""")
    assert depthwise["y.packed"].transpose(2, 0, 1).reshape(-1).tolist() == FLUSHED


def test_halves_keep_their_subnormals() -> None:
    """Subnormal halves are normal numbers in float32. The text holds the bits of 2^-20 and of 1."""
    values = constants("""g (float16[3,2] x) => (float16[3,2] y) {
            b = Constant <value = float16[2] {16, 15360}> ()
            y = Add(x, b)
        }""")
    assert values["b"].tolist() == [2**-20, 1]
