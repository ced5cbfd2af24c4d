"""The options and arguments that several commands share, and how their texts are read."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from webmlc.core.errors import UserError

if TYPE_CHECKING:
    from webmlc.frontend.bind_constants import Constants


PACKAGE, MODEL, PAGE = "The package", "The model", "What the page has and shows"
PRECISION, SPEED = "Precision", "Speed"
"""The groups of options in a command's help. Options of the command itself are in none."""


class TargetChoice(StrEnum):
    """The targets to compile for."""

    wasm = "wasm"
    webgpu = "webgpu"
    both = "both"


class AdapterChoice(StrEnum):
    """The adapters that schedules are searched for (`core.machine.PLAIN_ADAPTERS`)."""

    gpu = "gpu"
    software = "software"


class BuildAdapterChoice(StrEnum):
    """The adapters that a package has shaders for: of one kind, or variants for all kinds."""

    gpu = "gpu"
    software = "software"
    all = "all"


class StateChoice(StrEnum):
    """What becomes of pairs of a past and a present, and of recurrent states."""

    auto = "auto"
    off = "off"


class QuantisationChoice(StrEnum):
    """What float weights become."""

    int4 = "int4"
    int8 = "int8"


class DeviceChoice(StrEnum):
    """The device to run on."""

    wasm = "wasm"
    webgpu = "webgpu"


Model = Annotated[
    Path,
    typer.Argument(
        help="An ONNX model, a language model in a GGUF file, or a model of PyTorch (.pt2), Keras "
        "(.keras) or TensorFlow (.tflite, or a SavedModel folder).",
        show_default=False,
    ),
]
PackageOrModel = Annotated[
    Path, typer.Argument(help="A package folder, or a model to build first.")
]
Target = Annotated[TargetChoice, typer.Option(help="What to compile for.", rich_help_panel=PACKAGE)]
Context = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="The most tokens of a language model.",
        show_default="as it was trained",
        rich_help_panel=MODEL,
    ),
]
SingleFile = Annotated[
    bool,
    typer.Option(
        "--single-file",
        help="Write one script with everything inside, for a small model. Its default name is "
        "build/<model>.js.",
        rich_help_panel=PACKAGE,
    ),
]
Device = Annotated[DeviceChoice, typer.Option(help="Where to run.")]
Adapter = Annotated[
    AdapterChoice,
    typer.Option(
        help="Search shaders that are fast on GPUs, or on a software adapter such as SwiftShader."
    ),
]
BuildAdapter = Annotated[
    BuildAdapterChoice,
    typer.Option(
        "--adapter",
        help="Make the shaders fast on GPUs, or on software adapters such as SwiftShader. With "
        "all, the package has variants for both, and for GPUs with more features: a page downloads "
        "the one for its adapter.",
        rich_help_panel=SPEED,
    ),
]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Compile everything again, and keep nothing for later builds (webmlc cache).",
    ),
]
Jobs = Annotated[
    int,
    typer.Option(
        min=0,
        help="Processes that compile kernels. 0 means as many as there are processors. A small "
        "model needs one only.",
    ),
]
Dimensions = Annotated[
    list[str],
    typer.Option(
        "--dim",
        help="Size of a symbolic dimension, as NAME=SIZE (repeatable). "
        "Default: 1, or the least power of 2 that the model accepts.",
        rich_help_panel=MODEL,
    ),
]
FixedDimensions = Annotated[
    list[str],
    typer.Option(
        "--dim",
        help="Fix a symbolic dimension in the package, as NAME=SIZE (batch=1, repeatable). The "
        "package runs no other size of it. Default: any size.",
    ),
]
ConstantInputs = Annotated[
    list[str],
    typer.Option(
        "--constant",
        help="An input to build in, as NAME=VALUE (sr=16000, axes=[1,2]) or NAME=FILE.npy "
        "(repeatable).",
        rich_help_panel=MODEL,
    ),
]
PageInputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        help="What the page has for an input, as NAME:OPTIONS "
        "(image:pixels=rgb,resize=256,crop=center; audio:samples=16000). See docs/pictures.md "
        "(repeatable).",
        rich_help_panel=PAGE,
    ),
]
PageOutputs = Annotated[
    list[str],
    typer.Option(
        "--output",
        help="What the page shows of an output, as NAME:OPTIONS "
        "(logits:topk=5,labels=labels.txt; logits:ctc,labels=vocab.json; mask:alpha). See "
        "docs/pictures.md (repeatable).",
        rich_help_panel=PAGE,
    ),
]
Tokenizer = Annotated[
    Path | None,
    typer.Option(
        help="The tokenizer.json of a model of texts.", show_default=False, rich_help_panel=PAGE
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the random inputs.")]
Inputs = Annotated[
    Path | None,
    typer.Option(
        help="A .npz file of inputs. Inputs that it does not contain are random, with the sizes of "
        "those that it contains."
    ),
]

Tuned = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|shipped",
        help="Use the schedules that `webmlc tune` kept in this file, or those that come with "
        "webmlc.",
        rich_help_panel=SPEED,
    ),
]
BuildPlatform = Annotated[
    str,
    typer.Option(
        "--platform",
        help="With --tuned: a part of the name of the platform to build for (webmlc tune --list).",
        show_default="this machine",
        rich_help_panel=SPEED,
    ),
]


def processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def dimensions(texts: list[str]) -> dict[str, int]:
    """The sizes of `--dim NAME=SIZE`. Raises `UserError` for another form."""
    sizes = {}
    for text in texts:
        name, _, size = text.partition("=")
        if not size.isdecimal():
            raise UserError(f"--dim {text!r}: write NAME=SIZE, for instance --dim batch=8")
        sizes[name] = int(size)
    return sizes


def constants_of(texts: list[str]) -> Constants:
    """Read the texts of --constant; without any, nothing of the frontend is imported."""
    if not texts:
        return {}
    from webmlc.frontend.bind_constants import read_constants

    return read_constants(texts)
