"""Try a model: load or build it, make its inputs, time its runs, sum up its outputs.

In: a package or a model file; arrays in a `.npz` file. Out: a loaded `Model`, its inputs, and rows
that print as a table or as JSON. The command line and the comparison of devices use it.

    rows = time_runs(model, {"batch": 8}, runs=10)
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from webmlc.build_options import BuildOptions
from webmlc.core.errors import InputError
from webmlc.core.replace_file import replace_file
from webmlc.host.load import Model, load
from webmlc.host.model_port import inputs_without_session
from webmlc.package.manifest import MANIFEST, AnyPort, TextPort
from webmlc.package.manifest_examples import manifest_examples
from webmlc.package.sizes import evaluate, symbols_of

Array = NDArray[Any]
MOST_WORDS = 4
"""The most words of a random text (chosen by hand)."""
SHOWN_TEXTS = 4
"""The texts of an output that a summary shows."""
NUMBERS = ("min", "mean", "max")
"""The headings of numbers in a summary."""
Row = dict[str, Any]


Build = Callable[[Path, Path, BuildOptions], object]
"""A function that builds a model into a folder: `compile.build_package`."""


@contextmanager
def load_any(
    path: Path,
    device: Literal["wasm", "webgpu"],
    threads: int,
    build: Build,
    options: BuildOptions,
) -> Iterator[Model]:
    """Load a package, or a model file that `build` compiles first with these options."""
    is_package = (path / MANIFEST).is_file()
    if options.constants and is_package:
        raise InputError(
            f"{path} is a package: its inputs cannot become constants any more; build it again "
            "with --constant"
        )
    if (options.inputs or options.outputs) and is_package:
        raise InputError(
            f"{path} is a package: its types of inputs and outputs were chosen when it was built; "
            "build it again with --input and --output"
        )
    if options.operators and is_package:
        raise InputError(
            f"{path} is a package: it has its operators; build it again with --operators"
        )
    with tempfile.TemporaryDirectory(prefix="webmlc-") as scratch:
        folder = path
        if not is_package:
            folder = Path(scratch) / path.stem
            build(path, folder, replace(options, target=device))
        model = load(folder, device, threads)
        try:
            yield model
        finally:
            model.dispose()


def random_inputs(
    model: Model, sizes: Mapping[str, int], seed: int, arrays: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Generate random inputs, except for the inputs in `arrays`. The sizes of symbolic dimensions
    come from the arrays, from `sizes`, or from `example_sizes`.

    Texts are up to `MOST_WORDS` words of the model, or question marks. Floats are normally
    distributed. Integers are small and not negative. Inputs with "mask" or "type" in their names
    are 0 or 1. Inputs with "length" in their names are the largest symbolic dimension, because they
    count all elements. Raises `InputError` if `sizes` names a dimension that the model lacks.
    """
    generator, ports, given = (
        np.random.default_rng(seed),
        inputs_without_session(model.manifest),
        dict(arrays or {}),
    )
    symbols = {name for port in ports for name in symbols_of(port.shape)}
    sizes = {**_sizes_of_arrays(ports, given), **sizes}
    values = manifest_examples(model.manifest, symbols, sizes)
    inputs = {port.name: _random_array(model, port, values, generator) for port in ports}
    return inputs | given


def _random_array(
    model: Model, port: AnyPort, sizes: Mapping[str, int], generator: np.random.Generator
) -> Array:
    shape = tuple(evaluate(size, sizes) for size in port.shape)
    if isinstance(port, TextPort):
        words = [*model.words, "?"]
        texts = [" ".join(generator.choice(words, count)) for count in
                 generator.integers(1, MOST_WORDS, prod(shape), endpoint=True)]  # fmt: skip
        return np.array(texts, object).reshape(shape)
    if "length" in port.name and not port.dtype.is_float:
        return np.full(shape, max(sizes.values(), default=1), port.dtype.numpy)
    is_binary = "mask" in port.name or "type" in port.name
    return port.dtype.random(generator, shape, below=2 if is_binary else 10)


def read_inputs(
    model: Model,
    path: Path | None,
    sizes: Mapping[str, int],
    seed: int,
    texts: Sequence[str] = (),
) -> dict[str, Array]:
    """Read the arrays of a `.npz` file, and `texts` in the form NAME=TEXT. Other inputs are random.
    A run checks ranks and shapes.
    """
    arrays = {} if path is None else read_arrays(path)
    return random_inputs(model, sizes, seed, arrays | _text_arrays(model, texts))


def _text_arrays(model: Model, texts: Sequence[str]) -> dict[str, Array]:
    """The texts of each input as an array. Raises `InputError` for an input that takes none."""
    ports = {p.name: p for p in model.manifest.model_inputs if isinstance(p, TextPort)}
    lists: dict[str, list[str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in ports:
            takes = ", ".join(map(repr, ports)) or "none"
            raise InputError(f"--text {text!r}: write NAME=TEXT; inputs that take texts: {takes}")
        lists.setdefault(name, []).append(value)
    arrays = {}
    for name, values in lists.items():
        shape = [size if isinstance(size, int) else -1 for size in ports[name].shape]
        if shape.count(-1) > 1 or (-1 not in shape and prod(shape) != len(values)):
            raise InputError(f"--text {name}: {len(values)} texts for {ports[name].shape}")
        arrays[name] = np.array(values, object).reshape(shape)
    return arrays


@contextmanager
def suggest_options(options: str, is_chosen: bool) -> Iterator[None]:
    """Add to an `InputError` the options that choose the inputs, unless the user has chosen."""
    try:
        yield
    except InputError as error:
        if is_chosen:
            raise
        raise InputError(
            f"{error}\nThe inputs are examples; choose others with {options}"
        ) from error


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of a `.npz` file, by name."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        loaded = np.load(path)
        if isinstance(loaded, np.ndarray):
            raise InputError(f"{path}: an array without a name; write np.savez(path, NAME=array)")
        with loaded as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise InputError(f"{path}: not a readable .npz file of named arrays") from error


def _sizes_of_arrays(ports: Sequence[AnyPort], arrays: Mapping[str, Array]) -> dict[str, int]:
    """The sizes of the symbolic dimensions of some inputs."""
    return {
        dimension: size
        for port in ports
        if port.name in arrays
        for dimension, size in zip(port.shape, arrays[port.name].shape, strict=False)
        if isinstance(dimension, str)
    }


def write_outputs(path: Path, outputs: Mapping[str, Array]) -> None:
    """Write the outputs as a `.npz` file."""
    arrays: dict[str, Any] = {
        name: array.astype(str) if array.dtype == object else array
        for name, array in outputs.items()
    }
    file = BytesIO()
    np.savez(file, **arrays)
    replace_file(path, file.getvalue())


def summarise(outputs: Mapping[str, Array]) -> list[Row]:
    """Build a row per output: type, shape, and its least, mean and largest element or its first
    texts.
    """
    rows: list[Row] = []
    has_texts = any(array.dtype == object for array in outputs.values())
    for name, array in outputs.items():
        if array.dtype == object:
            texts = ", ".join(map(str, array.reshape(-1)[:SHOWN_TEXTS]))
            type_ = f"str[{', '.join(map(str, array.shape))}]"
            rows.append(
                {"output": name, "type": type_, **dict.fromkeys(NUMBERS, ""), "texts": texts}
            )
            continue
        numbers = array.astype(np.float64) if array.size else np.zeros(1)
        rows.append(
            {
                "output": name,
                "type": f"{array.dtype}[{', '.join(map(str, array.shape))}]",
                "min": float(numbers.min()),
                "mean": float(numbers.mean()),
                "max": float(numbers.max()),
                **({"texts": ""} if has_texts else {}),
            }
        )
    return rows


def time_runs(model: Model, sizes: Mapping[str, int], runs: int) -> list[Row]:
    """Measure the milliseconds of whole runs, after a first run that does not count."""
    inputs = random_inputs(model, sizes, 0)
    model.run(inputs)
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        model.run(inputs)
        times.append(1e3 * (time.perf_counter() - start))
    return [
        {
            "runs": runs,
            "min ms": min(times),
            "median ms": statistics.median(times),
            "max ms": max(times),
        }
    ]


def time_kernels(model: Model, sizes: Mapping[str, int], runs: int) -> list[Row]:
    """Measure the median milliseconds of each step, and list the slowest step first."""
    inputs = random_inputs(model, sizes, 0)
    profiles = [model.profile(inputs) for _ in range(runs)]
    rows = [
        {
            "kernel": steps[0].kernel,
            "device": str(steps[0].device),
            "median ms": 1e3 * statistics.median(s.seconds for s in steps),
            "nodes": ", ".join(steps[0].origin),
        }
        for steps in zip(*profiles, strict=True)
    ]
    return sorted(rows, key=lambda row: -float(row["median ms"]))
