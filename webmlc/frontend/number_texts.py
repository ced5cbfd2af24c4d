"""Replace texts by numbers, so that all later stages compute with numbers only.

In: a module as read, in which inputs, constants and attributes may hold texts. Out: a module in
which each text is an int64: its place in `Texts.words`. Texts that only a run knows have numbers
after those of the words, in the order in which a host meets them. before → after:

    %y = LabelEncoder(%x) {keys_strings=("no", "yes"), values_int64s=(0, 9)}
    %y = LabelEncoder(%x) {keys_int64s=(0, 1), values_int64s=(0, 9)}         words: no, yes

Operators that read the letters of texts become `webmlc.TextStep` nodes (`core.text_steps`).
`graph/texts/cut_texts.py` moves these out of the graph, into the hosts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import msgspec
import numpy as np
from onnx import GraphProto, TensorProto, TypeProto

from webmlc.core.errors import ModelError, Unsupported, UnsupportedError
from webmlc.core.rewrite import variables
from webmlc.core.symbol_names import symbol_name
from webmlc.core.text_patterns import portable_pattern
from webmlc.core.text_steps import (
    WORDS,
    Append,
    CountGrams,
    Grams,
    Match,
    Normalise,
    Parse,
    Print,
    Split,
    TextStep,
    Tokenise,
)
from webmlc.frontend.protos import dtype_of
from webmlc.graph.ir import Array, Function, Module, Node, TextPort, Texts

STRING, INT64 = TensorProto.STRING, TensorProto.INT64
MOVES = frozenset(
    {"ArrayFeatureExtractor", "Compress", "Concat", "ConcatFromSequence", "Expand", "Flatten"}
    | {"Gather", "GatherElements", "GatherND", "Identity", "OptionalGetElement", "Reshape"}
    | {"ReverseSequence", "ScatterElements", "ScatterND", "SequenceAt", "SequenceConstruct"}
    | {"SequenceInsert", "Slice", "Split", "SplitToSequence", "Squeeze", "Tile", "Transpose"}
    | {"Unsqueeze", "Where"}
)
"""The operators whose outputs hold the texts of their inputs."""
READS = frozenset({"Equal", "SequenceLength", "Shape", "Size"})
"""The operators that compare or count texts, and return numbers."""
LABELS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
"""The classifiers, whose first output is a label. By name, the attribute of labels that are
numbers.
"""
UNFIT = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""The errors of nodes whose inputs, outputs or attributes no valid model has."""
_MISSING = "_Unused"
"""The default of ONNX's `default_string`."""
_REFUSAL = (
    "it computes with texts; a model may look up, compare, move, split and join them, so compute "
    "this before the model"
)


def number_texts(module: Module, graph: GraphProto) -> Module:
    """Number the texts of a module, which `graph` describes. A module without texts is unchanged.

    Raises `UnsupportedError` with all nodes that cannot be compiled.
    """
    names = {i.name for i in graph.input if STRING in _element_types(i.type)}
    writer = _Numbering({v.name for t in module.main.types.values() for d in t.shape
                         for v in variables(d)})  # fmt: skip
    writer.texts |= names & set(module.main.inputs)
    main = writer.function(module.main)
    if writer.unsupported:
        raise UnsupportedError(tuple(writer.unsupported))

    def ports(values: Iterable[str]) -> tuple[TextPort, ...]:
        return tuple(
            TextPort(value, main.types[value].shape if value in main.types else (), position)
            for position, value in enumerate(values)
            if value in writer.texts
        )

    texts = Texts(tuple(writer.words), ports(main.inputs), ports(main.outputs))
    if not writer.texts:
        return module.with_main(main)
    return module.with_main(
        main,
        texts=texts,
        assets={
            **module.assets,
            **writer.assets,
            WORDS: json.dumps(texts.words, ensure_ascii=False).encode(),
        },
        opsets={**module.opsets, "webmlc": 1},
    )


@dataclass(slots=True)
class _Numbering:
    """The numbers of words, and the values that hold texts, of a function and its sub-graphs."""

    symbols: set[str]
    words: dict[str, int] = field(default_factory=dict)
    texts: set[str] = field(default_factory=set)
    assets: dict[str, bytes] = field(default_factory=dict)
    unsupported: list[Unsupported] = field(default_factory=list)
    depth: int = 0

    def number(self, text: Any) -> int:
        """The number of a word."""
        word = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
        return self.words.setdefault(word, len(self.words))

    def numbers(self, words: Iterable[Any]) -> tuple[int, ...]:
        return tuple(self.number(word) for word in words)

    def array(self, array: Array) -> Array:
        """The numbers of a tensor of words."""
        return np.array(self.numbers(array.reshape(-1)), np.int64).reshape(array.shape)

    def function(self, function: Function) -> Function:
        """Number the texts of a function. `texts` holds its inputs that are texts."""
        constants = {}
        for name, array in function.constants.items():
            constants[name] = array
            if _is_text(array):
                constants[name] = self.array(array)
                self.texts.add(name)
        nodes = []
        for node in function.nodes:
            try:
                nodes.append(self.node(node))
            except _Refusal as error:
                name = f"{node.domain}.{node.op}" if node.domain else node.op
                self.unsupported.append(Unsupported(node.name, name, str(error)))
            except UNFIT as error:
                raise ModelError(
                    f"{node.op} (node {node.name!r}): its inputs, outputs and attributes do not "
                    f"fit the operator ({type(error).__name__}: {error})"
                ) from error
        return replace(function, nodes=tuple(nodes), constants=constants)

    def node(self, node: Node) -> Node:
        """Rewrite a node, and note which of its outputs are texts."""
        reads_texts = not self.texts.isdisjoint(node.inputs)
        if node.op in ("If", "Loop", "Scan") and not node.domain:
            return self.control(node)
        if node.domain == "ai.onnx.ml" and (node.op in LABELS or node.op == "ZipMap"):
            return self.classifier(node)
        match node.operator:
            case ("ai.onnx.ml", "LabelEncoder" | "CategoryMapper"):
                return self.encoder(node)
            case ("ai.onnx.ml", "OneHotEncoder") if node.attributes.get("cats_strings"):
                return _with(node, cats_int64s=self.numbers(node.attributes["cats_strings"]))
            case ("", "Cast" | "CastLike"):
                return self.cast(node)
            case ("", "OneHot"):
                return self.moved(node, node.inputs[2:])
            case ("", "SequenceEmpty" | "Optional") if node.attributes.get("dtype") == STRING:
                return self.moved(_with(node, dtype=INT64), node.inputs, always=True)
        step = self.step(node) if reads_texts else None
        if step is not None:
            return self.text_step(node, step)
        if reads_texts and node.op in MOVES:
            return self.moved(node, node.inputs)
        if (reads_texts and node.op not in READS) or any(map(_is_text, node.attributes.values())):
            raise _Refusal(_REFUSAL)
        return node

    def moved(self, node: Node, values: Iterable[str], always: bool = False) -> Node:
        """A node whose outputs are texts if some of its inputs `values` are."""
        if always or not self.texts.isdisjoint(values):
            self.texts.update(filter(None, node.outputs))
        return node

    def control(self, node: Node) -> Node:
        """Rewrite the sub-graphs of a node, whose inputs and outputs are those of the node."""
        skipped_inputs = {"Loop": 2}.get(node.op, 0)
        skipped_outputs = {"Loop": 1}.get(node.op, 0)
        attributes = dict(node.attributes)
        self.depth += 1
        for key, body in node.attributes.items():
            if isinstance(body, Function):
                pairs = zip(
                    body.inputs[skipped_inputs:], node.inputs[skipped_inputs:], strict=False
                )
                self.texts |= {inner for inner, outer in pairs if outer in self.texts}
                attributes[key] = self.function(body)
                results = zip(node.outputs, body.outputs[skipped_outputs:], strict=False)
                self.texts |= {outer for outer, inner in results if inner in self.texts and outer}
        self.depth -= 1
        return replace(node, attributes=attributes)

    def classifier(self, node: Node) -> Node:
        """A classifier whose labels are words returns their numbers. ZipMap's labels are names of
        columns.
        """
        labels = node.attributes.get("classlabels_strings")
        if not labels:
            return node
        if node.op == "ZipMap":
            return _with(node, classlabels_int64s=self.numbers(labels))
        self.texts.add(node.outputs[0])
        return _with(node, **{LABELS[node.op]: self.numbers(labels)})

    def encoder(self, node: Node) -> Node:
        """A LabelEncoder over numbers. CategoryMapper and the first version of LabelEncoder become
        one, too.
        """
        attributes = dict(node.attributes)
        words = attributes.pop("classes_strings", attributes.pop("cats_strings", None))
        if words is not None:
            places = attributes.pop("cats_int64s", tuple(range(len(words))))
            reads_texts = node.inputs[0] in self.texts
            keys, values = ("strings", "int64s") if reads_texts else ("int64s", "strings")
            attributes |= {
                f"keys_{keys}": words if reads_texts else places,
                f"values_{values}": places if reads_texts else words,
            }
        is_text = False
        for side in ("keys", "values"):
            texts = attributes.pop(f"{side}_strings", None)
            tensor = attributes.get(f"{side}_tensor")
            if texts is not None:
                attributes[f"{side}_int64s"] = self.numbers(texts)
            elif _is_text(tensor):
                attributes[f"{side}_tensor"] = self.array(tensor)
                texts = tensor
            is_text = texts is not None  # of the values, at the end
        default = attributes.pop("default_string", _MISSING)
        tensor = attributes.get("default_tensor")
        if is_text and _is_text(tensor):
            attributes["default_tensor"] = self.array(tensor)
        elif is_text:
            attributes["default_int64"] = self.number(default)
        if is_text:
            self.texts.add(node.outputs[0])
        return replace(node, op="LabelEncoder", attributes=attributes, version=None)

    def cast(self, node: Node) -> Node:
        """A Cast from texts or to texts."""
        from_text = node.inputs[0] in self.texts
        number = node.attributes.get("to")
        to_text = node.inputs[1] in self.texts if node.op == "CastLike" else number == STRING
        if from_text and to_text:
            return self.moved(replace(node, op="Identity", inputs=node.inputs[:1], attributes={}),
                              node.inputs[:1])  # fmt: skip
        if not from_text and not to_text:
            return node
        if to_text:
            return self.text_step(node, Print("", ""))
        dtype = None if number is None else dtype_of(number)
        if dtype is None:
            raise _Refusal("it reads numbers of a type that its node does not name: use Cast")
        return self.text_step(node, Parse("", "", dtype))

    def text_step(self, node: Node, step: TextStep) -> Node:
        """The node of a step. Hosts compute it, so it cannot be inside of a sub-graph."""
        if self.depth:
            raise _Refusal(f"{_REFUSAL}, or outside of its loop or branch")
        size = symbol_name(f"{node.outputs[0]}_size")
        while size in self.symbols:
            size += "_"
        self.symbols.add(size)
        if not isinstance(step, CountGrams | Parse | Match):
            self.texts.add(node.outputs[0])
        inputs = node.inputs[:1] if isinstance(step, Print | Parse) else node.inputs
        outputs = node.outputs
        if isinstance(step, Split) and len(outputs) == 1:
            outputs = (*outputs, f"{outputs[0]}.counts")
        return Node(
            "TextStep", inputs, outputs, {"step": step, "size": size}, "webmlc", node.origin
        )

    def step(self, node: Node) -> TextStep | None:
        """The step of an operator that reads letters; None for any other operator."""
        get = node.attributes.get
        match node.operator:
            case ("", "StringNormalizer"):
                case = str(get("case_change_action", "NONE")).lower()
                stop_words = tuple(get("stopwords", ()))
                if case not in ("lower", "upper", "none"):
                    raise _Refusal(f"case_change_action {case!r} is not LOWER, UPPER or NONE")
                return Normalise("", "", case, stop_words, not get("is_case_sensitive", 0))  # type: ignore[arg-type]
            case ("", "StringSplit"):
                return Split("", "", "", get("delimiter", ""), get("maxsplit", -1))
            case ("", "StringConcat"):
                return Append("", "", "")
            case ("", "RegexFullMatch"):
                return Match("", "", _pattern(get("pattern", "")))
            case ("com.microsoft", "Tokenizer"):
                return _tokeniser(node)
            case ("", "TfIdfVectorizer"):
                return self.grams(node)
        return None

    def grams(self, node: Node) -> CountGrams:
        """The step of a TfIdfVectorizer, whose n-grams become a file of the package."""
        get = node.attributes.get
        pool, mode = tuple(get("pool_strings", ())), get("mode")
        starts = [int(n) for n in get("ngram_counts", ())]
        columns = tuple(int(n) for n in get("ngram_indexes", ()))
        shortest, longest = (int(get(f"{name}_gram_length", 0)) for name in ("min", "max"))
        items = [end - start for start, end in zip(starts, [*starts[1:], len(pool)], strict=True)]
        fits = all(n >= 0 and n % length == 0 for length, n in enumerate(items, 1))
        counts = tuple(n // length for length, n in enumerate(items, 1)) if fits else ()
        weights = tuple(map(float, get("weights", ()))) if mode != "TF" else ()
        if not fits or sum(counts) != len(columns) or min(columns, default=-1) < 0:
            raise _Refusal(
                f"its {len(pool)} pool_strings, ngram_counts {starts} and {len(columns)} "
                "ngram_indexes do not fit together"
            )
        if weights and len(weights) != len(columns):
            raise _Refusal(f"{len(weights)} weights for {len(columns)} n-grams")
        if mode not in ("TF", "IDF", "TFIDF") or not 1 <= shortest <= longest <= len(items):
            raise _Refusal(f"mode {mode!r}, n-grams of {shortest} to {longest} texts")
        if mode == "IDF" and len(set(columns)) < len(columns):
            raise _Refusal("n-grams that share an output, of mode IDF")
        file = f"grams{f'.{len(self.assets)}' if self.assets else ''}.json"
        self.assets[file] = msgspec.json.encode(Grams(pool, counts, columns, weights))
        skips = int(get("max_skip_count", 0))
        return CountGrams(
            "", "", file, shortest, longest, max(columns) + 1, skips, clips=mode == "IDF"
        )


def _element_types(type_: TypeProto) -> tuple[int, int]:
    """The element type of a tensor, and the element type of a sequence's tensors; 0 for none."""
    element = type_.sequence_type.elem_type
    return type_.tensor_type.elem_type, element.tensor_type.elem_type


class _Refusal(Exception):
    """The reason why a node cannot be compiled."""


def _with(node: Node, **attributes: Any) -> Node:
    """The node with further attributes, and without attributes that hold words."""
    words = ("cats_strings", "classlabels_strings")
    numbers = {k: v for k, v in node.attributes.items() if k not in words}
    return replace(node, attributes={**numbers, **attributes})


def _is_text(value: Any) -> TypeGuard[Array]:
    """True for a tensor of texts."""
    return isinstance(value, np.ndarray) and value.dtype.kind in "OSU"


def _tokeniser(node: Node) -> Tokenise:
    get = node.attributes.get
    separators = tuple(get("separators", ()))
    pattern = get("tokenexp", "")
    if bool(separators) == bool(pattern):
        raise _Refusal("it has separators and tokenexp, or neither")
    return Tokenise(
        "",
        "",
        _pattern(pattern) if pattern else "",
        () if separators == ("",) else tuple(map(_pattern, separators)),
        int(get("mincharnum", 1)),
        get("pad_value", ""),
        bool(get("mark", 0)),
    )


def _pattern(pattern: str) -> str:
    try:
        return portable_pattern(pattern)
    except ModelError as error:
        raise _Refusal(str(error)) from None
