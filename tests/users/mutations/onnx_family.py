"""Damaged ONNX models, compared with onnxruntime and with `onnx.reference`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from tests.users.mutations.command import build
from tests.users.mutations.family import Mutant, Note
from tests.users.mutations.onnx_bases import Array, draw_base, random_array
from tests.users.mutations.onnx_changes import DATA_FILE, draw_change
from tests.users.mutations.onnx_references import Numbers, Values, explicit_results, references_of
from tests.users.mutations.onnx_writings import OUTSIDE_FILE, move_outside
from tests.users.mutations.outcome import Outcome, outcome_of_error
from webmlc.core.machine import Device
from webmlc.frontend.protos import all_nodes
from webmlc.graph.table import OPS
from webmlc.host.load import load

RAW_SHARE = 0.06
"""The share of mutants whose bytes are damaged, too: most of these are refused at once."""
OUTSIDE_SHARE = 0.08
"""The share of mutants whose constants lie in a file beside the model."""
LARGEST_FEED = 1 << 22
"""The most elements of an input. A model with a larger one is only built."""
TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}
"""The relative error of an output, by its type; 2e-3 for other floats."""
ROUNDING = frozenset({"DynamicQuantizeLinear", "QuantizeLinear", "Resize", "Upsample"}) | {
    name for domain, name in OPS if name.startswith("QLinear")
}
"""Operators that round or cut floats to integers. The floats may be halves or integers but for
rounding.
"""
ROUNDED_SHARE = 0.05
"""The largest share of an output of such a model that may be the next integer."""
EXTREME = 1e29
"""Numbers as large as this, and their reciprocals, overflow when they are scaled: mutations write
1e30 and 1e-30.
"""
RANDOM = frozenset({"Bernoulli", "Multinomial"})
"""Operators with random results, beside `Random...` and `Dropout`."""


class OnnxFamily:
    """Models of one file, perhaps with weights beside it."""

    def draw(self, rng: random.Random) -> Mutant:
        base, (model, feeds) = draw_base(rng)
        changes = [draw_change(model, rng) for _ in range(rng.choice((1, 1, 1, 2, 2, 3)))]
        outside = move_outside(model, rng) if rng.random() < OUTSIDE_SHARE else b""
        data = model.SerializeToString(deterministic=True)
        if rng.random() < RAW_SHARE:
            changes.append("change bytes")
            data = _change_bytes(data, rng)
        files = {"model.onnx": data, DATA_FILE: bytes(range(256)) * 32}
        if outside:
            changes.append("move outside")
            files[OUTSIDE_FILE] = outside
        title = f"{base}: {', '.join(changes)}"
        return Mutant(title, "model.onnx", files, feeds)

    def run_reference(self, mutant: Mutant, folder: Path) -> None:
        model = onnx.ModelProto.FromString(mutant.files[mutant.main])
        references_of(mutant.write(folder), _feeds(model, mutant.extra))

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
        references = references_of(path, feeds)
        if refusal is not None:
            return refusal.with_reference("runs it" if references.runs else "refuses it")
        if _is_random(model):
            return Outcome("unjudged", "an operator draws random numbers")
        oracles = references.oracles(_operators(model), outputs, _numbers(model, folder))
        if not oracles:
            return Outcome("unjudged", references.reasons or "onnx.reference computes it wrongly")
        outputs = _without_tails(model, outputs, oracles)
        is_rounded = bool(_operators(model) & ROUNDING)
        differences = [_difference(outputs, oracle, is_rounded) for oracle in oracles.values()]
        if None in differences:
            return Outcome("right")
        explicit = explicit_results(path, feeds)
        if explicit is not None and _difference(outputs, explicit) is None:
            return Outcome("right")
        if _is_sensitive(path, feeds, oracles):
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


def _without_tails(
    model: onnx.ModelProto, outputs: Values, oracles: Mapping[str, Values]
) -> Values:
    """The outputs with zeros where onnxruntime has zeros in a cache of GroupQueryAttention: these
    are behind the end of a row, where the cache has no meaning.
    """
    caches = [
        name
        for node in model.graph.node
        if node.op_type == "GroupQueryAttention"
        for name in node.output[1:3]
    ]
    result = dict(outputs)
    for name in caches:
        for oracle in oracles.values():
            cache, array = oracle.get(name), outputs.get(name)
            if isinstance(array, np.ndarray) and np.shape(cache) == array.shape:
                result[name] = np.where(np.asarray(cache) == 0, np.zeros_like(array), array)
    return result


def _is_random(model: onnx.ModelProto) -> bool:
    """True if a node may draw random numbers. Dropout without an input that says so does not."""
    nodes = [*all_nodes(model.graph.node), *(node for f in model.functions for node in f.node)]
    return any(
        node.op_type in RANDOM
        or "Random" in node.op_type
        or (node.op_type == "Dropout" and len(node.input) > 2)
        for node in nodes
    )


def _operators(model: onnx.ModelProto) -> set[str]:
    """The names of the operators of a model and of its functions."""
    bodies = [f.node for f in model.functions]
    nodes = [*all_nodes(model.graph.node), *(node for body in bodies for node in body)]
    return {node.op_type for node in nodes}


def _numbers(model: onnx.ModelProto, folder: Path) -> Numbers:
    """What the floats in constants and attributes of a model are. A constant of one element may be
    a scale, which must not be 0. A constant that onnx cannot read counts as extreme.
    """
    attributes = [a for node in all_nodes(model.graph.node) for a in node.attribute]
    arrays = [np.asarray(a.floats) for a in attributes]
    arrays += [np.asarray([a.f]) for a in attributes if a.f or a.name == "value_float"]
    for tensor in (*model.graph.initializer, *(a.t for a in attributes if a.HasField("t"))):
        try:
            arrays.append(onnx.numpy_helper.to_array(tensor, str(folder)))
        except Exception:  # such as the data of a file that is longer than the tensor
            arrays.append(np.array([np.finfo(np.float64).max]))
    floats = [np.abs(array) for array in arrays if array.dtype.kind == "f" and array.size]
    if not all(np.isfinite(array).all() for array in floats):
        return "not finite"
    is_extreme = any(
        (array > EXTREME).any()
        or ((array > 0) & (array < 1 / EXTREME)).any()
        or (array.size == 1 and not array.any())
        for array in floats
    )
    return "extreme" if is_extreme else "ordinary"


def _difference(outputs: Values, expected: Values, is_rounded: bool = False) -> str | None:
    """Why results are not right; None if they are."""
    for name, value in expected.items():
        if name not in outputs:
            return f"{name} is missing"
        actual = outputs[name]
        if isinstance(value, list):
            # A sequence of run-time length is one array: it stacks the elements.
            if not isinstance(actual, list | tuple | np.ndarray) or len(actual) != len(value):
                return f"{name} is {actual!r}, expected {value!r}"
            pairs = list(zip(actual, value, strict=True))
        else:
            pairs = [(actual, value)]
        for a, b in pairs:
            reason = _array_difference(np.asarray(a), np.asarray(b), is_rounded)
            if reason is not None:
                return f"{name}: {reason}"
    return None


def _array_difference(actual: Array, expected: Array, is_rounded: bool) -> str | None:
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
    else:
        close = np.asarray(actual == expected)
        if is_rounded and (~close).mean() <= ROUNDED_SHARE and actual.dtype.kind in "iu":
            close = np.abs(actual.astype(np.int64) - expected.astype(np.int64)) <= 1
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
        results = references_of(path, moved).results
        if any(_difference(results.get(n, {}), values) for n, values in expected.items()):
            return True
    return False
