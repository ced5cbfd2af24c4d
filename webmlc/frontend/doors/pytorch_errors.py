"""Explain briefly why torch.onnx refuses a model: the operation, its line, and a workaround.

In: an error of torch.export or torch.onnx, whose text may fill pages. Out: a `Refusal`:

    line 12 of net.py, in forward (x = torch.mode(x)): PyTorch's operator mode has no translation to
    ONNX. Write it with other operations, or compute it outside of the model.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from webmlc.core.errors import WebmlcError
from webmlc.frontend.doors.door import Refusal, is_instance

DECOMPOSITION = (
    "If its matrix is constant, compute the result in __init__ and register it as a buffer. Else "
    "compute it outside of the model."
)
INVERSE = "Use torch.linalg.inv or torch.linalg.solve, or compute it outside of the model."
SORTED = "Use torch.sort or torch.topk, and read the elements of its result."
WAYS_ROUND = {
    "linalg_cholesky_ex": DECOMPOSITION,
    "linalg_qr": DECOMPOSITION,
    "_linalg_svd": DECOMPOSITION,
    "_linalg_eigh": DECOMPOSITION,
    "_linalg_eigvals": DECOMPOSITION,
    "linalg_eig": DECOMPOSITION,
    "linalg_ldl_factor_ex": DECOMPOSITION,
    "linalg_lu_factor_ex": DECOMPOSITION,
    "linalg_lu": DECOMPOSITION,
    "linalg_matrix_exp": DECOMPOSITION,
    "linalg_pinv": INVERSE,
    "linalg_lstsq": INVERSE,
    "linalg_solve_triangular": INVERSE,
    "cholesky_solve": INVERSE,
    "cholesky_inverse": INVERSE,
    "mode": SORTED,
    "cummax": SORTED,
    "cummin": SORTED,
}
"""The advice for an operator without a translation, by its name."""
ELSEWHERE = "Write it with other operations, or compute it outside of the model."
"""The advice for any other operator."""
DATA_DEPENDENT = (
    "The code reads a number that only a run knows. Replace an `if` on it by torch.where, a loop "
    "by operations on whole tensors, and .item(), .tolist() or int() by the tensor itself."
)
NAMES_OF_DATA_ERRORS = re.compile("DataDependent|UnbackedSymInt|Unsupported|TensorAlreadyTracked")
MAX_REASON = 400
"""The most characters of an error that the message repeats: five lines. Chosen by hand."""


@contextmanager
def refusals() -> Iterator[None]:
    """Raise a `Refusal` for any error of the exporter, and hide the graphs that it prints."""
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    except (WebmlcError, Refusal):
        raise
    except Exception as error:
        raise Refusal(_explanation(error)) from error


def _explanation(error: Exception) -> str:
    causes = list(_chain(error))
    for cause in causes:
        node = _translated_node(cause)
        if node is not None:
            name = _operator_name(node.target)
            place = _place_of_node(node)
            way = WAYS_ROUND.get(name, ELSEWHERE)
            if not any(type(c).__name__ == "DispatchError" for c in causes):
                way = f"{type(causes[-1]).__name__}: {_reason(causes[-1])}"
                return f"{place}PyTorch's operator {name} has no translation in this form. {way}"
            return f"{place}PyTorch's operator {name} has no translation to ONNX. {way}"
    cause = causes[-1]
    place = next((text for c in causes if (text := _place_of_error(c))), "")
    reason = _reason(cause)
    if NAMES_OF_DATA_ERRORS.search(type(cause).__name__) or "data-dependent" in reason.lower():
        return f"{place}{DATA_DEPENDENT} ({type(cause).__name__}: {_first_line(reason)})"
    return f"{place}{type(cause).__name__}: {reason}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, then the error that caused it, and so on: the first cause comes last."""
    while True:
        yield error
        context = None if error.__suppress_context__ else error.__context__
        if (cause := error.__cause__ or context) is None:
            return
        error = cause


def _translated_node(error: BaseException) -> Any:
    """The node of the program that torch.onnx was translating; `None` for an error of another
    step. The error does not hold the node, but the frames of its traceback do.
    """
    if type(error).__name__ not in ("ConversionError", "DispatchError"):
        return None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        node = frame.f_locals.get("node")
        if is_instance(node, "torch.fx", "Node"):
            return node
    return None


def _operator_name(target: Any) -> str:
    """The name of an operator without its overload: `median` of `aten.median.dim`."""
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet))


def _place_of_node(node: Any) -> str:
    """The line of code that a node comes from, as the beginning of a message."""
    text = str(node.meta.get("stack_trace") or "")
    entries = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)', text)
    return _place([(path, int(line), name, code) for path, line, name, code in entries])


def _place_of_error(error: BaseException) -> str:
    """The line of a model's code that an error passed through, as the beginning of a message."""
    frames = traceback.extract_tb(error.__traceback__)
    return _place([(f.filename, f.lineno or 0, f.name, f.line or "") for f in frames])


def _place(entries: list[tuple[str, int, str, str]]) -> str:
    """The innermost line of the user's code, as the beginning of a message. `entries` are lines of
    code (file, line, function, text). Lines of PyTorch, of Python and of webmlc are skipped.
    """
    import torch

    aside = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), "<")
    for path, line, function, code in reversed(entries):
        is_python = path.startswith(os.path.dirname(os.__file__)) and "site-packages" not in path
        if not path.startswith(aside) and not is_python:
            shown = os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path
            text = f" ({code.strip()})" if code.strip() else ""
            return f"line {line} of {shown}, in {function}{text}: "
    return ""


def _reason(error: BaseException) -> str:
    """The text of an error without colours, stack traces and links, cut to a few lines."""
    text = re.sub(r"\x1b\[\d+m", "", str(error)).strip()
    text = re.split(r"\n\s*(?:Original traceback|User Stack|Caused by|While executing)", text)[0]
    text = re.sub(r"\s*(?:For more information|The error above occurred)[^\n]*", "", text)
    text = re.sub(r"\s*\n\s*", " ", text.strip())
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}..."


def _first_line(text: str) -> str:
    return text.split(". ")[0].rstrip(".")
