"""The options of a build, written once.

In: the keywords of `webmlc.build`, or the options of the command line. Out: one record, which the
compiler, the cache of packages (`cached_build`) and the report take whole. A new option is a field
here, and a parameter of the commands that offer it.

    >>> BuildOptions("wasm", quantise="int8", jobs=4).deciding()["quantise"]
    'int8'

This module imports nothing of the compiler: the command line looks for a package in the cache
before it imports the compiler.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

if TYPE_CHECKING:
    from webmlc.core.machine import Device
    from webmlc.core.stages import Watcher
    from webmlc.frontend.bind_constants import Constants
    from webmlc.graph.quantise.quantise_weights import Quantisation
    from webmlc.graph.typed.options import ValueOptions
    from webmlc.schedule.rules import Chooser

TargetName = Literal["wasm", "webgpu", "both"]
StateMode = Literal["auto", "off"]
AdapterName = Literal["gpu", "software", "all"]


ASIDE = {"decides": False}
"""The metadata of a field that does not decide the package of a model in a file, so that it is no
part of the key under which the cache keeps the package.
"""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of a build. The same model and options give the same bytes.

    - `target`: what to compile for: "wasm", "webgpu" or "both".
    - `constants`: inputs that become constants, and that leave the signature. Integers and booleans
      must fit the input's type exactly; floats are rounded to it.
    - `dims`: sizes of symbolic dimensions, by their names, which become numbers. The package runs
      no other sizes. A dimension without a name has one that `Model.inputs` shows: `x_0` is the
      first of input `x`.
    - `inputs`, `outputs`: what is before and behind the model, to be compiled into the package,
      such as resizing an image and ranking classes (`graph.typed.options`).
    - `tokenizer`: the `tokenizer.json` of a model of texts.
    - `emit_text`: also write the code as text.
    - `exact`: products of block-quantised weights compute with float32 activations, not with int8
      ones, and the keys and values that a session keeps are float32, not bfloat16.
    - `state`: with "auto", pairs of a past and a present become states of sessions, which grow in
      place or are replaced; with "off" they stay inputs and outputs.
    - `quantise`: quantise float weights in blocks, to "int8" or "int4".
      `host.quantisation_loss` measures what that changes.
    - `context`: the most tokens of a language model in a GGUF file.
    - `adapter`: what the shaders are made fast for: a "gpu", or an adapter of "software". They run
      on both. With "all", the package has both variants, and those for GPUs with more features
      (`core.machine.ADAPTERS`); `load` chooses.
    - `algorithms`: what a device does for some layers (`Target.alternatives`).
    - `choose`: chooses the schedule of each kernel; without it, each has its default.
    - `example_inputs`: tensors for a module of PyTorch, arrays or shapes for a function of JAX,
      which do not say their inputs. `dynamic_shapes` names their symbolic dimensions, as in
      `{"image": {0: "batch"}}`.
    - `output_names`: a name for each output of a model of another framework, in their order.
    - `force`: replace files in the package's folder that no build wrote.
    - `on_stage`: receives the result of every step. A package of the cache has no stages; kernels
      of the cache have one each, their code.
    - `progress`: show the current step on standard error, if that is a terminal.
    - `jobs`: the most processes that compile kernels. Where a process does not start as a fork of
      this one, it imports the script of this process first, which therefore must guard its own work
      with `if __name__ == "__main__"`.
    - `cache`: reuse the package of an unchanged model in a file, or the kernels of any other.
    """

    target: TargetName = "both"
    _: KW_ONLY
    constants: Constants | None = None
    dims: Mapping[str, int] | None = None
    inputs: ValueOptions | None = None
    outputs: ValueOptions | None = None
    tokenizer: str | Path | None = None
    emit_text: bool = False
    exact: bool = False
    state: StateMode = "auto"
    quantise: Quantisation | None = None
    context: int | None = None
    adapter: AdapterName = "gpu"
    algorithms: Mapping[Device, Mapping[str, str]] | None = None
    output_names: Sequence[str] | None = None
    choose: Chooser | None = field(default=None, metadata=ASIDE)
    example_inputs: Any = field(default=None, metadata=ASIDE)
    dynamic_shapes: Any = field(default=None, metadata=ASIDE)
    force: bool = field(default=False, metadata=ASIDE)
    on_stage: Watcher | None = field(default=None, metadata=ASIDE)
    progress: bool = field(default=True, metadata=ASIDE)
    jobs: int = field(default=1, metadata=ASIDE)
    cache: bool = field(default=True, metadata=ASIDE)

    @property
    def keeps_package(self) -> bool:
        """True if the cache may hold the package: not if a function chooses its schedules, if an
        example says its inputs, or if it has typed values, whose labels are files that the key does
        not cover.
        """
        is_described = self.example_inputs is not None or self.dynamic_shapes is not None
        is_plain = not (self.inputs or self.outputs or is_described)
        return self.cache and self.choose is None and is_plain

    def deciding(self) -> dict[str, Any]:
        """The options that decide the bytes of a package, by name. No mapping is empty: it is
        `None`. The tokenizer is a `Path`.
        """
        names = [f.name for f in fields(self) if f.metadata.get("decides", True)]
        values = {name: getattr(self, name) for name in names}
        if self.tokenizer is not None:
            values["tokenizer"] = Path(self.tokenizer)
        return {n: v or None if isinstance(v, Mapping) else v for n, v in values.items()}


DEFAULTS = BuildOptions()
"""The options of a build that nobody chose."""


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
