"""Check that the parts of a manifest refer to each other.

In: a `Manifest` whose fields have the right types. Out: nothing, or a `PackageError`:

    PackageError: manifest.json: the segments of programs.wasm miss steps
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from math import prod

from webmlc.core.dtypes import DType
from webmlc.core.errors import PackageError
from webmlc.core.machine import DEVICES
from webmlc.core.text_patterns import compiled_pattern
from webmlc.core.text_steps import CountGrams, Match, Tokenise, results, sources
from webmlc.package.manifest import (
    BeginList,
    Bind,
    Collect,
    Jump,
    JumpUnless,
    Manifest,
    Measure,
    Move,
    Program,
    Segment,
    Stack,
    Texts,
    read_by_host,
    written_by_host,
)
from webmlc.package.sizes import Size, from_size, symbols_of, without_names

LIMIT = 1 << 31
"""More than any number of an element."""


def check_manifest(manifest: Manifest) -> None:
    """Check that all names and numbers in use exist, because a manifest may have been edited.

    Raises `PackageError` for the first missing name or number.
    """
    for problem in _problems(manifest):
        raise PackageError(f"manifest.json: {problem}")


def _problems(manifest: Manifest) -> Iterator[str]:
    inputs = {port.name: port for port in manifest.inputs}
    outputs = {port.name for port in manifest.outputs}
    texts = manifest.texts
    if texts is not None:
        if not set(texts.feeds) <= inputs.keys() or not set(texts.reads) <= outputs:
            yield "texts.feeds or texts.reads names no port of the program"
        yield from _problems_of_texts(manifest, texts)
        outputs |= {port.name for port in texts.outputs}
    for size in _sizes(manifest):
        if isinstance(size, list):
            from_size(size)
    for name, parts in manifest.sequences.items():
        if unknown := sorted(set(parts or ()) - outputs):
            yield f"sequence {name} has no outputs {unknown}"
    ports_by_name = {port.name: port for port in manifest.outputs}
    if len({*manifest.shapes, *manifest.shapes.values()}) < 2 * len(manifest.shapes):
        yield "shapes names an output twice"
    for name, sizes in manifest.shapes.items():
        port, shape = ports_by_name.get(name), ports_by_name.get(sizes)
        if port is None or shape is None or shape.dtype is not DType.int64 or name == sizes:
            yield f"output {name} has no shape {sizes!r}"
        elif len(port.shape) != 1 or len(shape.shape) not in (1, 2):
            yield f"output {name} has no single axis, or its shape {sizes!r} more than two"
    for name, kind in manifest.typed.items():
        ports = {name} if kind.values is None else set(kind.values)
        if not (ports <= outputs or ports <= inputs.keys()):
            yield f"typed.{name} has no ports {sorted(ports)}"
        if kind.labels is not None and kind.labels not in manifest.files:
            yield f"typed.{name} has no file {kind.labels!r}"
    pairs = [(inputs.get(c.input), ports_by_name.get(c.output)) for c in manifest.carried]
    if pairs and manifest.states:
        yield "carried has values, beside states"
    for past, present in pairs:
        if past is None or present is None:
            yield "carried names no ports"
        elif (past.dtype, len(past.shape)) != (present.dtype, len(present.shape)):
            yield f"carried passes {present.name} to {past.name}, which has another type"
    if len({c.input for c in manifest.carried}) < len(pairs):
        yield "carried passes two outputs to one input"
    for symbol in manifest.symbols:
        if symbol.name in (manifest.length, manifest.capacity):
            continue
        port = inputs.get(symbol.input)
        if port is None or not 0 <= symbol.axis < len(port.shape):
            yield f"symbol {symbol.name} has no axis to be bound from"
    for file in manifest.weights:
        if file.path not in manifest.files:
            yield f"{file.path} has no hash"
    for device, program in manifest.programs.items():
        for problem in _problems_of(manifest, program):
            yield problem.replace("PROGRAM", f"programs.{device}")


def _problems_of_texts(manifest: Manifest, texts: Texts) -> Iterator[str]:
    """Describe each fault of the steps on texts."""
    grams = {step.grams for step in texts.before if isinstance(step, CountGrams)}
    if missing := sorted({texts.words, *grams} - manifest.files.keys()):
        yield f"texts has no files {missing}"
    if any(isinstance(step, CountGrams) for step in texts.after):
        yield "texts.after counts n-grams, which only steps before the program do"
    values = {port.name for port in texts.inputs} | texts.constants.keys()
    for steps, computed in ((texts.before, ()), (texts.after, texts.reads)):
        values |= set(computed)
        for step in steps:
            if not sources(step) or not values.issuperset(sources(step)):
                yield f"texts: a step reads {list(sources(step))}, which no step before it computes"
            values |= set(results(step))
            patterns = step.separators if isinstance(step, Tokenise) else ()
            if isinstance(step, Match | Tokenise):
                patterns += (step.pattern,)
            if not all(map(_is_pattern, patterns)):
                yield f"texts: a pattern of {step.result!r} is no regular expression"
        if steps is texts.before and not values.issuperset(texts.feeds):
            yield "texts.feeds names values that no step computes"
    if missing := sorted({port.name for port in texts.outputs} - values - set(texts.reads)):
        yield f"texts computes no outputs {missing}"
    for name, tensor in texts.constants.items():
        if min(tensor.shape, default=0) < 0 or prod(tensor.shape) != len(tensor.texts):
            yield f"texts.constants.{name} has {len(tensor.texts)} texts"


def _is_pattern(pattern: str) -> bool:
    try:
        compiled_pattern(pattern)
    except (re.error, OverflowError):
        return False
    return True


def _problems_of(manifest: Manifest, program: Program) -> Iterator[str]:
    """Describe each fault of a program, which the texts call PROGRAM."""
    buffers, count = {b.name for b in program.buffers}, len(program.steps)
    used = {*(port.buffer for port in manifest.inputs), *manifest.results}
    used |= {name for segment in program.segments for name in read_by_host(segment)}
    used |= {port.past.buffer for port in manifest.states}
    used |= {name for run in program.runs for name in (*run.uploads, *run.downloads)}
    if unknown := sorted(used - buffers):
        yield f"PROGRAM uses unknown buffers {unknown}"
    tensors = {name for file in manifest.weights for name in file.tensors}
    if unknown := sorted({b.tensor for b in program.buffers if b.tensor} - tensors):
        yield f"PROGRAM uses tensors {unknown} that are in no weights file"
    for path in (*program.modules.values(), *program.shaders.values()):
        if path not in manifest.files:
            yield f"PROGRAM has no file {path!r}"
    bound = {symbol.name for symbol in manifest.symbols} | set(program.bound)
    bound |= {loop.symbol for loop in program.loops}
    symbols = {name for buffer in program.buffers for name in program.symbols_of(buffer)}
    if unbound := sorted(symbols - bound):
        yield f"PROGRAM binds no symbols {unbound}"
    for number, problem in _problems_of_host(program, bound):
        yield f"PROGRAM.segments[{number}] {problem}"
    if [i for run in program.runs for i in range(run.first, run.last)] != list(range(count)):
        yield "the segments of PROGRAM miss steps"
    for number, step in enumerate(program.steps):
        if not DEVICES[step.device].runs_steps and step.control is None and not step.launches:
            yield f"PROGRAM.steps[{number}].launches is missing"
        if step.control is not None and not 0 <= step.control.target <= count:
            yield f"PROGRAM.steps[{number}].control.target is no step"
    for device, memory in program.memory.items():
        if not all(0 <= number < len(program.buffers) for number in memory.buffers):
            yield f"PROGRAM.memory.{device} places a buffer that does not exist"
        if not all(0 <= i < n for n, place in enumerate(memory.arena) for i in place.below):
            yield f"PROGRAM.memory.{device}.arena places a buffer on a later buffer"


def _problems_of_host(program: Program, bound: AbstractSet[str]) -> Iterator[tuple[int, str]]:
    """Describe each fault of the segments that the host executes, after the segment's number."""
    dtypes = {b.name: b.dtype for b in program.buffers}
    ranks: dict[str, int] = {}  # of the values that the host holds under a name: the lowest
    for segment in program.segments:
        for name, shape in _held(segment):
            ranks[name] = min(len(shape), ranks.get(name, len(shape)))
    lists = {s.target for s in program.segments if isinstance(s, BeginList)}
    on_host = {b.name for b in program.buffers if b.kind == "input"} | ranks.keys()
    on_host.update(name for run in program.runs for name in run.downloads)
    for number, segment in enumerate(program.segments):
        missing = sorted({*read_by_host(segment)} - on_host - lists)
        missing += sorted({*written_by_host(segment)} - dtypes.keys())
        if missing:
            yield number, f"uses {missing}, which the host does not have"
        sizes = [without_names(size, program.sizes) for size in _sizes_of(segment)]
        if unbound := sorted(symbols_of(sizes) - bound):
            yield number, f"binds no symbols {unbound}"
        match segment:
            case Bind(symbols=symbols, elements=places) | Measure(symbols=symbols, axes=places):
                rank = ranks.get(segment.buffer, 0) if isinstance(segment, Measure) else LIMIT
                fits = len(symbols) == len(places) and symbols
                if not fits or not all(0 <= place < rank for place in places):
                    yield number, "does not have one element or axis per symbol"
            case Move(sources=sources, targets=targets, shapes=shapes):
                if not len(sources) == len(targets) == len(shapes):
                    yield number, "does not have one target and shape per source"
            case Collect(target=target) if target not in lists:
                yield number, f"appends to {target!r}, which is no list"
            case Stack(target=target, axis=axis, shape=shape):
                if target not in lists or not 0 <= axis <= len(shape):
                    yield number, f"joins {target!r}, which is no list with axis {axis}"
            case JumpUnless(unless=condition) if dtypes.get(condition) != DType.bool:
                yield number, f"decides by {condition!r}, which is no boolean"
            case Jump(target=index) | JumpUnless(target=index):
                if not 0 <= index <= len(program.segments):
                    yield number, "jumps to no segment"


def _held(segment: Segment) -> Iterator[tuple[str, tuple[Size, ...]]]:
    """The names of the values that a segment leaves on the host, with their shapes."""
    match segment:
        case Move(targets=targets, shapes=shapes):
            yield from zip(targets, shapes, strict=False)
        case Stack(target=target, shape=shape):
            yield target, (*shape, 0)


def _sizes_of(segment: Segment) -> Iterator[Size]:
    """The sizes in the shapes of a segment."""
    match segment:
        case Move(shapes=shapes):
            yield from (size for shape in shapes for size in shape)
        case Collect(shape=shape) | Stack(shape=shape):
            yield from shape


def _sizes(manifest: Manifest) -> Iterator[Size]:
    """All sizes of a manifest."""
    for port in (*manifest.inputs, *manifest.outputs, *(s.past for s in manifest.states)):
        yield from port.shape
    for requirement in manifest.requirements:
        yield from (requirement.left, requirement.right)
    for program in manifest.programs.values():
        yield from program.sizes.values()
        for buffer in program.buffers:
            yield from buffer.shape
        for segment in program.segments:
            yield from _sizes_of(segment)
        for step in program.steps:
            if step.control is not None:
                yield step.control.trips or 0
            for launch in step.launches.values():
                yield from (*launch.workgroups, *launch.sections)
