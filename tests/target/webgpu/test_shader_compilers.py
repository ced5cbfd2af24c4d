"""Both shader compilers accept what we emit and refuse what is wrong; a refusal names its place."""

from __future__ import annotations

import numpy as np
import pytest

from tests import shader_compilers
from tests.shader_compilers import compile_shaders, naga, tint
from webmlc.core.dtypes import DType
from webmlc.target.webgpu import emit_shaders
from webmlc.target.webgpu.table import INFINITY, literal

KERNEL = """\
// first: /start
@compute @workgroup_size(1) fn first() {{ let a = 1; }}
// masked: /encoder/Where, /encoder/Softmax
@compute @workgroup_size(1)
fn masked() {{
    let lowest = {lowest};
}}
"""


def test_what_tint_alone_refuses_is_a_failure_with_its_place() -> None:
    text = KERNEL.format(lowest="-3.4028235e+38f")
    assert naga(text) == []
    with pytest.raises(AssertionError) as error:
        compile_shaders(text)
    assert str(error.value) == (
        "Tint refuses a shader, line 6: value cannot be represented as 'f32'\n"
        "  kernel masked, of ONNX node /encoder/Where, /encoder/Softmax\n"
        "        let lowest = -3.4028235e+38f;\n"
        "                      ^"
    )


def test_what_naga_alone_refuses_is_a_failure_with_its_place() -> None:
    text = "requires unrestricted_pointer_parameters;\n" + KERNEL.format(lowest="1.0f")
    assert tint(text) == []
    with pytest.raises(AssertionError, match=r"^naga refuses a shader, line 1: "):
        compile_shaders(text)


def test_every_text_that_is_emitted_is_compiled() -> None:
    with pytest.raises(AssertionError, match="refuses a shader"):
        emit_shaders.Shaders("fn broken() { return 1; }", {})
    text = "@compute @workgroup_size(1) fn unseen_elsewhere() {}"
    before = len(shader_compilers.compiled)
    emit_shaders.Shaders(text, {})
    assert len(shader_compilers.compiled) == before + 1


def _floats32() -> np.ndarray:
    """Every exponent with several mantissas, both signs; subnormals and the extremes."""
    mantissas = [0, 1, 2, 0x2AAAAA, 0x400000, 0x555555, 0x7FFFFE, 0x7FFFFF]
    mantissas += np.random.default_rng(0).integers(0, 1 << 23, 8).tolist()
    exponents = np.arange(255, dtype=np.uint32) << 23
    bits = (exponents[:, None] | np.array(mantissas, np.uint32)).reshape(-1)
    return np.concatenate([bits, bits | np.uint32(1 << 31)]).view(np.float32)


def _floats16() -> np.ndarray:
    """Every finite value."""
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    return values[np.isfinite(values)]


def _in_base_16_or_exact(text: str) -> float:
    """The value of a literal in the compilers' exact arithmetic."""
    digits = text.strip("()").removesuffix("f")
    return float.fromhex(digits) if "x" in digits else float(digits)


@pytest.mark.parametrize(("values", "dtype"), [
    (_floats32(), DType.float32),
    (_floats16(), DType.float16),
])  # fmt: skip
def test_float_literals_are_exact_and_legal(values: np.ndarray, dtype: DType) -> None:
    texts = [literal(float(value), dtype) for value in values]
    exact = np.array([_in_base_16_or_exact(text) for text in texts])  # as doubles
    np.testing.assert_array_equal(exact, values.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(exact), np.signbit(values))
    for start in range(0, len(texts), 8192):
        part = texts[start : start + 8192]
        body = "\n".join(f"    sink = {text};" for text in part)
        compile_shaders(
            "@group(0) @binding(0) var<storage, read_write> sink: f32;\n"
            f"@compute @workgroup_size(1)\nfn literals() {{\n{body}\n}}\n"
        )


@pytest.mark.parametrize("dtype", [DType.float32, DType.float16])
def test_what_is_not_finite_is_made_of_bits(dtype: DType) -> None:
    texts = [literal(value, dtype) for value in (np.inf, -np.inf, np.nan)]
    body = "\n".join(f"    sink = {text};" for text in texts)
    compile_shaders(
        f"{INFINITY}@group(0) @binding(0) var<storage, read_write> sink: f32;\n"
        f"@compute @workgroup_size(1)\nfn literals() {{\n{body}\n}}\n"
    )
