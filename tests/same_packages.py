"""Hash the packages of real models, to prove that a change of the compiler emits the same bytes.

In: names of models; without names, all models of `benchmarks/models.py`. Out: a JSON file with a
hash for each package file of each model, or the files that differ from such a JSON file. Both
targets are built. The runtime's own scripts and pages are left out: they are not emitted. A
manifest that differs is named, too, but only modules, shaders and weights count as differences.

    python -m tests.same_packages --write before.json          # on the older commit
    python -m tests.same_packages --against before.json        # on the newer one
    python -m tests.same_packages --against before.json digits squeezenet
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from benchmarks.models import named, source_of
from webmlc import build
from webmlc.package.manifest import MANIFEST
from webmlc.package.runtime_files import runtime_files

Hashes = Mapping[str, str]
"""The SHA-256 of each file of a package, by the file's name."""


def package_hashes(name: str) -> Hashes:
    """Build the model's package for both targets and hash what the compiler emits."""
    with TemporaryDirectory() as folder:
        source, package = Path(folder) / f"{name}.onnx", Path(folder) / "package"
        onnx.save(source_of(name).make(), source)
        build(source, package, target="both", cache=False)
        runtime = runtime_files().keys()
        contents = {
            path.name: path.read_bytes()
            for path in sorted(package.iterdir())
            if path.name not in runtime
        }
    contents[MANIFEST] = _without_runtime(contents[MANIFEST], frozenset(runtime))
    return {file: hashlib.sha256(content).hexdigest() for file, content in contents.items()}


def _without_runtime(manifest: bytes, runtime: frozenset[str]) -> bytes:
    """The manifest without the hashes of the runtime's files."""
    record = json.loads(manifest)
    record["files"] = {f: entry for f, entry in record["files"].items() if f not in runtime}
    return json.dumps(record, indent=1).encode()


def differences(before: Hashes, after: Hashes) -> list[str]:
    """The files whose hashes differ, or that only one package has."""
    return sorted(f for f in {*before, *after} if before.get(f) != after.get(f))


def main() -> int:
    """Exit with 1 where a package differs."""
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", type=Path, help="write the hashes to this JSON file")
    action.add_argument("--against", type=Path, help="compare with this JSON file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="builds at once")
    parser.add_argument("models", nargs="*", help="names of models (default: all)")
    arguments = parser.parse_args()
    names = arguments.models or list(named())
    before = json.loads(arguments.against.read_text()) if arguments.against else {}
    hashes: dict[str, Hashes] = {}
    changed = 0
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for name, after in zip(names, pool.map(package_hashes, names), strict=True):
            hashes[name] = after
            files = differences(before.get(name, {}), after) if arguments.against else []
            changed += any(file != MANIFEST for file in files)
            print(f"{name:32} {', '.join(files) or 'same' if arguments.against else len(after)}")
            sys.stdout.flush()
    if arguments.write:
        arguments.write.write_text(json.dumps(hashes, indent=1))
        return 0
    print(f"{changed} of {len(names)} packages differ")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
