"""Warn of nodes that only training needs: a model that holds them was exported in training mode.

In: a normalised module. Out: nothing; a `ModelWarning` names the nodes that drop elements at
random, take the statistics of the batch, or draw random numbers. Their results differ from the
trained model's, or from run to run in other runtimes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from webmlc.core.errors import ModelWarning
from webmlc.graph.ir import Function, Module, Node

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"}
    | {"RandomUniform", "RandomUniformLike"}
)
MOST_NAMED = 3
"""The most nodes of one kind that a warning names."""


def warn_of_training(module: Module) -> None:
    """Warn once for each kind of node that only training needs."""
    nodes: dict[str, list[str]] = {}
    for function in module.functions.values():
        for reason, name in _training_nodes(function):
            nodes.setdefault(reason, []).append(name)
    for reason, names in nodes.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        warnings.warn(
            f"{', '.join(map(repr, names[:MOST_NAMED]))}{more} {reason}: was the model exported "
            "without model.eval()?",
            ModelWarning,
            stacklevel=2,
        )


def _training_nodes(function: Function) -> Iterator[tuple[str, str]]:
    """The effect of each training node, and the node's name, also in functions inside nodes."""
    for node in function.nodes:
        if node.op == "Dropout" and _is_live_dropout(node, function):
            yield "drops elements at random", node.name
        elif node.op == "BatchNormalization" and node.attributes.get("training_mode", 0):
            yield "takes the statistics of the batch", node.name
        elif node.op in RANDOM and not node.domain:
            yield "draws random numbers", node.name
        for value in node.attributes.values():
            if isinstance(value, Function):
                yield from _training_nodes(value)


def _is_live_dropout(node: Node, function: Function) -> bool:
    """True where the third input, training_mode, is not certainly false."""
    constant = function.constants.get(node.input(2))
    return bool(node.input(2)) and (constant is None or bool(constant.reshape(-1)[0]))
