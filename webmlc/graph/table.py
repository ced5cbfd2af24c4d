"""The operator table: `OPS[domain, name]` is the row of every operator that webmlc compiles.

ONNX's operators are in `ops/`. An operator that only one pass writes is beside that pass, in
`algorithms/`.

>>> OPS["", "Relu"].kind
'elementwise'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType

from webmlc.core.dependencies import OPERATOR_GROUP
from webmlc.core.errors import UserError
from webmlc.graph.algorithms.attention import causal
from webmlc.graph.algorithms.attention import operators as attention
from webmlc.graph.algorithms.strassen import operators as strassen
from webmlc.graph.algorithms.winograd import operators as winograd
from webmlc.graph.ops import (
    axes,
    block_quantised,
    cast,
    control,
    convolution,
    decoder,
    elementwise,
    image,
    index,
    layout,
    linear_algebra,
    normalisation,
    pooling,
    quantise,
    random,
    recurrent,
    reduction,
    regions,
    resize,
    sampling,
    selection,
    sequence,
    shape,
    signal,
    slice,
    sort,
    training,
    view,
)
from webmlc.graph.ops.microsoft import attention as fused_attention
from webmlc.graph.ops.microsoft import fused, group_query, quantised
from webmlc.graph.ops.ml import encode, linear, scores, tree
from webmlc.graph.ops.operator import Operator

MODULES: tuple[ModuleType, ...] = (
    elementwise, cast, linear_algebra, convolution, pooling, axes, reduction, normalisation, view,
    slice, shape, index, sort, sampling, decoder, selection, control,
    sequence, recurrent, resize, image, quantise, encode, linear, scores, tree,
    random, quantised, regions, signal, training,
    layout, block_quantised, winograd, strassen, attention, causal,
    fused, fused_attention, group_query,
)  # fmt: skip
OPS: dict[tuple[str, str], Operator] = {
    (row.domain, row.name): row for module in MODULES for row in module.OPS
}

OWN_DOMAINS = frozenset({"ai.onnx", *(domain for domain, _ in OPS)})
"""The domains of the table's operators. Operators of people's own have other domains."""
_builds: Counter[tuple[str, str]] = Counter()
"""The number of builds that need each row of people's own now."""


@contextmanager
def with_rows(rows: Iterable[Operator]) -> Iterator[None]:
    """Have further rows in the table during a build. Raises `UserError` if another build has other
    rows of these names at the same time.
    """
    added: list[tuple[str, str]] = []
    try:
        for row in rows:
            key = row.domain, row.name
            if OPS.setdefault(key, row) is not row:
                raise UserError(f"the operator {row.domain}.{row.name} is defined twice")
            _builds[key] += 1
            added.append(key)
            if row.kind == "elementwise":
                training.DIFFERENTIABLE[training.full_name(*key)] = row
        yield
    finally:
        for key in added:
            _builds[key] -= 1
            if not _builds[key]:
                OPS.pop(key, None)
                training.DIFFERENTIABLE.pop(training.full_name(*key), None)


@cache
def installed_rows() -> dict[tuple[str, str], Operator]:
    """The rows that installed packages offer. Each entry point names a custom operator."""
    rows = (point.load().row for point in entry_points(group=OPERATOR_GROUP))
    return {(row.domain, row.name): row for row in rows}


def find_row(domain: str, name: str) -> Operator | None:
    """The row of an operator, or `None`. A row of an installed package is added to the table."""
    if (domain, name) not in OPS and (row := installed_rows().get((domain, name))) is not None:
        OPS[domain, name] = row
    return OPS.get((domain, name))
