"""Join the constants of all devices, which share the weights of a package.

In: the modules of the devices. Out: each constant by its name.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from webmlc.core.errors import InternalError
from webmlc.graph.ir import Array, Module


def join_constants(modules: Iterable[Module]) -> dict[str, Array]:
    """The constants of all functions of some modules.

    Raises `InternalError` if two different constants have the same name, because the second would
    replace the first.
    """
    constants: dict[str, Array] = {}
    for module in modules:
        for function in module.functions.values():
            for name, array in function.constants.items():
                if not _are_equal(constants.setdefault(name, array), array):
                    raise InternalError(
                        f"package: function {function.name}: another constant has the name of "
                        f"{name}"
                    )
    return constants


def _are_equal(left: Array, right: Array) -> bool:
    """True if two arrays have the same type and bits."""
    if left is right:
        return True
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return np.array_equal(left.reshape(-1).view(np.uint8), right.reshape(-1).view(np.uint8))
