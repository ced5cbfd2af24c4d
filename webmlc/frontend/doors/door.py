"""A door converts the models of one framework to ONNX models.

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
    """A caller's description of a model's inputs, for a model that does not describe them itself.

    - `inputs`: arrays, tensors or shapes, in a form that the framework's exporter takes.
    - `dynamic_shapes`: the names of symbolic dimensions, by input and axis.
    - `signature`: the part of a file that is exported, if it has several.
    """

    inputs: Any = None
    dynamic_shapes: Any = None
    signature: str | None = None


@dataclass(frozen=True, slots=True)
class Door:
    """The conversion of one framework's models to ONNX models.

    - `framework`: the name of the framework in error messages.
    - `exporter`: the name of the library that exports.
    - `accepts`: whether a source belongs to this framework. Imports nothing.
    - `export`: makes the ONNX model, and may raise errors of the framework.
    """

    framework: str
    exporter: str
    accepts: Callable[[object], bool]
    export: Callable[[Any, Example], ModelProto]


class Refusal(Exception):
    """An exporter's refusal in webmlc's words: the refused operation, its place, and what to do.
    `export_source` adds the model.
    """


def require(framework: str, extra: str, *modules: str) -> None:
    """Raise a `UserError` that names the extra of webmlc, if one of these modules is missing. Note
    the modules as dependencies: the exported model depends on their versions.
    """
    specs = {name: importlib.util.find_spec(name) for name in modules}
    # A folder of this name beside the program has a specification, too, but no origin.
    missing = [name for name, spec in specs.items() if spec is None or spec.origin is None]
    if missing:
        raise UserError(
            f"Models of {framework} need the Python package {missing[0]!r}, which is not "
            f"installed. Install it with: pip install 'webmlc[{extra}]'"
        )
    for name in modules:
        note_library(name)


def is_instance(source: object, module: str, name: str) -> bool:
    """True if a class of `source` has this name, in a module below `module`.

    This replaces `isinstance`, which would need an import of the module.
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
    """Hide the warnings and log messages of a framework and its exporter, including TensorFlow's
    messages at import.
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
    """The inputs of a model as a sequence. A single input becomes a sequence of one."""
    return inputs if isinstance(inputs, tuple | list) else (inputs,)
