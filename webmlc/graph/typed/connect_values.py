"""Connect a model with the values of the page: pixels and sounds in; labels, boxes and texts out.

needs: a module whose nodes have the form of their newest opset. guarantees: each named input of
`main` is a value that the page has, and each named output a value that it shows. The nodes between
are part of the graph, so that the passes after this one fuse them with the model. before → after:

    main(%x: float32[1, 3, 224, 224]) -> %y    →    main(%x: uint8[x_height, x_width, 4])
                                                      -> %y_scores, %y_classes

`module.typed` says which inputs and outputs these are, and the manifest repeats it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from webmlc.core.dtypes import DType
from webmlc.core.errors import InputError
from webmlc.core.expr import Expr, Var, as_int, const
from webmlc.core.rewrite import substitute, variables
from webmlc.graph.builder import Builder, Expansion, Value
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.ir import Array, Module, Node, TensorType
from webmlc.graph.ops.subgraphs import names_in, rename_captures
from webmlc.graph.typed.boxes import find_boxes
from webmlc.graph.typed.mask import mask_pixels
from webmlc.graph.typed.options import (
    Boxes,
    Classes,
    Mask,
    OutputOptions,
    Pixels,
    Samples,
    Transcript,
    ValueOptions,
    read_input,
    read_output,
)
from webmlc.graph.typed.pixels import CHANNELS, read_pixels
from webmlc.graph.typed.samples import read_samples
from webmlc.graph.typed.transcript import label_texts, read_transcript

LABELS = "labels{}.json"
"""The files of labels in a package: the first one has no number."""
_KINDS = {Boxes: "boxes", Classes: "classes", Mask: "mask", Transcript: "text"}
"""The kinds of outputs in the manifest."""


def connect_values(
    module: Module, inputs: ValueOptions | None = None, outputs: ValueOptions | None = None
) -> Module:
    """Connect the inputs and outputs that are named. Raises `InputError` for wrong options."""
    if not inputs and not outputs:
        return module
    if module.length:
        raise InputError("a language model reads text: it has no inputs or outputs to connect")
    _check_names("input", inputs or {}, module.main.inputs)
    _check_names("output", outputs or {}, module.main.outputs)
    connection = _Connection(module)
    for name, options in (inputs or {}).items():
        connection.connect_input(name, read_input(name, options))
    for name, options in (outputs or {}).items():
        connection.connect_output(name, options)
    return connection.module()


def _check_names(kind: str, options: ValueOptions, names: tuple[str, ...]) -> None:
    for name in options:
        if name not in names:
            listed = ", ".join(map(repr, names)) or "none"
            raise InputError(f"the model has no {kind} {name!r}; its {kind}s: {listed}")


class _Connection:
    """The function `main` while values are connected."""

    def __init__(self, module: Module) -> None:
        self.source = module
        self.function = module.main
        self.names = set(names_in(module.main))
        self.typed: dict[str, dict[str, Any]] = {}
        self.assets: dict[str, bytes] = {}
        self.geometries: dict[str, Mapping[str, Any]] = {}
        self.types: dict[str, TensorType] = {}

    def module(self) -> Module:
        return replace(
            self.source,
            functions={**self.source.functions, "main": self.function},
            typed=self.typed,
            assets={**self.source.assets, **self.assets},
        )

    def builder(self, name: str) -> tuple[Builder, Expansion]:
        """A builder of nodes that belong to an input or output."""
        expansion = Expansion(self.names)
        return Builder(Node("", (), (name,), origin=(name,)), expansion), expansion

    def connect_input(self, name: str, options: Pixels | Samples) -> None:
        """Compute the input from a new input with the same name."""
        type_ = self.function.types.get(name)
        build, expansion = self.builder(name)
        source = build.value(name)
        if isinstance(options, Samples):
            value = read_samples(build, source, type_, options)
            assert type_ is not None
            channels = Var(self.symbol(f"{name}_channels"))
            page_type = TensorType(DType.float32, (channels, type_.shape[-1]))
            self.typed[name] = {"kind": "samples", "rate": options.samples}
        else:
            value, geometry = read_pixels(build, source, type_, options)
            self.geometries[name] = geometry
            height, width = (Var(self.symbol(f"{name}_{side}")) for side in ("height", "width"))
            page_type = TensorType(DType.uint8, (height, width, const(CHANNELS)))
            self.typed[name] = {"kind": "pixels"}
        self.rename(name, value)
        nodes = (*expansion.nodes, *self.function.nodes)
        self.replace_types(name, type_, page_type, nodes, expansion.constants)

    def symbol(self, name: str) -> str:
        """A name that no symbol has, of the signs that symbols may have: inputs of TensorFlow are
        named "input:0".
        """
        name = re.sub(r"^(?=\d)|\W", "_", name, flags=re.ASCII)
        names = {
            v.name for t in self.function.types.values() for d in t.shape for v in variables(d)
        }
        while name in names:
            name += "_"
        return name

    def rename(self, name: str, value: str) -> None:
        """Let all nodes read `value` in place of an input."""
        names = {name: value}
        nodes = tuple(
            replace(
                rename_captures(node, names), inputs=tuple(names.get(i, i) for i in node.inputs)
            )
            for node in self.function.nodes
        )
        outputs = tuple(names.get(o, o) for o in self.function.outputs)
        self.function = replace(self.function, nodes=nodes, outputs=outputs)

    def replace_types(
        self,
        name: str,
        old: TensorType | None,
        new: TensorType,
        nodes: tuple[Node, ...],
        constants: Mapping[str, Array],
    ) -> None:
        """Give an input a new type. Symbols of its batch are 1 in all types, because one value of
        the page is one element of a batch.
        """
        has_batch = old is not None and (old.rank in (2, 4) or new.dtype is DType.float32)
        first = old.shape[0] if old is not None and has_batch and old.rank > 1 else None
        batch: dict[Var, Expr] = {first: const(1)} if isinstance(first, Var) else {}
        types = {
            value: TensorType(t.dtype, tuple(substitute(d, batch) for d in t.shape))
            for value, t in self.function.types.items()
        }
        self.function = replace(
            self.function,
            nodes=nodes,
            types={**types, name: new},
            constants={**self.function.constants, **constants},
        )

    def connect_output(self, name: str, options: Any) -> None:
        """Return the values that the page shows in place of an output."""
        kind = read_output(name, options)
        build, expansion = self.builder(name)
        parts = self.write_parts(build, name, kind)
        ports = {value: f"{name}_{part}" for part, value in parts.items()}
        for port in ports.values():
            if port in self.names:
                raise InputError(f"output {name!r}: the model has a value {port!r} already")
        nodes = [
            replace(node, outputs=tuple(ports.get(o, o) for o in node.outputs))
            for node in expansion.nodes
        ]
        outputs: list[str] = []
        for output in self.function.outputs:
            scores = isinstance(kind, Boxes) and output == kind.classes
            outputs += ports.values() if output == name else [] if scores else [output]
        self.function = replace(
            self.function,
            nodes=(*self.function.nodes, *nodes),
            outputs=tuple(outputs),
            constants={**self.function.constants, **expansion.constants},
        )
        self.typed[name] = {"kind": _KINDS[type(kind)], "values": list(ports.values())}
        self.add_labels(name, kind)

    def write_parts(self, build: Builder, name: str, kind: OutputOptions) -> Mapping[str, str]:
        """Write the nodes behind an output. Returns the values by their kinds."""
        value = build.value(name)
        match kind:
            case Boxes():
                pixels = self.pixels_of(name, kind)
                source, geometry = build.value(pixels), self.geometries[pixels]
                return find_boxes(build, value, kind, source, geometry)
            case Mask():
                pixels = self.pixels_of(name, kind)
                source, geometry = build.value(pixels), self.geometries[pixels]
                return mask_pixels(build, value, self.type_of(name), kind, source, geometry)
            case Transcript():
                return read_transcript(build, value, self.type_of(name), kind)
        return rank_classes(build, value, kind)

    def add_labels(self, name: str, kind: OutputOptions) -> None:
        """Store the labels of an output in a file of the package."""
        if isinstance(kind, Mask) or not kind.labels:
            return
        labels = list(kind.labels)
        if isinstance(kind, Transcript):
            classes = self.type_of(name).shape[kind.axis]
            labels = label_texts(kind, as_int(classes))
            _check_count(name, len(labels), classes)
        file = LABELS.format(f".{len(self.assets)}" if self.assets else "")
        self.assets[file] = json.dumps(labels, ensure_ascii=False).encode()
        self.typed[name] |= {"labels": file}

    def type_of(self, name: str) -> TensorType:
        """The type of an output. Only inference knows it."""
        if name not in self.types:
            self.types |= infer_shapes(self.module()).main.types
        return self.types[name]

    def pixels_of(self, name: str, options: Boxes | Mask) -> str:
        """The input of pixels to which the boxes or the mask of an output belong."""
        if (
            isinstance(options, Boxes)
            and options.classes
            and options.classes not in self.function.outputs
        ):
            raise InputError(f"output {name!r}: the model has no output {options.classes!r}")
        names = [options.input] if options.input else list(self.geometries)
        if len(names) != 1 or names[0] not in self.geometries:
            listed = ", ".join(map(repr, self.geometries)) or "none"
            needs = "boxes need" if isinstance(options, Boxes) else "a mask needs"
            raise InputError(
                f"output {name!r}: {needs} one input of pixels; there are {listed}. Say "
                "input=NAME, and say of that input what pixels it has."
            )
        return names[0]


def check_labels(module: Module) -> Module:
    """Return the module. Raises `InputError` if an output has more or fewer classes than labels.

    needs: inferred shapes.
    """
    for name, kind in module.typed.items():
        type_ = module.main.types.get(name)
        if "labels" not in kind or kind["kind"] != "classes" or type_ is None or not type_.rank:
            continue
        _check_count(name, len(json.loads(module.assets[kind["labels"]])), type_.shape[-1])
    return module


def _check_count(name: str, labels: int, classes: Expr) -> None:
    if as_int(classes) not in (None, labels):
        raise InputError(f"output {name!r}: {labels} labels for {classes} classes")


def rank_classes(build: Builder, value: Value, options: Classes) -> dict[str, Value]:
    """Write the nodes behind an output of scores, [..., classes]. Returns the scores as
    probabilities; or the `topk` largest of them and the indices of their classes, [..., topk].
    """
    scores = value.cast(DType.float32)
    if options.scores == "softmax":
        scores = build("Softmax", scores, axis=-1)
    elif options.scores == "sigmoid":
        scores = build("Sigmoid", scores)
    if not options.topk:
        return {"scores": scores}
    best, places = build.many("TopK", scores, [options.topk], outputs=2, axis=-1)
    return {"scores": best, "classes": places.cast(DType.int32)}
