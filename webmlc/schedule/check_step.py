"""`WEBMLC_VERIFY`: is the function after a schedule step well formed, and does it compute the same?

In: the functions before and after one primitive. Out: nothing, or an `InternalError` that names the
step. The functions run through the interpreter on random inputs, with symbols at 5. Large functions
are only verified, because the interpreter is slow.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from webmlc.core.errors import InternalError
from webmlc.core.expr import as_int
from webmlc.core.rewrite import evaluate
from webmlc.loops.interp import run as interpret
from webmlc.loops.ir import For, LoopFunction, child_statements
from webmlc.schedule.trace import Step

_SYMBOL = 5
_LARGEST = 50_000  # iterations of the deepest nest


def check_step(before: LoopFunction, after: LoopFunction, step: Step, run: bool) -> None:
    """Verify `after`; with `run`, also compare the results of both functions. Raises
    `InternalError`.
    """
    from webmlc.loops.verify import verify

    verify(after)
    if not run or max(_work(before), _work(after)) > _LARGEST:
        return
    try:
        expected = _outputs(before)
    except InternalError:
        return  # random inputs do not suit it: indices that are data, say
    got = _outputs(after)
    for name, array in expected.items():
        if not np.allclose(array, got[name], rtol=1e-4, atol=1e-5, equal_nan=True):
            raise InternalError(
                f"schedule: step {step} changes output {name!r} of kernel {before.name!r}"
            )


@lru_cache(maxsize=2)
def _outputs(function: LoopFunction) -> dict[str, np.ndarray[Any, Any]]:
    """The results of `function`. Cached: the next step begins from the same function."""
    return random_run(function)


def _work(function: LoopFunction) -> int:
    """The iterations of all loops together, roughly: the product of every nest's extents."""
    largest = 0
    stack = [(function.body, 1)]
    while stack:
        stmt, count = stack.pop()
        if isinstance(stmt, For):
            extent = as_int(stmt.extent)
            count *= _SYMBOL if extent is None else max(extent, 1)
        largest = max(largest, count)
        stack.extend((child, count) for child in child_statements(stmt))
    return largest


def random_run(
    function: LoopFunction, symbols: Mapping[str, int] | None = None, seed: int = 0
) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of `function` on random inputs, equal for equal parameters and seeds."""
    values = {s.name: _SYMBOL for s in function.symbols} if symbols is None else dict(symbols)
    generator = np.random.default_rng(seed)
    arrays = {
        b.name: b.dtype.random(
            generator, tuple(int(evaluate(size, values)) for size in b.shape), below=4
        )
        for b in function.params
    }
    outputs = function.output_params()
    for buffer in outputs:
        arrays[buffer.name] = np.zeros_like(arrays[buffer.name])
    interpret(function, arrays, values)
    return {buffer.name: arrays[buffer.name] for buffer in outputs}
