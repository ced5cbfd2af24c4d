"""Check that the parts of a manifest refer to each other.

In: a `Manifest` whose fields have the right types. Out: nothing, or a `PackageError`:

    PackageError: manifest.json: the segments of programs.wasm miss steps
"""

from __future__ import annotations

from webmlc.core.errors import PackageError
from webmlc.package.manifest import Bind, Manifest


def check_manifest(manifest: Manifest) -> None:
    """Check that all names in use exist, for a manifest may have been edited.

    Raises `PackageError` for the first one that does not.
    """
    inputs = {port.name: port for port in manifest.inputs}
    outputs = {port.name for port in manifest.outputs}
    for name, parts in manifest.sequences.items():
        if unknown := sorted(set(parts or ()) - outputs):
            raise PackageError(f"manifest.json: sequence {name} has no outputs {unknown}")
    for name, kind in manifest.typed.items():
        ports = set(kind.get("values", [name]))
        if not (ports <= outputs or ports <= inputs.keys()):
            raise PackageError(f"manifest.json: typed.{name} has no ports {sorted(ports)}")
        if "labels" in kind and kind["labels"] not in manifest.files:
            raise PackageError(f"manifest.json: typed.{name} has no file {kind['labels']!r}")
    for symbol in manifest.symbols:
        if symbol.name in (manifest.length, manifest.capacity):
            continue
        if symbol.input not in inputs or symbol.axis >= len(inputs[symbol.input].shape):
            raise PackageError(f"manifest.json: symbol {symbol.name} has no axis to be bound from")
    for name, program in manifest.programs.items():
        buffers = {b.name for b in program.buffers}
        used = {*(port.buffer for port in manifest.inputs), *manifest.results}
        used |= {s.buffer for s in program.segments if isinstance(s, Bind)}
        used |= {port.past.buffer for port in manifest.state_ports}
        if unknown := sorted(used - buffers):
            raise PackageError(f"manifest.json: programs.{name} uses unknown buffers {unknown}")
        for path in (*program.modules.values(), *program.shaders.values()):
            if path not in manifest.files:
                raise PackageError(f"manifest.json: programs.{name} has no file {path!r}")
        bound = {symbol.name for symbol in manifest.symbols} | set(program.bound)
        bound |= {loop.symbol for loop in program.loops}
        if unbound := sorted({s for b in program.buffers for s in b.symbols} - bound):
            raise PackageError(f"manifest.json: programs.{name} binds no symbols {unbound}")
        covered = [i for s in program.runs for i in range(s.first, s.last)]
        if covered != list(range(len(program.steps))):
            raise PackageError(f"manifest.json: the segments of programs.{name} miss steps")
