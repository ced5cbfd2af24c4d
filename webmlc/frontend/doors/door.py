"""A door: how the models of one framework become ONNX models.

A door is thin. It recognises a source without importing its framework, checks that the exporter
is installed, calls it, and carries the names of the source over to the ONNX model.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto

from webmlc.core.dependencies import note_library
from webmlc.core.errors import ModelWarning, UserError


@dataclass(frozen=True, slots=True)
class Example:
    """What a caller says about the inputs of a model that does not say it itself.

    - `inputs`: arrays, tensors or shapes, in a form that the framework's exporter takes.
    - `dynamic_shapes`: the names of symbolic dimensions, by input and axis.
    """

    inputs: Any = None
    dynamic_shapes: Any = None


@dataclass(frozen=True, slots=True)
class Door:
    """How the models of one framework become ONNX models.

    - `framework`: its name in error messages.
    - `exporter`: the name of the library that does the work.
    - `accepts`: whether a source belongs to this framework. Imports nothing.
    - `export`: makes the ONNX model. Errors of the framework may pass through it.
    """

    framework: str
    exporter: str
    accepts: Callable[[object], bool]
    export: Callable[[Any, Example], ModelProto]


class Refusal(Exception):
    """An exporter's refusal in our words: what it refuses, where, and what to do. `export_source`
    says which model it is about.
    """


def require(framework: str, extra: str, *modules: str) -> None:
    """Raise a `UserError` that names the extra of webmlc, if one of these modules is missing. What
    is exported depends on their versions.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"Models of {framework} need the Python package {missing[0]!r}, which is not "
            f"installed. Install it with: pip install 'webmlc[{extra}]'"
        )
    for name in modules:
        note_library(name)


def is_instance(source: object, module: str, name: str) -> bool:
    """True if a class of `source` has this name, in a module below `module`.

    Does what `isinstance` does, and does not import the module.
    """
    return any(
        c.__name__ == name and f"{c.__module__}.".startswith(f"{module}.")
        for c in type(source).__mro__
    )


def is_path(source: object) -> bool:
    """True for the path of a file or folder."""
    return isinstance(source, str | Path)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what a framework and its exporter tell their own developers: warnings and log messages,
    also those of TensorFlow when it is imported.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ModelWarning)
        try:
            yield
        finally:
            logging.disable(disabled)


def as_sequence(inputs: Any) -> Sequence[Any]:
    """The inputs of a model, of which there may be only one."""
    return inputs if isinstance(inputs, tuple | list) else (inputs,)
