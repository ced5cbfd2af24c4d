"""Write small TensorFlow Lite files, by the schema in the library `tflite`.

In: tensors and operators. Out: the bytes of a file with one subgraph or more.

    x, y = tensor("x", (2, 3)), tensor("y", (2, 3))
    content = tflite_file([subgraph([x, y], [operator("TANH", [0], [1])], [0], [1])])
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite
from ml_dtypes import int4

ELEMENTS = {
    np.dtype(np.float32): "FLOAT32",
    np.dtype(np.float16): "FLOAT16",
    np.dtype(np.int8): "INT8",
    np.dtype(np.uint8): "UINT8",
    np.dtype(np.int16): "INT16",
    np.dtype(np.int32): "INT32",
    np.dtype(np.int64): "INT64",
    np.dtype(np.uint32): "UINT32",
    np.dtype(np.bool_): "BOOL",
    np.dtype(int4): "INT4",
}


@dataclass(frozen=True)
class FileTensor:
    """A tensor. `scale` and `zero` are numbers, or lists with a number for each position along
    `axis`. `sizes` are the sizes of the signature, -1 for a symbol.
    """

    name: str
    shape: tuple[int, ...]
    element: str = "FLOAT32"
    data: np.ndarray | None = None
    scale: Any = None
    zero: Any = 0
    axis: int = 0
    sizes: tuple[int, ...] = ()
    sparsity: Mapping[str, Any] | None = None
    is_variable: bool = False


@dataclass(frozen=True)
class FileOperator:
    """An operator. `options` are the fields of the class `kind` of the schema."""

    name: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    kind: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    custom: bytes | None = None
    version: int = 1


@dataclass(frozen=True)
class FileGraph:
    """A subgraph."""

    tensors: Sequence[FileTensor]
    operators: Sequence[FileOperator]
    inputs: Sequence[int]
    outputs: Sequence[int]


@dataclass(frozen=True)
class FloatList:
    """A vector of floats in the options of an operator."""

    numbers: Sequence[float]


def constant(name: str, data: Any, **fields: Any) -> FileTensor:
    """A constant tensor. `sparse` data have another shape than the tensor."""
    array = np.asarray(data)
    fields = {"shape": array.shape, "element": ELEMENTS[array.dtype], **fields}
    return FileTensor(name, data=array, **fields)


class FileWriter:
    """A writer of one file."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(1024)
        self.buffers: list[np.ndarray] = [np.zeros(0, np.uint8)]
        self.codes: list[tuple[str, bool, int]] = []

    def table(self, name: str, **fields: Any) -> int:
        """A table, whose fields are numbers or places of other objects."""
        getattr(tflite, f"{name}Start")(self.builder)
        for key, value in fields.items():
            getattr(tflite, f"{name}Add{key}")(self.builder, value)
        return int(getattr(tflite, f"{name}End")(self.builder))

    def numbers(self, values: Any, numpy_type: Any = np.int32) -> int:
        return int(self.builder.CreateNumpyVector(np.asarray(values, numpy_type).reshape(-1)))

    def places(self, values: Sequence[int]) -> int:
        """A vector of tables."""
        self.builder.StartVector(4, len(values), 4)
        for value in reversed(values):
            self.builder.PrependUOffsetTRelative(value)
        return int(self.builder.EndVector())

    def text(self, value: str) -> int:
        return int(self.builder.CreateString(value))

    def tensor(self, tensor: FileTensor) -> int:
        fields = {"Shape": self.numbers(tensor.shape), "Name": self.text(tensor.name)}
        if tensor.sizes:
            fields["ShapeSignature"] = self.numbers(tensor.sizes)
        if tensor.scale is not None:
            fields["Quantization"] = self.table(
                "QuantizationParameters",
                Scale=self.numbers(tensor.scale, np.float32),
                ZeroPoint=self.numbers(tensor.zero, np.int64),
                QuantizedDimension=tensor.axis,
            )
        if tensor.sparsity is not None:
            fields["Sparsity"] = self.sparsity(**tensor.sparsity)
        if tensor.data is not None:
            data = tensor.data
            if tensor.element == "INT4":
                pairs = np.resize(data.astype(np.uint8) & 15, (-(-data.size // 2), 2))
                data = pairs[:, 0] | pairs[:, 1] << 4
            fields["Buffer"] = len(self.buffers)
            self.buffers.append(np.frombuffer(data.tobytes(), np.uint8))
        element = getattr(tflite.TensorType, tensor.element)
        return self.table(
            "Tensor", Type=element, HasRank=True, IsVariable=tensor.is_variable, **fields
        )

    def sparsity(self, order: Any, blocks: Any, levels: Sequence[Any]) -> int:
        """The levels of a sparse tensor: the size of a dense one, or its segments and indices."""
        tables = []
        for level in levels:
            if isinstance(level, int):
                tables.append(self.table("DimensionMetadata", Format=0, DenseSize=level))
                continue
            segments, indices = (
                self.table("Int32Vector", Values=self.numbers(values)) for values in level
            )
            kind = tflite.SparseIndexVector.Int32Vector
            tables.append(
                self.table(
                    "DimensionMetadata",
                    Format=1,
                    ArraySegmentsType=kind,
                    ArraySegments=segments,
                    ArrayIndicesType=kind,
                    ArrayIndices=indices,
                )
            )
        fields = {"TraversalOrder": self.numbers(order), "DimMetadata": self.places(tables)}
        if blocks is not None:
            fields["BlockMap"] = self.numbers(blocks)
        return self.table("SparsityParameters", **fields)

    def operator(self, operator: FileOperator) -> int:
        code = (operator.name, operator.custom is not None, operator.version)
        if code not in self.codes:
            self.codes.append(code)
        fields: dict[str, Any] = {
            "OpcodeIndex": self.codes.index(code),
            "Inputs": self.numbers(operator.inputs),
            "Outputs": self.numbers(operator.outputs),
        }
        if operator.custom is not None:
            fields["CustomOptions"] = self.numbers(
                np.frombuffer(operator.custom, np.uint8), np.uint8
            )
        elif operator.kind:
            values = {key: self.field(value) for key, value in operator.options.items()}
            suffix = "" if hasattr(tflite.BuiltinOptions, operator.kind) else "2"
            union = getattr(tflite, f"BuiltinOptions{suffix}")
            fields[f"BuiltinOptions{suffix}"] = self.table(operator.kind, **values)
            fields[f"BuiltinOptions{suffix}Type"] = getattr(union, operator.kind)
        return self.table("Operator", **fields)

    def field(self, value: Any) -> Any:
        """A field of the options: a number, or the place of numbers or of a text."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, FloatList):
            return self.numbers(value.numbers, np.float32)
        return self.numbers(value) if isinstance(value, list | tuple) else value

    def graph(self, graph: FileGraph) -> int:
        tensors = self.places([self.tensor(tensor) for tensor in graph.tensors])
        operators = self.places([self.operator(operator) for operator in graph.operators])
        inputs, outputs = self.numbers(graph.inputs), self.numbers(graph.outputs)
        return self.table(
            "SubGraph", Tensors=tensors, Operators=operators, Inputs=inputs, Outputs=outputs
        )

    def ports(self, names: Sequence[tuple[int, str]]) -> int:
        maps = [
            self.table("TensorMap", Name=self.text(name), TensorIndex=index)
            for index, name in names
        ]
        return self.places(maps)

    def code(self, name: str, is_custom: bool, version: int) -> int:
        number = getattr(tflite.BuiltinOperator, "CUSTOM" if is_custom else name)
        fields = {"CustomCode": self.text(name)} if is_custom else {}
        return self.table(
            "OperatorCode",
            DeprecatedBuiltinCode=min(number, 127),
            BuiltinCode=number,
            Version=version,
            **fields,
        )

    def finish(self, graphs: Sequence[int], **fields: int) -> bytes:
        """The bytes of the file with these subgraphs and further fields of the model."""
        fields["Subgraphs"] = self.places(graphs)
        fields["OperatorCodes"] = self.places([self.code(*code) for code in self.codes])
        buffers = []
        for data in self.buffers:
            content = {"Data": self.numbers(data, np.uint8)} if data.size else {}
            buffers.append(self.table("Buffer", **content))
        fields["Buffers"] = self.places(buffers)
        model = self.table("Model", Version=3, **fields)
        self.builder.Finish(model, b"TFL3")
        return bytes(self.builder.Output())


Names = Sequence[tuple[int, str]]
"""The index of a tensor, and a name."""


def tflite_file(
    graphs: Sequence[FileGraph],
    signature: tuple[Names, Names] | None = None,
    **others: tuple[Names, Names],
) -> bytes:
    """The bytes of a file. `signature` names the inputs and the outputs of the first subgraph, and
    `others` those of the next subgraphs.
    """
    writer = FileWriter()
    places = [writer.graph(graph) for graph in graphs]
    fields: dict[str, int] = {}
    tables = []
    names = {"serving_default": signature, **others} if signature is not None else {}
    for number, (name, ports) in enumerate(names.items()):
        inputs, outputs = map(writer.ports, ports or ((), ()))
        key = writer.text(name)
        tables.append(
            writer.table(
                "SignatureDef",
                Inputs=inputs,
                Outputs=outputs,
                SignatureKey=key,
                SubgraphIndex=number,
            )
        )
    if tables:
        fields["SignatureDefs"] = writer.places(tables)
    return writer.finish(places, **fields)
