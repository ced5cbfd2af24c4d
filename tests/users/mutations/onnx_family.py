"""Damaged ONNX models, compared with onnxruntime and with `onnx.reference`."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from tests.graph.ops.test_rows import REFERENCE_DIFFERS
from tests.users.mutations.command import build
from tests.users.mutations.family import Mutant, Note
from tests.users.mutations.onnx_bases import Array, draw_base, random_array
from tests.users.mutations.onnx_changes import DATA_FILE, draw_change
from tests.users.mutations.outcome import Outcome, outcome_of_error
from tests.users.mutations.small_floats import round_once
from webmlc.core.machine import Device
from webmlc.frontend.check_nodes import nodes_of
from webmlc.host.load import load

RAW_SHARE = 0.06
"""The share of mutants whose bytes are damaged, too: most of these are refused at once."""
LARGEST_FEED = 1 << 22
"""The most elements of an input. A model with a larger one is only built."""
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}
"""The relative error of an output, by its type; 2e-3 for other floats."""
RANDOM = frozenset({"Bernoulli", "Dropout", "Multinomial"})
"""Operators with random results, beside those called `Random...`."""
LOSES_NANS = {
    "MaxPool": "of a NaN in a window, onnxruntime's vectors and scalars keep different ones: the"
    " result depends on the NaN's place, on the width, and on whether the positions are an output",
}
"""Operators whose NaNs are not compared, and why."""

Values = Mapping[str, Any]


class OnnxFamily:
    """Models of one file, perhaps with weights beside it."""

    def draw(self, rng: random.Random) -> Mutant:
        base, (model, feeds) = draw_base(rng)
        changes = [draw_change(model, rng) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))]
        data = model.SerializeToString(deterministic=True)
        if rng.random() < RAW_SHARE:
            changes.append("change bytes")
            data = _change_bytes(data, rng)
        title = f"{base}: {', '.join(changes)}"
        files = {"model.onnx": data, DATA_FILE: bytes(range(256)) * 32}
        return Mutant(title, "model.onnx", files, feeds)

    def judge(self, mutant: Mutant, folder: Path, device: Device, note: Note) -> Outcome:
        path = mutant.write(folder)
        refusal = build(path, folder / "package", device)
        if refusal is not None and refusal.kind != "refused":
            return refusal
        model = onnx.ModelProto()
        try:
            model.ParseFromString(mutant.files[mutant.main])
            feeds = _feeds(model, mutant.extra)
        except Exception as error:
            return refusal or Outcome("unjudged", f"no inputs: {error}")
        outputs: Values = {}
        if refusal is None:
            try:
                outputs = _run(folder / "package", device, feeds)
            except Exception as error:
                refusal = outcome_of_error(error)
                if refusal.kind != "refused":
                    return refusal
        note("reference")
        expected = _references(path, feeds)
        if refusal is not None:
            by_runtime = "onnxruntime" in expected
            return refusal.with_reference("runs it" if by_runtime else "refuses it")
        if not _is_oracle(model, expected, outputs):
            return Outcome("unjudged")
        compares_nans = not _operators(model) & LOSES_NANS.keys()
        differences = [_difference(outputs, v, compares_nans) for v in expected.values()]
        if None in differences:
            return Outcome("right")
        if _is_sensitive(path, feeds, expected):
            return Outcome("unjudged", "the reference's own results spread")
        return Outcome("wrong", str(differences[0]))


def _change_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2, 8))):
        place = rng.randrange(len(changed) or 1)
        match rng.choice(("flip", "cut", "insert", "delete")):
            case "flip":
                changed[place] ^= 1 << rng.randrange(8)
            case "cut":
                del changed[max(place, len(changed) // 2) :]
            case "insert":
                changed[place:place] = rng.randbytes(rng.choice((1, 4)))
            case _:
                del changed[place : place + rng.choice((1, 4))]
    return bytes(changed)


def _feeds(model: onnx.ModelProto, base: Values) -> dict[str, Array]:
    """Arrays for the inputs: those of the base where they still fit."""
    rng = np.random.default_rng(0)
    constants = {t.name for t in model.graph.initializer}
    feeds: dict[str, Array] = {}
    sizes: dict[str, int] = {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        if info.name in constants:
            continue
        array = base.get(info.name)
        if array is not None and _fits(tensor, array):
            dims = zip(tensor.shape.dim, array.shape, strict=True)
            sizes |= {dim.dim_param: size for dim, size in dims if dim.dim_param}
            feeds[info.name] = array
    for info in model.graph.input:
        if info.name in constants or info.name in feeds:
            continue
        copy = onnx.ValueInfoProto.FromString(info.SerializeToString())
        for dim in copy.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.dim_value = sizes.get(dim.dim_param, 2)
        if np.prod([float(d.dim_value) for d in copy.type.tensor_type.shape.dim]) > LARGEST_FEED:
            raise ValueError(f"{info.name} is too large")
        feeds[info.name] = random_array(copy, rng)
    return feeds


def _fits(tensor: onnx.TypeProto.Tensor, array: Array) -> bool:
    if onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) != array.dtype:
        return False
    dims = tensor.shape.dim
    return len(dims) == array.ndim and all(
        dim.dim_value == size or not dim.HasField("dim_value")
        for dim, size in zip(dims, array.shape, strict=True)
    )


def _run(package: Path, device: Device, feeds: Values) -> Values:
    model = load(package, device=device)
    try:
        outputs = dict(model.run(dict(feeds)))
        for name, elements in model.sequences.items():
            outputs[name] = [outputs[element] for element in elements or ()]
        return outputs
    finally:
        model.dispose()


def _references(path: Path, feeds: Values) -> dict[str, Values]:
    """The results of each reference that runs the model, by its name."""
    results: dict[str, Values] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name, run in (("onnxruntime", _run_onnxruntime), ("onnx", _run_onnx_reference)):
            with suppress(Exception):  # the references raise whatever they meet
                results[name] = run(path, feeds)
    return results


def _run_onnxruntime(path: Path, feeds: Values) -> Values:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, dict(feeds)), strict=True))


def _run_onnx_reference(path: Path, feeds: Values) -> Values:
    evaluator = ReferenceEvaluator(str(path))
    round_once(evaluator)
    return dict(zip(evaluator.output_names, evaluator.run(None, dict(feeds)), strict=True))


def _is_oracle(model: onnx.ModelProto, expected: Mapping[str, Values], outputs: Values) -> bool:
    """True if the references' results are those that a right package has.

    They are not if they are random, or if only `onnx.reference` runs a model with an operator that
    it computes wrongly (`tests/graph/ops/test_rows.py`), or whose results it leaves to numpy's
    types.
    """
    operators = _operators(model)
    if operators & RANDOM or any("Random" in operator for operator in operators):
        return False
    if "onnxruntime" in expected:
        return True
    if "onnx" not in expected or operators & REFERENCE_DIFFERS.keys():
        return False
    pairs = ((outputs.get(name), value) for name, value in expected["onnx"].items())
    return all(getattr(a, "dtype", None) == getattr(b, "dtype", None) for a, b in pairs)


def _operators(model: onnx.ModelProto) -> set[str]:
    """The names of the operators of a model and of its functions."""
    bodies = [f.node for f in model.functions]
    nodes = [*nodes_of(model.graph), *(node for body in bodies for node in body)]
    return {node.op_type for node in nodes}


def _difference(outputs: Values, expected: Values, compares_nans: bool = True) -> str | None:
    """Why results are not right; None if they are. A NaN that is expected need not be one if NaNs
    are not compared.
    """
    for name, value in expected.items():
        if name not in outputs:
            return f"{name} is missing"
        actual = outputs[name]
        if isinstance(value, list):
            if not isinstance(actual, list | tuple) or len(actual) != len(value):
                return f"{name} is {actual!r}, expected {value!r}"
            pairs = list(zip(actual, value, strict=True))
        else:
            pairs = [(actual, value)]
        for a, b in pairs:
            reason = _array_difference(np.asarray(a), np.asarray(b), compares_nans)
            if reason is not None:
                return f"{name}: {reason}"
    return None


def _array_difference(actual: Array, expected: Array, compares_nans: bool) -> str | None:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        types = [f"{a.dtype}{list(a.shape)}" for a in (actual, expected)]
        return f"is {types[0]}, expected {types[1]}"
    if not actual.size:
        return None
    is_float = actual.dtype.name in ("float16", "bfloat16", "float32", "float64")
    if is_float:
        wide, wanted = actual.astype(np.float64), expected.astype(np.float64)
        finite = wanted[np.isfinite(wanted)]
        scale = float(np.abs(finite).max()) if finite.size else 0.0
        relative = TOLERANCE.get(actual.dtype.name, 2e-3)
        close = np.isclose(wide, wanted, rtol=relative, atol=relative * scale, equal_nan=True)
        if not compares_nans:
            close |= np.isnan(wanted)
    else:
        close = np.asarray(actual == expected)
    if close.all():
        return None
    place = np.unravel_index(int(np.argmin(close)), close.shape)
    at = [int(i) for i in place]
    wrong = int((~close).sum())
    return f"{wrong} of {close.size} differ, first at {at}: {actual[place]}, not {expected[place]}"


def _is_sensitive(path: Path, feeds: Values, expected: Mapping[str, Values]) -> bool:
    """True if a reference's results move, too, when its inputs move in the last places."""
    rng = np.random.default_rng(1)
    for scale in (1e-6, 1e-6, -1e-6):
        moved = {
            name: array * (1 + scale * rng.random(array.shape)).astype(array.dtype)
            if array.dtype.kind == "f"
            else array
            for name, array in feeds.items()
        }
        results = _references(path, moved)
        if any(_difference(results.get(n, {}), values) for n, values in expected.items()):
            return True
    return False
