"""Read a model as a graph module. Only this stage imports `onnx`.

In: a path or an `onnx.ModelProto`, of opset 1 to 28. Out: a `Module`. The function `main` of the
module has the nodes of the model in topological order. Initialisers and `Constant` nodes become
constants, model-local functions are inlined, and sub-graphs become attributes of type `Function`.
GGUF files are read by `gguf/read_gguf.py`; `doors/` exports models of other frameworks.

    >>> read_model("squeezenet.onnx").main.inputs        # doctest: +SKIP
    ('data',)

Every defect of the file raises a `ModelError` of one clear sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    shape_inference,
    version_converter,
)

from webmlc.core.dependencies import note_file
from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError, ModelError, Unsupported, UnsupportedError, UserError
from webmlc.core.expr import Const, Expr, Var
from webmlc.core.package_files import model_name
from webmlc.core.rewrite import variables
from webmlc.core.symbol_names import symbol_name, symbol_sizes
from webmlc.frontend.bind_constants import Constants, bind_constants
from webmlc.frontend.check_nodes import check_nodes
from webmlc.frontend.check_parsed import check_dense, check_expansion, check_texts, nesting_error
from webmlc.frontend.doors.export_source import export_source
from webmlc.frontend.expand_functions import expand_functions
from webmlc.frontend.external_data import load_external_data
from webmlc.frontend.file_kinds import is_kind
from webmlc.frontend.gguf.read_gguf import read_gguf
from webmlc.frontend.number_texts import number_texts
from webmlc.frontend.protos import dtype_of, kept_version, name_of, plain_domain, versions_of
from webmlc.frontend.resolve_names import resolve_names
from webmlc.frontend.sort_nodes import sort_nodes
from webmlc.graph.ir import Array, Attribute, Function, Module, Node, TensorType
from webmlc.graph.ops.subgraphs import rename_captures

OLDEST_OPSET, NEWEST_OPSET = 1, 28
"""The range of opsets that can be read. The `onnx` package in use defines the newest opset."""
NUMPY_BROADCASTING = 7
"""The first opset whose operators broadcast as numpy does. Older models are converted to it.

From ONNX's change log.
"""

LARGEST_DIM = (1 << 31) - 1
"""The largest size of a dimension: kernels count in signed 32-bit integers."""

Source = str | Path | ModelProto | Module | object
"""The path of a model, or a model in memory: of ONNX, or of a framework with a door."""


def read_model(
    source: Source,
    constants: Constants | None = None,
    context: int | None = None,
    dims: Mapping[str, int] | None = None,
) -> Module:
    """Read, check and convert a model. The inputs in `constants` become constants, and the symbolic
    dimensions in `dims` become numbers. `context` limits the tokens of a model in a GGUF file.

    Raises `ModelError` if the file cannot be used, and `InputError` if a constant cannot be used,
    or if a name in `dims` is no dimension.
    """
    source = export_source(source)
    is_gguf = is_kind(source, ".gguf")
    if context is not None and not is_gguf:
        raise InputError("a context can be limited for models in GGUF files only")
    if constants and (is_gguf or isinstance(source, Module)):
        raise InputError(f"no input of this model can be a constant: {next(iter(constants))!r}")
    if dims and (is_gguf or isinstance(source, Module)):
        raise InputError(f"no size of this model can be fixed: {next(iter(dims))!r}")
    if isinstance(source, Module):
        return source
    if is_gguf and isinstance(source, str | Path):
        return read_gguf(source, context=context)
    if isinstance(source, ModelProto):
        model, folder, stem = source, None, source.graph.name or "model"
    else:
        path = Path(source)
        model, folder, stem = _parse(path), path.parent, model_name(path)
    _check_opsets(model)
    check_expansion(model)
    model = resolve_names(sort_nodes(load_external_data(model, folder)))
    check_nodes(model)
    arrays, sizes = bind_constants(model.graph, constants or {})
    _check_inputs(model.graph, arrays)
    model = expand_functions(_modernise(model))
    opsets = versions_of(model.opset_import)
    opsets.pop("webmlc", None)  # only our own frontends write operators of this domain
    main = _fixed(model.graph, arrays, sizes, dims or {})
    return number_texts(Module(stem, {"main": main}, opsets=opsets), model.graph)


def _fixed(
    graph: GraphProto,
    arrays: Mapping[str, Array],
    sizes_of_arrays: Mapping[str, int],
    dims: Mapping[str, int],
) -> Function:
    """Convert the main graph. The inputs in `arrays` are constants, and dimensions are numbers if
    an array or `dims` has their sizes.

    Raises `InputError` if a name in `dims` is no dimension of an input, or if its size differs from
    the size in an array.
    """
    for name, size in dims.items():
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= LARGEST_DIM:
            raise InputError(
                f"dimension {name!r} is {size!r}, expected a whole number from 0 to {LARGEST_DIM}"
            )
        if sizes_of_arrays.get(name, size) != size:
            raise InputError(
                f"dimension {name!r} is {size}, but {sizes_of_arrays[name]} in a constant"
            )
    symbols = Symbols({**dims, **sizes_of_arrays})
    main = _with_sequences(_Reader(symbols).function(graph, "main", arrays), graph)
    named = {v.name for type_ in main.types.values() for d in type_.shape for v in variables(d)}
    symbol_sizes({n: s for n, s in dims.items() if n not in symbols.fixed}, named)
    return main


def _parse(path: Path) -> ModelProto:
    data = path.read_bytes()
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        if "MaxDepth" in str(error):
            raise nesting_error(str(path)) from None
        raise ModelError(f"{path}: not an ONNX model, or a truncated one ({error})") from None
    if not model.HasField("graph"):
        raise ModelError(f"{path}: not an ONNX model (it has no graph)")
    check_texts(model)
    return model


def _modernise(model: ModelProto) -> ModelProto:
    """Convert a model older than numpy's broadcasting, with ONNX's converter."""
    if versions_of(model.opset_import).get("", NUMPY_BROADCASTING) >= NUMPY_BROADCASTING:
        return model
    try:
        return version_converter.convert_version(_align_slopes(model), NUMPY_BROADCASTING)
    except (
        RuntimeError,
        ValueError,
        version_converter.ConvertError,
        shape_inference.InferenceError,
    ) as error:
        message = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"ONNX's version converter cannot modernise the model: {message}"
        ) from None


def _align_slopes(model: ModelProto) -> ModelProto:
    """Align the slopes of every PRelu that has one slope per channel with the second axis.

    ONNX's converter leaves the slopes to numpy's broadcasting, which would align them with the last
    axis. The result is the model itself if it has no PRelu, else a copy.
    """
    if all(node.op_type != "PRelu" for node in model.graph.node):
        return model
    aligned = ModelProto()
    aligned.CopyFrom(model)
    inferred = shape_inference.infer_shapes(model).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    ranks = {v.name: len(v.type.tensor_type.shape.dim) for v in values}
    ranks |= {tensor.name: len(tensor.dims) for tensor in inferred.initializer}
    nodes = aligned.graph.node
    for position, node in reversed(list(enumerate(nodes))):
        if node.op_type == "PRelu" and not node.domain:
            data, slope = node.input
            axes = range(1, ranks.get(data, 0) - 1)
            if ranks.get(slope) == 1 and axes:
                node.input[1] = f"{node.output[0]}.slope"
                nodes.insert(
                    position, helper.make_node("Unsqueeze", [slope], [node.input[1]], axes=axes)
                )
    return aligned


def _check_opsets(model: ModelProto) -> None:
    versions = [versions_of(f.opset_import).get("") for f in (model, *model.functions)]
    for version in versions:
        if version is not None and not OLDEST_OPSET <= version <= NEWEST_OPSET:
            raise ModelError(
                f"the model's opset is {version}; webmlc reads {OLDEST_OPSET} to {NEWEST_OPSET}: "
                "convert it with onnx.version_converter"
            )
    if versions[0] is None and any(not plain_domain(n.domain) for n in model.graph.node):
        raise ModelError("the model uses ONNX operators but does not declare their opset")


def _check_inputs(graph: GraphProto, constants: Mapping[str, Array]) -> None:
    """Raise one `UnsupportedError` for all inputs that are not tensors of numbers of known rank."""
    defaults = {tensor.name for tensor in graph.initializer}
    defaults |= {sparse.values.name for sparse in graph.sparse_initializer}
    reasons = {
        "optional_type": "an optional that may be empty at run time; leave the input out, or give"
        " the model a tensor",
        "map_type": "a map; give the model tensors",
        "sparse_tensor_type": "a sparse tensor; give the model a dense one",
    }
    unsupported = []
    for info in graph.input:
        reason = reasons.get(info.type.WhichOneof("value") or "")
        if info.name not in defaults | constants.keys() and _has_no_rank(info):
            reason = "of unknown rank; declare its shape, with a name for each size that varies"
        if is_sequence(info) and _has_no_rank(_element_of(info)):
            reason = "a sequence of tensors of unknown rank; declare the shape of its elements"
        if reason is not None:
            unsupported.append(Unsupported(info.name, "input", f"it is {reason}"))
    if unsupported:
        raise UnsupportedError(tuple(unsupported))


def _has_no_rank(info: ValueInfoProto) -> bool:
    return info.type.HasField("tensor_type") and not info.type.tensor_type.HasField("shape")


class Symbols:
    """The symbols of one model: unique identifiers for ONNX's `dim_param` texts.

        >>> symbols = Symbols()
        >>> str(symbols.named("p2o.DynamicDimension.0")), str(symbols.named("unk__7"))
        ('p2o_DynamicDimension_0', 'unk__7')

    Equal texts are the same symbol, and different texts are different symbols. A text or a symbol's
    name that `sizes` contains is a number instead. `fixed` holds the keys of `sizes` that occurred.
    """

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        self._sizes = dict(sizes or {})
        self._by_text: dict[str, Expr] = {}
        self._names: set[str] = set()
        self.fixed: set[str] = set()

    def dimension(self, dim: onnx.TensorShapeProto.Dimension, value: str, axis: int) -> Expr:
        """A dimension of `value`: a number, a named symbol, or a new symbol named by its axis."""
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return Const(dim.dim_value)
        if dim.dim_param not in ("", "?"):
            return self.named(dim.dim_param)
        return self._new(f"{value}_{axis}")

    def named(self, text: str) -> Expr:
        """The symbol of a `dim_param`, or its size if `sizes` has one."""
        if text not in self._by_text:
            self._by_text[text] = self._new(text)
        return self._by_text[text]

    def _new(self, text: str) -> Expr:
        base_name = symbol_name(text)
        name, count = base_name, 2
        while name in self._names:
            name, count = f"{base_name}_{count}", count + 1
        self._names.add(name)
        for key in (text, name):
            if key in self._sizes:
                self.fixed.add(key)
                return Const(self._sizes[key])
        return Var(name)


class _Reader:
    """A converter of graphs that share one set of symbols."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols

    def function(
        self, graph: GraphProto, name: str, bound_inputs: Mapping[str, Array] | None = None
    ) -> Function:
        """Convert a graph to a function. The inputs in `bound_inputs` become constants."""
        constants = {**dict(self.initializers(graph)), **(bound_inputs or {})}
        nodes: list[Node] = []
        for proto in graph.node:
            if proto.op_type == "Constant" and proto.domain in ("", "ai.onnx"):
                constants[proto.output[0]] = self.constant(proto)
            else:
                nodes.append(self.node(proto))
        inputs = [i for i in graph.input if i.name not in constants]
        types = {i.name: t for i in inputs if (t := self.type(i)) is not None}
        outputs = tuple(o.name for o in graph.output)
        return Function(
            name, tuple(i.name for i in inputs), outputs, tuple(nodes), types, constants
        )

    def initializers(self, graph: GraphProto) -> Iterator[tuple[str, Array]]:
        for tensor in graph.initializer:
            yield tensor.name, _array(tensor)
        for sparse in graph.sparse_initializer:
            yield sparse.values.name, _dense(sparse)

    def node(self, proto: NodeProto) -> Node:
        attributes = {a.name: self.attribute(a) for a in proto.attribute}
        inputs = list(proto.input)
        while inputs and not inputs[-1]:  # an input without a name, at the end, is an absent input
            inputs.pop()
        return Node(
            proto.op_type,
            tuple(inputs),
            tuple(proto.output),
            attributes,
            plain_domain(proto.domain),
            (name_of(proto),),
            version=kept_version(proto),
        )

    def attribute(self, proto: AttributeProto) -> Attribute:
        match proto.type:
            case AttributeProto.TENSOR:
                return _array(proto.t)
            case AttributeProto.SPARSE_TENSOR:
                return _dense(proto.sparse_tensor)
            case AttributeProto.GRAPH:
                return self.function(proto.g, proto.name)
            case AttributeProto.GRAPHS:
                return tuple(
                    self.function(g, f"{proto.name}_{i}") for i, g in enumerate(proto.graphs)
                )
            case AttributeProto.STRING:
                return proto.s.decode("utf-8", "replace")
            case AttributeProto.STRINGS:
                return tuple(s.decode("utf-8", "replace") for s in proto.strings)
        try:
            value: Any = helper.get_attribute_value(proto)
        except ValueError as error:
            raise ModelError(f"attribute {proto.name!r} is malformed: {error}") from None
        return tuple(value) if isinstance(value, Sequence) else value

    def constant(self, proto: NodeProto) -> Array:
        """The array of a `Constant` node."""
        if len(proto.attribute) != 1:
            name = proto.name or next(filter(None, proto.output), "")
            count = len(proto.attribute)
            raise ModelError(f"Constant (node {name!r}) has {count} attributes; it needs one value")
        attribute = proto.attribute[0]
        value: Any = self.attribute(attribute)
        match attribute.name:
            case "value_int" | "value_ints":
                return np.array(value, np.int64)
            case "value_float" | "value_floats":
                return np.array(value, np.float32)
            case "value_string" | "value_strings":
                return np.array(value, object)
        assert isinstance(value, np.ndarray)
        return value

    def type(self, info: ValueInfoProto) -> TensorType | None:
        """The declared type, or `None` for tensors of unknown rank. A text is an int64
        (`number_texts`). A sequence has the type of its stacked elements.
        """
        if is_sequence(info):
            type_ = self.type(_element_of(info))
            count = self.symbols.named(f"{info.name}_count")
            return type_ and replace(type_, shape=(count, *type_.shape))
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
            return None
        is_text = tensor.elem_type == TensorProto.STRING
        dtype = DType.int64 if is_text else dtype_of(tensor.elem_type)
        if dtype is None:
            return None
        dimensions = tuple(
            self.symbols.dimension(d, info.name, axis) for axis, d in enumerate(tensor.shape.dim)
        )
        return TensorType(dtype, dimensions)


def _with_sequences(main: Function, graph: GraphProto) -> Function:
    """The function, whose inputs that are sequences are tensors of their elements."""
    names = {i.name: f"{i.name}/sequence" for i in graph.input if is_sequence(i)}
    if not names:
        return main
    slices = {"axis": 0, "keepdims": 0}
    starts = (Node("SplitToSequence", (n,), (s,), slices, "", (n,)) for n, s in names.items())
    nodes = (rename_captures(node.reading(names), names) for node in main.nodes)
    return replace(main, nodes=(*starts, *nodes))


def is_sequence(info: ValueInfoProto) -> bool:
    """True for a sequence of tensors."""
    return bool(info.type.HasField("sequence_type"))


def _element_of(info: ValueInfoProto) -> ValueInfoProto:
    """An element of a sequence."""
    return helper.make_value_info(info.name, info.type.sequence_type.elem_type)


def _array(tensor: TensorProto) -> Array:
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError) as error:
        raise ModelError(f"tensor {tensor.name!r} is malformed: {error}") from None
    except KeyError as error:
        raise ModelError(f"tensor {tensor.name!r} has an unknown element type {error}") from None


def _dense(sparse: onnx.SparseTensorProto) -> Array:
    """Convert a sparse tensor to a dense one."""
    check_dense(sparse)
    values, indices = _array(sparse.values), _array(sparse.indices)
    shape: Sequence[int] = tuple(sparse.dims)
    dense = np.zeros(shape, values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense


def add_tokenizer(module: Module, path: Path) -> Module:
    """Put the tokeniser of a model of texts into its package. Raises `UserError` for a bad file."""
    note_file(path)
    try:
        text = path.read_bytes()
        is_tokenizer = "model" in json.loads(text)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no tokenizer.json: {error}") from None
    if not is_tokenizer:
        raise UserError(f"{path} is no tokenizer.json: it has no key 'model'")
    return replace(module, assets={**module.assets, "tokenizer.json": text})
