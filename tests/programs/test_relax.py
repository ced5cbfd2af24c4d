# mypy: disable-error-code="type-arg, valid-type, name-defined, no-untyped-def, attr-defined, misc"
# The annotations of kernels are calls, which types have no form for.
"""Modules of kernels and a graph function, as in the course's chapter on whole models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from webmlc import R, T, module, tir
from webmlc.core.errors import UserError
from webmlc.core.machine import Device
from webmlc.programs.ir_module import IRModule
from webmlc.programs.script import ScriptError

n = T.symbol("n")


@module
class Net:
    @T.prim_func
    def linear(
        X: T.Buffer((n, 6), "float32"),
        W: T.Buffer((5, 6), "float32"),
        Z: T.Buffer((n, 5), "float32"),
    ):
        for i, j, k in T.grid(n, 5, 6):
            with T.block("Z"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    Z[vi, vj] = T.float32(0)
                Z[vi, vj] = Z[vi, vj] + X[vi, vk] * W[vj, vk]

    @T.prim_func
    def relu(X: T.Buffer((n, 5), "float32"), Y: T.Buffer((n, 5), "float32")):
        for i, j in T.grid(n, 5):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.max(X[vi, vj], T.float32(0))

    @R.function
    def main(x: R.Tensor((n, 6), "float32"), w: R.Tensor((5, 6), "float32")):
        cls = Net
        with R.dataflow():
            lv = R.call_tir(cls.linear, (x, w), out_sinfo=R.Tensor((n, 5), dtype="float32"))
            out = R.call_tir(cls.relu, (lv,), out_sinfo=R.Tensor((n, 5), dtype="float32"))
            R.output(out)
        return out


def inputs(rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(rows)
    x, w = rng.standard_normal((rows, 6)), rng.standard_normal((5, 6))
    return x.astype(np.float32), w.astype(np.float32)


def scheduled() -> IRModule:
    """The network with a schedule by hand for its product."""
    schedule = tir.Schedule(Net["linear"])
    i, _, k = schedule.get_loops("Z")
    schedule.decompose_reduction("Z", k)
    schedule.parallel(i)
    return Net.with_kernel("linear", schedule.program)


def test_the_interpreter_runs_a_module() -> None:
    x, w = inputs(4)
    (y,) = Net.run(x, w)
    np.testing.assert_allclose(y, np.maximum(x @ w.T, 0), rtol=1e-5, atol=1e-6)
    assert "call_kernel" in Net.script() and "def relu" in str(Net)


@pytest.mark.parametrize("target", ["wasm", "webgpu"])
def test_a_module_is_a_package_of_any_size(target: Device) -> None:
    compiled = Net.build(target)
    for rows in (1, 7):
        x, w = inputs(rows)
        (y,) = compiled(x, w)
        np.testing.assert_allclose(y, np.maximum(x @ w.T, 0), rtol=1e-4, atol=1e-5)


def test_a_kernel_of_a_module_may_have_a_schedule() -> None:
    x, w = inputs(3)
    (y,) = scheduled().build("wasm")(x, w)
    np.testing.assert_allclose(y, np.maximum(x @ w.T, 0), rtol=1e-5, atol=1e-6)


def test_errors_underline_their_place() -> None:
    with pytest.raises(ScriptError, match=r"(?s)no kernel of the module.*\^\^\^"):

        @module
        class Wrong:
            double = Net["relu"]

            @R.function
            def main(x: R.Tensor((n, 5))):
                y = R.call_tir(half, (x,), R.Tensor((n, 5)))  # noqa: F821
                return y  # noqa: RET504

    with pytest.raises(ScriptError, match=r"relu takes float32\[n, 5\] for X, not float32\[n, 6\]"):

        @module
        class Other:
            relu = Net["relu"]

            @R.function
            def main(x: R.Tensor((n, 6))):
                y = R.call_tir(relu, (x,), R.Tensor((n, 6)))  # noqa: F821
                return y  # noqa: RET504

    with pytest.raises(UserError, match="has no graph function"):
        IRModule({"relu": Net["relu"]}).run()
    with pytest.raises(UserError, match="no kernel 'gelu'"):
        Net["gelu"]
