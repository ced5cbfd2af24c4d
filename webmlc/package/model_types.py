"""The TypeScript types of one model: the names, element types and shapes of its inputs and outputs.

In: a manifest. Out: the text of `model.d.ts`, for `load<Model>(url)`:

    export type Inputs = {
      /** int64 [batch, sequence] */
      input_ids: { dtype: "int64"; shape: [number, number]; data: BigInt64Array };
    };
    export type Outputs = { ... };
    export type Model = AnyModel<Inputs, Outputs>;

An input of static shape may be a typed array alone. Texts are arrays of strings, which may stand
alone if at most one size is not static. A size that a run chooses is a number. An input
of pixels is a picture, and an input of samples is a sound. An output of classes is a list of labels
with scores, an output of tokens is a text, and an output of opacity is a mask.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from webmlc.core.dtypes import DType
from webmlc.package.manifest import AnyPort, Manifest, Port, TextPort
from webmlc.package.sizes import Size, size_text

MODEL_TYPES = "model.d.ts"
"""The file of the types in a package."""
_ARRAYS = {
    DType.bool: "Uint8Array",
    DType.int8: "Int8Array",
    DType.int16: "Int16Array",
    DType.uint16: "Uint16Array",
    DType.int32: "Int32Array",
    DType.uint32: "Uint32Array",
    DType.int64: "BigInt64Array",
    DType.uint64: "BigUint64Array",
    DType.float16: "Uint16Array",
    DType.bfloat16: "Uint16Array",
    DType.float32: "Float32Array",
    DType.float64: "Float64Array",
}
"""The typed arrays of element types (`runtime_js/dtypes.js`). Other types are a Uint8Array."""
_SOURCES = {"pixels": "PixelSource", "samples": "SoundSource"}
"""The types of inputs that are values of the page, by kind."""
_RESULTS = {"classes": "LabelledScore[]", "text": "Transcript"}
"""The types of the results for one element of a batch, by the kind of the output."""
_TYPED_IMPORTS = (
    "AlphaMask, LabelledBox, LabelledScore, PixelSource, SoundSource, Transcript, "
    "TypedModel as AnyModel"
)
_IDENTIFIER = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)


def model_types(manifest: Manifest, *, is_language_model: bool) -> str:
    """Write the types of a package's model."""
    base = "LanguageModel" if is_language_model else "Model"
    imports = f'import type {{ {base} as AnyModel }} from "./webmlc.js";'
    if manifest.typed:
        imports = f'import type {{ {_TYPED_IMPORTS} }} from "./webmlc.js";'
    name = " ".join(manifest.name.split())
    return f"""\
// The types of {name}, for `load<Model>(url)`. Written by webmlc.

{imports}

/** The inputs of a run. */
export type Inputs = {_record(_input(manifest, port) for port in manifest.model_inputs)};

/** The outputs of a run. */
export type Outputs = {_record(_outputs(manifest))};

export type Model = AnyModel<Inputs, Outputs>;
"""


def _input(manifest: Manifest, port: AnyPort) -> str:
    typed = manifest.typed.get(port.name)
    if typed is not None and typed.kind in _SOURCES:
        return f"  {_key(port.name)}: {_SOURCES[typed.kind]};\n"
    return _property(port, is_input=True)


def _outputs(manifest: Manifest) -> Iterator[str]:
    """The outputs. A typed output has the type that a run returns, in place of its tensors."""
    ports = {port.name: port for port in manifest.model_outputs}
    ranks = {port.name: len(port.shape) for port in manifest.outputs}
    for name, sizes in manifest.shapes.items():
        yield _of_any_rank(ports.pop(name), is_sequence=ranks[sizes] > 1)
    for name, typed in manifest.typed.items():
        parts = [ports.pop(part) for part in typed.values or ()]
        if typed.kind == "boxes":
            yield f"  {_key(name)}: LabelledBox[];\n"
        elif typed.kind == "mask":
            yield f"  {_key(name)}: {'AlphaMask' if len(parts[0].shape) == 2 else 'ImageData'};\n"
        elif parts:
            result = _RESULTS[typed.kind]
            rows = {_static(size) for size in parts[0].shape[:-1]}
            nested = rows - {1}
            results = [result] * (nested <= {None}) + [f"{result}[]"] * bool(nested)
            yield f"  {_key(name)}: {' | '.join(results)};\n"
    yield from (_property(port, is_input=False) for port in ports.values())


def _static(size: Size) -> int | None:
    """A size that no run chooses, else `None`."""
    return size if isinstance(size, int) else None


def _key(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else json.dumps(name)


def _record(properties: Iterable[str]) -> str:
    text = "".join(properties)
    return f"{{\n{text}}}" if text else "{}"


def _of_any_rank(port: AnyPort, *, is_sequence: bool) -> str:
    """The property of an output whose rank only a run knows, or of a sequence of such tensors."""
    dtype = port.dtype if isinstance(port, Port) else DType.float32
    array = _ARRAYS.get(dtype, "Uint8Array")
    type_ = f'{{ dtype: "{dtype.name}"; shape: number[]; data: {array} }}'
    list_ = "[]" if is_sequence else ""
    return f"  /** {dtype.name} of any shape */\n  {_key(port.name)}: {type_}{list_};\n"


def _property(port: AnyPort, *, is_input: bool) -> str:
    """A property, with a comment that gives the shape in the model."""
    is_text = isinstance(port, TextPort)
    dtype, array = "string", "string[]"
    if isinstance(port, Port):
        dtype, array = port.dtype.name, _ARRAYS.get(port.dtype, "Uint8Array")
    sizes = [_static(size) for size in port.shape]
    shape = ", ".join("number" if size is None else str(size) for size in sizes)
    type_ = f'{{ dtype: "{dtype}"; shape: [{shape}]; data: {array} }}'
    if is_input and sizes.count(None) <= is_text:
        type_ = f"{array} | {type_}"
    meaning = f"{dtype} [{', '.join(map(size_text, port.shape))}]".replace("*/", "* /")
    return f"  /** {meaning} */\n  {_key(port.name)}: {type_};\n"
