"""The options of a build, written once.

In: the keywords of `webmlc.build`, or the options of the command line. Out: one record, which the
compiler, the cache of packages (`cached_build`) and the report take whole. A new option is a field
here: the commands offer every field that has a `CommandOption` (`cli.spread`). Other records of
options have such fields, too (`host.check_options`, `tune.options`).

    >>> BuildOptions("wasm", quantise="int8", jobs=4).deciding()["quantise"]
    'int8'

This module imports nothing of the compiler: the command line looks for a package in the cache
before it imports the compiler.
"""

# ruff: noqa: RUF009  # `option` returns a field, as `dataclasses.field` does

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import partial, update_wrapper
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

from webmlc.core.errors import UserError

if TYPE_CHECKING:
    from webmlc.core.machine import Device
    from webmlc.core.stages import Watcher
    from webmlc.frontend.bind_constants import Constants
    from webmlc.graph.ops.operator import Operator
    from webmlc.graph.quantise.quantise_weights import Quantisation
    from webmlc.graph.typed.options import ValueOptions
    from webmlc.schedule.rules import Chooser


class HasRow(Protocol):
    """An operator of one's own (`programs.operators`): a row of the operator table."""

    @property
    def row(self) -> Operator: ...


TargetName = Literal["wasm", "webgpu", "both"]
DeviceName = Literal["wasm", "webgpu"]
StateMode = Literal["auto", "off"]
AdapterName = Literal["gpu", "software", "all"]


PACKAGE, MODEL, PAGE = "The package", "The model", "What the page has and shows"
PRECISION, SPEED = "Precision", "Speed"
"""The groups of options in a command's help. Options of the command itself are in none."""


@dataclass(frozen=True, slots=True)
class CommandOption:
    """The option of the command line for a field.

    - `help`, `panel`: the text of the option, and its group.
    - `flag`: the name of the option, if it differs from the field's name; several after a space.
    - `least`: the least number.
    - `shown`: the default that the help shows.
    - `kind`: the type of the option's value.
    - `read`: converts the option's value, unless it is `None`, to the field's value. The option
      then has its own `default`.
    - `metavar`: the name of the value in the help.
    """

    help: str
    panel: str | None = None
    flag: str = ""
    least: int | None = None
    shown: bool | str = True
    kind: Any = bool
    read: Callable[[Any], Any] | None = None
    default: Any = None
    metavar: str | None = None


def option(default: Any, command: CommandOption | None = None, *, decides: bool = True) -> Any:
    """A field of a record of options. If a field of `BuildOptions` `decides`, it may change the
    bytes of the package of a model in a file, and is part of the key under which the cache keeps
    the package.
    """
    return field(default=default, metadata={"command": command, "decides": decides})


def constants_of(texts: list[str]) -> Constants:
    """Read the texts of --constant. The frontend is imported only if there are texts."""
    if not texts:
        return {}
    from webmlc.frontend.bind_constants import read_constants

    return read_constants(texts)


CONSTANTS = CommandOption(
    "An input to build in, as NAME=VALUE (sr=16000, axes=[1,2]) or NAME=FILE.npy (repeatable).",
    MODEL,
    "--constant",
    kind=list[str],
    default=[],
    read=constants_of,
)
"""The option for inputs that become constants."""


def dimensions(texts: list[str]) -> dict[str, int]:
    """The sizes of `--dim NAME=SIZE`. Raises `UserError` for another form."""
    sizes = {}
    for text in texts:
        name, _, size = text.partition("=")
        if not size.isdecimal():
            raise UserError(f"--dim {text!r}: write NAME=SIZE, for instance --dim batch=8")
        sizes[name] = int(size)
    return sizes


def value_options(flag: str, texts: list[str]) -> ValueOptions:
    """Read the texts of --input or --output. The graph stage is imported only for some texts."""
    if not texts:
        return {}
    from webmlc.graph.typed.options import read_texts

    return read_texts(flag, texts)


def operators_of(texts: list[str]) -> Sequence[HasRow]:
    """Load the operators of --operators: FILE.py, MODULE or MODULE:NAME. Without a name, these are
    all operators of the module. Python finds a module in the current folder, too.

    Raises `UserError` for a module that cannot be loaded, or that has no such operator.
    """
    operators = (_operators_in(text) for text in texts)
    return tuple(dict.fromkeys(operator for group in operators for operator in group))


def _operators_in(text: str) -> list[HasRow]:
    from webmlc.graph.ops.operator import Operator

    place, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        place, name = text, ""
    module = _loaded(place, text)
    names = [name] if name else list(vars(module))
    values: list[Any] = [getattr(module, name, None) for name in names]
    operators = [value for value in values if isinstance(getattr(value, "row", None), Operator)]
    if not operators:
        part = f"no operator {name}" if name else "no operator"
        raise UserError(
            f"--operators {text}: the module has {part}. Write @webmlc.operator(domain, name) "
            "above a function (docs/programs.md)"
        )
    return operators


def _loaded(place: str, text: str) -> ModuleType:
    """The module in a file of Python, or of a name."""
    path = Path(place)
    try:
        if path.suffix != ".py":
            sys.path.insert(0, os.getcwd())
            try:
                return importlib.import_module(place)
            finally:
                sys.path.remove(os.getcwd())
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)  # classes of data look for their module
        spec.loader.exec_module(module)
        return module
    except Exception as error:
        kind = type(error).__name__
        raise UserError(f"--operators {text} cannot be loaded: {kind}: {error}") from error


OPERATORS = CommandOption(
    "Operators of your own, as FILE.py, MODULE or MODULE:NAME (repeatable). Python runs this code: "
    "name only modules that you trust.",
    MODEL,
    "--operators",
    kind=list[str],
    default=[],
    read=operators_of,
)
"""The option for operators of people's own."""


def processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of a build. The same model and options give the same bytes.

    - `target`: the devices to compile for: "wasm", "webgpu" or "both".
    - `constants`: inputs that become constants, and that leave the signature. Integers and booleans
      must fit the input's type exactly; floats are rounded to it.
    - `dims`: sizes of symbolic dimensions, by their names. The dimensions become numbers, and the
      package runs no other sizes. A dimension without a name gets the name that `Model.inputs`
      shows: `x_0` is the first dimension of input `x`.
    - `inputs`, `outputs`: steps before and after the model that are compiled into the package, such
      as resizing an image and ranking classes (`graph.typed.options`).
    - `tokenizer`: the `tokenizer.json` of a model of texts.
    - `emit_text`: also write the code as text.
    - `exact`: products of block-quantised weights compute with float32 activations, not with int8
      activations. The keys and values that a session keeps are float32, not bfloat16.
    - `state`: with "auto", pairs of a past and a present become states of sessions, which grow in
      place or are replaced; with "off" they stay inputs and outputs.
    - `quantise`: quantise float weights in blocks, to "int8" or "int4".
      `host.quantisation_loss` measures the loss.
    - `context`: the most tokens of a language model in a GGUF file.
    - `adapter`: the adapters for which the shaders are fast: "gpu" or "software". The shaders run
      on both. With "all", the package has both variants, and variants for GPUs with more features
      (`core.machine.ADAPTERS`); `load` chooses a variant.
    - `operators`: operators of one's own that the model has (`programs.operators`).
    - `algorithms`: the algorithms that a device uses for some layers (`Target.alternatives`).
    - `choose`: chooses the schedule of each kernel. The default is each kernel's default schedule.
    - `example_inputs`: tensors for a module of PyTorch, arrays or shapes for a function of JAX:
      such modules and functions do not describe their inputs. `dynamic_shapes` names their symbolic
      dimensions, as in `{"image": {0: "batch"}}`.
    - `output_names`: a name for each output of a model of another framework, in their order.
    - `signature`: the signature of a TensorFlow Lite file that is built; the first by default. In a
      bundle (`.task`), the file that is built.
    - `force`: replace files in the package's folder that no build wrote.
    - `on_stage`: receives the result of every step. A package from the cache has no stages. A
      kernel from the cache has one stage, its code.
    - `progress`: show the current step on standard error, if that is a terminal.
    - `jobs`: the most processes that compile kernels. A process that does not start as a fork of
      this process first imports the script of this process. The script must therefore guard its own
      work with `if __name__ == "__main__"`.
    - `cache`: reuse the package of an unchanged model in a file, or the kernels of any other model.
    """

    target: TargetName = option(
        "both", CommandOption("What to compile for.", PACKAGE, kind=TargetName)
    )
    _: KW_ONLY
    constants: Constants | None = option(None, CONSTANTS)
    dims: Mapping[str, int] | None = option(
        None,
        CommandOption(
            "Fix a symbolic dimension in the package, as NAME=SIZE (batch=1, repeatable). The "
            "package runs no other size of it. Default: any size.",
            flag="--dim",
            kind=list[str],
            default=[],
            read=dimensions,
        ),
    )
    inputs: ValueOptions | None = option(
        None,
        CommandOption(
            "What the page has for an input, as NAME:OPTIONS "
            "(image:pixels=rgb,resize=256,crop=center; audio:samples=16000). See docs/pictures.md "
            "(repeatable).",
            PAGE,
            "--input",
            kind=list[str],
            default=[],
            read=partial(value_options, "--input"),
        ),
    )
    outputs: ValueOptions | None = option(
        None,
        CommandOption(
            "What the page shows of an output, as NAME:OPTIONS "
            "(logits:topk=5,labels=labels.txt; logits:ctc,labels=vocab.json; mask:alpha). See "
            "docs/pictures.md (repeatable).",
            PAGE,
            "--output",
            kind=list[str],
            default=[],
            read=partial(value_options, "--output"),
        ),
    )
    tokenizer: str | Path | None = option(
        None,
        CommandOption(
            "The tokenizer.json of a model of texts.", PAGE, shown=False, kind=Path | None
        ),
    )
    emit_text: bool = option(False, CommandOption("Also write the code as text.", PACKAGE))
    exact: bool = option(
        False,
        CommandOption(
            "Multiply weights of a few bits by float32 activations, not by int8, and keep the "
            "keys and values of a session in float32, not in bfloat16: slower.",
            PRECISION,
            "--exact",
        ),
    )
    state: StateMode = option(
        "auto",
        CommandOption(
            "Keep pasts and recurrent states in sessions, or leave them inputs and outputs.",
            MODEL,
            kind=StateMode,
        ),
    )
    quantise: Quantisation | None = option(
        None,
        CommandOption(
            "Quantise the weights of products and embeddings in blocks. Reports the loss.",
            PRECISION,
            shown=False,
            kind=Literal["int4", "int8"] | None,
        ),
    )
    context: int | None = option(
        None,
        CommandOption(
            "The most tokens of a language model.",
            MODEL,
            least=2,
            shown="as it was trained",
            kind=int | None,
        ),
    )
    signature: str | None = option(
        None,
        CommandOption(
            "The signature of a TensorFlow Lite file, or the file of a bundle (.task).",
            MODEL,
            shown="the first",
            kind=str | None,
        ),
    )
    adapter: AdapterName = option(
        "gpu",
        CommandOption(
            "Make the shaders fast on GPUs, or on software adapters such as SwiftShader. With "
            "all, the package has variants for both, and for GPUs with more features: a page "
            "downloads the one for its adapter.",
            SPEED,
            kind=AdapterName,
        ),
    )
    operators: Sequence[HasRow] = option((), OPERATORS, decides=False)
    algorithms: Mapping[Device, Mapping[str, str]] | None = None
    output_names: Sequence[str] | None = None
    choose: Chooser | None = option(None, decides=False)
    example_inputs: Any = option(None, decides=False)
    dynamic_shapes: Any = option(None, decides=False)
    force: bool = option(
        False,
        CommandOption("Replace files that no build of webmlc wrote.", PACKAGE, "--force"),
        decides=False,
    )
    on_stage: Watcher | None = option(None, decides=False)
    progress: bool = option(True, decides=False)
    jobs: int = option(
        1,
        CommandOption(
            "Processes that compile kernels. 0 means as many as there are processors. A small "
            "model needs one only.",
            least=0,
            kind=int,
            default=0,
            read=lambda jobs: jobs or processors(),
        ),
        decides=False,
    )
    cache: bool = option(
        True,
        CommandOption(
            "Compile everything again, and keep nothing for later builds (webmlc cache).",
            flag="--no-cache",
            default=False,
            read=lambda is_refused: not is_refused,
        ),
        decides=False,
    )

    @property
    def keeps_package(self) -> bool:
        """True if the cache may hold the package. It may not if a function chooses the schedules,
        if examples describe the inputs, if values are typed, or if the build has operators of its
        own: the key covers no files of labels and no functions.
        """
        is_described = self.example_inputs is not None or self.dynamic_shapes is not None
        is_plain = not (self.inputs or self.outputs or is_described)
        return self.cache and self.choose is None and not self.operators and is_plain

    def deciding(self) -> dict[str, Any]:
        """The options that decide the bytes of a package, by name. An empty mapping is given as
        `None`. The tokenizer is a `Path`.
        """
        names = [f.name for f in fields(self) if f.metadata.get("decides", True)]
        values = {name: getattr(self, name) for name in names}
        if self.tokenizer is not None:
            values["tokenizer"] = Path(self.tokenizer)
        return {n: v or None if isinstance(v, Mapping) else v for n, v in values.items()}


DEFAULTS = BuildOptions()
"""The default options of a build."""


P = ParamSpec("P")
S = TypeVar("S")
R = TypeVar("R")
Build = Callable[[S, str | Path, BuildOptions], R]
Keywords = Callable[Concatenate[S, str | Path, P], R]
"""A build whose options are keywords."""


def with_keywords(
    options: Callable[P, BuildOptions],
) -> Callable[[Build[S, R]], Keywords[S, P, R]]:
    """A decorator of a build that takes the fields of its options as arguments instead."""

    def decorate(build_with: Build[S, R]) -> Keywords[S, P, R]:
        def build(model: S, out: str | Path, *arguments: P.args, **keywords: P.kwargs) -> R:
            return build_with(model, out, options(*arguments, **keywords))

        of_model = list(inspect.signature(build_with).parameters.values())[:2]
        of_options = inspect.signature(options).parameters.values()
        update_wrapper(build, build_with)
        build.__signature__ = inspect.Signature([*of_model, *of_options])  # type: ignore[attr-defined]
        return build  # type: ignore[return-value]  # callers may name `model` and `out`, too

    return decorate
