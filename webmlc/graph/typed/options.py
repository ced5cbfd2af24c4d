"""Read how a model's inputs and outputs look to the page: `pixels=rgb,resize=224,crop=center`.

In: options by the names of inputs and outputs, each a text or a mapping. Out: `Pixels`, `Samples`,
`Classes`, `Boxes`, `Transcript` or `Mask`. A text separates options by commas; lists are in
brackets, as in JSON. An option without a value is true:

    >>> read_input("image", "pixels=rgb,resize=[224,224],mean=[0.5,0.5,0.5]").mean
    (0.5, 0.5, 0.5)
    >>> read_output("logits", "ctc,blank=3").blank
    3

Every mistake raises an `InputError` that lists what may be written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from webmlc.core.errors import InputError

ValueOptions = Mapping[str, str | Mapping[str, Any]]
"""Options by the names of inputs or outputs."""
Filter = Literal["bilinear", "bicubic", "nearest"]
ImageLayout = Literal["nchw", "nhwc"] | None
Activation = Literal["none", "sigmoid", "softmax"]


@dataclass(frozen=True, slots=True)
class Pixels:
    """An image, as bytes of pixels that the page has.

    - `pixels`: the order of the channels: "rgb", "bgr" or "gray".
    - `resize`: (height, width) of the resized image, or (n,) for a side of n pixels: the shorter
      side with `crop`, the longer one with `pad`. By default the size of the model's input.
    - `crop`: "center", or the size to cut from the middle.
    - `pad`: the byte that fills what the image leaves free, or None.
    - `place`: with `pad`, where the image is: "center" or "start".
    - `filter`, `antialias`: as in Pillow: "bilinear", "bicubic" or "nearest".
    - `scale`: the factor of bytes. By default 1/255, and 1 for inputs of integers.
    - `mean`, `std`: of each channel, after `scale`.
    - `layout`: "nchw" or "nhwc". By default the shape of the input decides.
    """

    pixels: Literal["rgb", "bgr", "gray"]
    resize: Annotated[tuple[int, ...], _size] = ()
    crop: Annotated[str | tuple[int, ...] | None, _crop] = None
    pad: Annotated[int | None, _byte] = None
    place: Literal["center", "start"] = "center"
    filter: Filter = "bilinear"
    antialias: bool = True
    scale: float | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    layout: ImageLayout = None


@dataclass(frozen=True, slots=True)
class Samples:
    """A sound of one channel.

    - `samples`: the model's rate, in samples per second.
    - `scale`: the factor of samples between -1 and 1.
    - `normalise`: True if a sound is to have the mean 0 and the variance 1 (wav2vec 2.0).
    """

    samples: Annotated[int, _rate]
    scale: float = 1.0
    normalise: bool = False


@dataclass(frozen=True, slots=True)
class Classes:
    """The most likely classes of an output [..., classes].

    - `topk`: the number of classes; 0 for all scores in the order of the classes.
    - `scores`: the function that gives scores: "softmax", "sigmoid" or "none".
    - `labels`: the names of the classes.
    """

    topk: int = 0
    scores: Literal["softmax", "sigmoid", "none"] = "softmax"
    labels: Annotated[tuple[str, ...], _labels] = ()


@dataclass(frozen=True, slots=True)
class Boxes:
    """The objects that an output [1, boxes, 4 + classes] lists, without objects that overlap a
    better object of their class.

    - `boxes`: the first four numbers: "xyxy" (corners), "xywh" (a corner and the size) or "cxcywh"
      (the centre and the size).
    - `unit`: "pixels" of the model's input, or "fraction" of its size.
    - `channels`: "last", or "first" for an output [1, 4 + classes, boxes].
    - `strides`: of a grid of cells for each box, in the order of the boxes (YOLOX). The numbers are
      then relative to the cell, and the size is a logarithm.
    - `objectness`: True if the fifth number says how likely it is that there is an object.
    - `classes`: the output [1, boxes, classes] of the scores, if it is another output.
    - `activation`: the function that gives scores: "none", "sigmoid", or "softmax", whose last
      class is no object (DETR).
    - `threshold`: the least score. `overlap`: the largest intersection over union with a better
      box of the class; 1 for any. `max`: the most boxes.
    - `input`: the input of pixels; by default the only one.
    - `labels`: the names of the classes.
    """

    boxes: Literal["xyxy", "xywh", "cxcywh"]
    unit: Literal["pixels", "fraction"] = "pixels"
    channels: Literal["last", "first"] = "last"
    strides: Annotated[tuple[int, ...], _strides] = ()
    objectness: bool = False
    classes: str = ""
    activation: Activation = "none"
    threshold: float = 0.25
    overlap: float = 0.45
    max: int = 100
    input: str = ""
    labels: Annotated[tuple[str, ...], _labels] = ()


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of an output of scores [batch, time, classes] by connectionist temporal
    classification (CTC): the best class of each time step, without repetitions and blanks.

    - `ctc`: True.
    - `blank`: the number of the class that separates labels.
    - `axes`: the order of the output's axes: "btc" is batch, time, classes. An output of two axes
      has no batch.
    - `scores`: the function that gives scores: "softmax", "sigmoid" or "none".
    - `labels`: the text of each class, or of each class but the blank.
    - `space`: a text in labels that stands for a space, such as "|".
    - `skip`: labels that are not part of the text, such as "<s>".
    """

    ctc: Annotated[bool, _mark]
    blank: int = 0
    axes: Literal["btc", "tbc", "bct"] = "btc"
    scores: Literal["softmax", "sigmoid", "none"] = "softmax"
    labels: Annotated[tuple[str, ...], _labels] = ()
    space: str = ""
    skip: tuple[str, ...] = ()

    @property
    def axis(self) -> int:
        """The axis of the classes."""
        return -2 if self.axes == "bct" else -1


@dataclass(frozen=True, slots=True)
class Mask:
    """The foreground of a picture by an output [1, classes, height, width] of scores.

    - `alpha`: True.
    - `activation`: the function that gives scores between 0 and 1: "none", "sigmoid", or "softmax"
      over classes.
    - `foreground`: the classes of the foreground, whose scores are added. An output of one class
      needs none.
    - `threshold`: the least score of the foreground, which is then opaque. By default, the score is
      the opacity.
    - `result`: "alpha" for the opacity of each pixel, or "pixels" for the picture with it.
    - `filter`, `antialias`: how the mask is resized to the picture, as in Pillow.
    - `layout`: "nchw" or "nhwc". By default the shape of the output decides.
    - `input`: the input of pixels; by default the only one.
    """

    alpha: Annotated[bool, _mark]
    activation: Activation = "none"
    foreground: tuple[int, ...] = ()
    threshold: float | None = None
    result: Literal["alpha", "pixels"] = "alpha"
    filter: Filter = "bilinear"
    antialias: bool = True
    layout: ImageLayout = None
    input: str = ""


Record = TypeVar("Record", Pixels, Samples, Classes, Boxes, Transcript, Mask)
OutputOptions = Classes | Boxes | Transcript | Mask


def read_input(name: str, options: str | Mapping[str, Any]) -> Pixels | Samples:
    """The options of an input. Raises `InputError`."""
    values = _values(name, options)
    if "samples" in values:
        return _record(name, Samples, values)
    if "pixels" not in values:
        raise InputError(
            f"input {name!r}: say what it is: pixels=rgb, pixels=bgr or pixels=gray; or "
            "samples=16000 for a sound"
        )
    return _record(name, Pixels, values)


def read_output(name: str, options: str | Mapping[str, Any]) -> OutputOptions:
    """The options of an output. Raises `InputError`."""
    values = _values(name, options)
    if "boxes" in values:
        return _record(name, Boxes, values)
    if "ctc" in values:
        return _record(name, Transcript, values)
    if "alpha" in values:
        return _record(name, Mask, values)
    return _record(name, Classes, values)


def read_texts(option: str, texts: list[str]) -> dict[str, str]:
    """The options of a command line, `NAME:OPTIONS`. The name may hold colons itself."""
    result = {}
    for text in texts:
        name, colon, options = text.rpartition(":")
        if not colon or not name:
            raise InputError(
                f"{option} {text!r}: write NAME:OPTIONS, for instance {option} "
                + ("image:pixels=rgb,resize=224" if option == "--input" else "logits:topk=5")
            )
        result[name] = options
    return result


def _values(name: str, options: str | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(options, str):
        return dict(options)
    values: dict[str, Any] = {}
    for part in re.split(r",(?![^\[]*\])", options):
        key, equals, value = (text.strip() for text in part.partition("="))
        if not equals and key not in _FLAGS:
            raise InputError(f"{name!r}: {part!r} is no option; write key=value")
        values[key] = value if equals else True
    return values


def _record(name: str, kind: type[Record], values: Mapping[str, Any]) -> Record:
    readers, read = _readers(kind), {}
    for key, value in values.items():
        if key not in readers:
            raise InputError(f"{name!r}: no option {key!r}; there are {', '.join(readers)}")
        reader, choices = readers[key]
        try:
            read[key] = reader(value)
        except (ValueError, TypeError, LookupError, ZeroDivisionError, OSError) as error:
            raise InputError(f"{name!r}: {key}={value}: {error}") from None
        if choices and read[key] not in choices:
            raise InputError(f"{name!r}: {key} is {' or '.join(choices)}, not {value!r}")
    return kind(**read)


def _readers(kind: type[Record]) -> dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]]:
    """The function that reads each option of a kind, and the choices. An option has the function in
    its annotation, or the function of its type.
    """
    readers = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        type_ = get_args(hint)[0] if type(None) in get_args(hint) else hint
        is_choice, is_annotated = (get_origin(type_) is form for form in (Literal, Annotated))
        reader = get_args(type_)[1] if is_annotated else str if is_choice else _BY_TYPE[type_]
        readers[name] = (reader, get_args(type_) if is_choice else ())
    return readers


def _number(value: Any) -> float:
    return float(Fraction(value)) if isinstance(value, str) else float(value)


def _count(value: Any) -> int:
    count = int(value)
    if count < 0:
        raise ValueError("it is at least 0")
    return count


def _counts(value: Any) -> tuple[int, ...]:
    return tuple(map(_count, _items(value)))


def _rate(value: Any) -> int:
    rate = int(value)
    if rate < 1:
        raise ValueError("it is a number of samples per second, such as 16000")
    return rate


def _byte(value: Any) -> int:
    byte = int(value)
    if not 0 <= byte <= 255:
        raise ValueError("it is from 0 to 255")
    return byte


def _items(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        value = value.strip("[]").split(",")
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _numbers(value: Any) -> tuple[float, ...]:
    return tuple(map(_number, _items(value)))


def _size(value: Any) -> tuple[int, ...]:
    sizes = tuple(map(int, _items(value)))
    if not 1 <= len(sizes) <= 2 or min(sizes) < 1:
        raise ValueError("it is a size, or [height,width]")
    return sizes


def _strides(value: Any) -> tuple[int, ...]:
    strides = tuple(map(int, _items(value)))
    if not strides or min(strides) < 1:
        raise ValueError("it is a list of sizes, such as [8,16,32]")
    return strides


def _crop(value: Any) -> str | tuple[int, ...]:
    return "center" if value == "center" else _size(value)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, _items(value)))


def _flag(value: Any) -> bool:
    flags = {"true": True, "1": True, "false": False, "0": False}
    if str(value).lower() not in flags:
        raise ValueError("it is true or false")
    return flags[str(value).lower()]


def _mark(value: Any) -> bool:
    """An option that says what kind of value there is, and nothing else."""
    if not _flag(value):
        raise ValueError("leave it out")
    return True


def _labels(value: Any) -> tuple[str, ...]:
    """Labels: a list; a file with one label a line; or JSON: a list, a model's configuration, or
    the number of each label, as in `vocab.json`.
    """
    if isinstance(value, list | tuple):
        return tuple(map(str, value))
    text = Path(value).read_text("utf-8")
    if not str(value).endswith(".json"):
        return tuple(text.splitlines())
    labels = json.loads(text)
    labels = labels.get("id2label", labels) if isinstance(labels, dict) else labels
    if not isinstance(labels, dict):
        return tuple(map(str, labels))
    if all(isinstance(number, int) for number in labels.values()):
        labels = {str(number): label for label, number in labels.items()}
    return tuple(str(labels[str(i)]) for i in range(len(labels)))


_BY_TYPE: dict[Any, Callable[[Any], Any]] = {
    str: str,
    bool: _flag,
    int: _count,
    float: _number,
    tuple[int, ...]: _counts,
    tuple[float, ...]: _numbers,
    tuple[str, ...]: _texts,
}
"""The function that reads an option of each type, unless its annotation names another one."""
_FLAGS = frozenset(
    name
    for kind in Record.__constraints__
    for name, (reader, _) in _readers(kind).items()
    if reader in (_flag, _mark)
)
"""The options that may stand without a value."""
