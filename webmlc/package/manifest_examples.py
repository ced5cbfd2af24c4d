"""Choose sizes for the symbols of a package that is tried (`graph.checks.example_sizes`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from webmlc.graph.checks.example_sizes import example_sizes
from webmlc.graph.ir import Requirement
from webmlc.package.manifest import Manifest
from webmlc.package.sizes import from_size


def manifest_examples(
    manifest: Manifest, symbols: Iterable[str], sizes: Mapping[str, int]
) -> dict[str, int]:
    """A size for each of the symbols: its entry in `sizes`, or a size that the manifest allows.

    Raises `InputError` if `sizes` names no symbol.
    """
    requirements = [
        Requirement(r.rule, from_size(r.left), from_size(r.right), r.node)
        for r in manifest.requirements
    ]
    results = [tuple(map(from_size, port.shape)) for port in manifest.outputs]
    return example_sizes(requirements, results, symbols, sizes)
