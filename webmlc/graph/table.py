"""The operator table: `OPS[domain, name]` is the row of every operator that webmlc compiles.

ONNX's operators are in `ops/`. An operator that only one pass writes is beside that pass, in
`algorithms/`.

>>> OPS["", "Relu"].kind
'elementwise'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from webmlc.core.dependencies import OPERATOR_GROUP, FileState, loaded_files, note_file
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
    text,
    training,
    view,
)
from webmlc.graph.ops.microsoft import (
    arithmetic,
    experts,
    extensions,
    few_bits,
    fused,
    gates,
    group_query,
    linear_attention,
    longformer,
    ordered,
    packed,
    positions,
    quantised,
    searches,
    tokens,
)
from webmlc.graph.ops.microsoft import attention as fused_attention
from webmlc.graph.ops.microsoft import image as feature_maps
from webmlc.graph.ops.ml import encode, linear, scores, tree
from webmlc.graph.ops.operator import Operator

MODULES: tuple[ModuleType, ...] = (
    elementwise, cast, linear_algebra, convolution, pooling, axes, reduction, normalisation, view,
    slice, shape, index, sort, sampling, decoder, selection, control,
    sequence, recurrent, resize, image, quantise, encode, linear, scores, tree,
    random, quantised, regions, signal, text, training,
    layout, block_quantised, winograd, strassen, attention, causal,
    fused, fused_attention, group_query, feature_maps, arithmetic, gates,
    packed, positions, experts, linear_attention, tokens, searches,
    few_bits, ordered, extensions, longformer,
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
    """Have further rows in the table during a build, in place of rows of installed packages. Raises
    `UserError` if another build has other rows of these names at the same time.
    """
    added: list[tuple[str, str]] = []
    try:
        for row in rows:
            key = row.domain, row.name
            if _builds[key] and OPS[key] is not row:
                raise UserError(f"the operator {row.domain}.{row.name} is defined twice")
            _builds[key] += 1
            added.append(key)
            _add(row)
        yield
    finally:
        for key in added:
            _builds[key] -= 1
            if not _builds[key]:
                OPS.pop(key, None)
                training.DIFFERENTIABLE.pop(training.full_name(*key), None)


def _add(row: Operator) -> None:
    key = row.domain, row.name
    OPS[key] = row
    if row.kind == "elementwise":
        training.DIFFERENTIABLE[training.full_name(*key)] = row


@dataclass(frozen=True, slots=True)
class Installed:
    """A row that an installed package offers, and the files of Python that define it, with their
    states when they were loaded.
    """

    row: Operator
    files: Mapping[Path, FileState]


@cache
def installed_rows() -> Mapping[tuple[str, str], Installed]:
    """The rows that installed packages offer. Each entry point names a custom operator. Raises
    `UserError` for an entry point that cannot be loaded, or for two packages with one operator.
    """
    rows: dict[tuple[str, str], Installed] = {}
    for point in entry_points(group=OPERATOR_GROUP):
        package = "" if point.dist is None else f"{point.dist.name} {point.dist.version}"
        try:
            row = point.load().row
        except Exception as error:
            raise UserError(
                f"the operator {point.value} of the installed package {package} cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error
        key = row.domain, row.name
        if (other := rows.get(key)) is not None:
            raise UserError(
                f"the operator {row.domain}.{row.name} is offered by two installed packages, "
                f"{_origin(other.row)} and {package}: remove one of them"
            )
        files = {path: FileState.of(path) for path in loaded_files(point.module)}
        rows[key] = Installed(replace(row, custom=replace(row.custom, origin=package)), files)
    return rows


def has_custom_rows() -> bool:
    """True if people have defined an operator, for a build now or in an installed package."""
    return bool(installed_rows()) or any(row.custom is not None for row in OPS.values())


def _origin(row: Operator) -> str:
    return "" if row.custom is None else row.custom.origin


def find_row(domain: str, name: str) -> Operator | None:
    """The row of an operator, or `None`. A row of an installed package is added to the table, and
    the files that define it are noted.
    """
    key = domain, name
    if domain not in OWN_DOMAINS and not _builds[key] and key in installed_rows():
        installed = installed_rows()[key]
        for path, state in installed.files.items():
            note_file(path, state)
        _add(installed.row)
    return OPS.get(key)
