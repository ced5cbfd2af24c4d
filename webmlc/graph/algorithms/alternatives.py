"""List the algorithms of each layer of a module, among which a search chooses.

    alternatives(module, RELAXED)  ->  {"conv 64 of 64 over 56x56, 3x3": ("winograd 4x4", "direct", ...)}

The first algorithm is the choice of the cost models. The answer of a search goes into
`Module.algorithms`, and the passes `use_winograd` and `use_strassen` follow it.
"""  # noqa: E501 (the example)

from __future__ import annotations

from webmlc.core.machine import Cpu
from webmlc.graph.algorithms.strassen.use_strassen import strassen_alternatives
from webmlc.graph.algorithms.winograd.use_winograd import winograd_alternatives
from webmlc.graph.ir import Module


def alternatives(module: Module, machine: Cpu) -> dict[str, tuple[str, ...]]:
    """The names of the algorithms of each layer that has a choice, the default algorithm first.

    needs: layouts chosen, inferred types, as the passes do.
    """
    winograd = winograd_alternatives(module, machine)
    return winograd | strassen_alternatives(module, machine)
