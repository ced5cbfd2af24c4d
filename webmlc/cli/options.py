"""The options and arguments that several commands share, and the functions that read them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from webmlc.build_options import MODEL, PACKAGE, PAGE, SPEED


class AdapterChoice(StrEnum):
    """The adapters that schedules are searched for (`core.machine.PLAIN_ADAPTERS`)."""

    gpu = "gpu"
    software = "software"


class BuildAdapterChoice(StrEnum):
    """The adapters that a package has shaders for: one kind of adapter, or all kinds."""

    gpu = "gpu"
    software = "software"
    all = "all"


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
Dimensions = Annotated[
    list[str],
    typer.Option(
        "--dim",
        help="Size of a symbolic dimension, as NAME=SIZE (repeatable). "
        "Default: 1, or the least power of 2 that the model accepts.",
        rich_help_panel=MODEL,
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
