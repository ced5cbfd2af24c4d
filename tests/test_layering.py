"""Imports only point left: the folders are the pipeline, and this keeps them so.

    core < graph/ir < frontend < graph < loops < schedule < target < build_options < package
    < generate < host < cached_build < compile < check_source < report < tune < cli

The rooms of the graph are ordered, too (ROOMS): a pass imports from the rooms before its own. The
operators of an algorithm are listed before the operator table, which holds them; the pass that
emits them comes after.

The readers of GGUF and TensorFlow Lite files write nodes, so they stand right of the builder and of
the operators. `export_source.py` and `read_model.py`, which call them, stand right of them.

Two exceptions. `webmlc/graph/ir.py`, the records that a graph is made of, is a stage of its own
just right of core, because the frontend's product is a graph; the rest of `webmlc/graph`, what
transforms those records, stands right of the frontend. And that file may name the loop function's
type in annotations (ANNOTATIONS), since a module holds both kinds of function; so may the rows of
operators, since the meaning of an operator that people define may be a kernel.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from webmlc.core.machine import Device

ROOT = Path(__file__).parents[1]
ROOMS = (
    "webmlc.graph",  # builder, compute
    "webmlc.graph.ops",
    "webmlc.graph.algorithms.attention.causal",
    "webmlc.graph.algorithms.attention.operators",
    "webmlc.graph.algorithms.strassen.operators",
    "webmlc.graph.algorithms.winograd.operators",
    "webmlc.graph.table",
    "webmlc.graph.rewrite",
    "webmlc.graph.gradient",
    "webmlc.graph.checks",
    "webmlc.graph.infer",
    "webmlc.graph.texts",
    "webmlc.graph.typed",
    "webmlc.graph.simplify",
    "webmlc.graph.quantise",
    "webmlc.graph.layout",
    "webmlc.graph.algorithms",
    "webmlc.graph.fuse",
)
WRITERS = 2
"""The rooms that a frontend needs to write nodes: builder and operators."""
STAGES = (
    "webmlc.version",  # one constant, of no stage
    "webmlc.core",
    "webmlc.graph.ir",
    "webmlc.frontend",
    *ROOMS[:WRITERS],
    "webmlc.frontend.gguf",
    "webmlc.frontend.tflite",
    "webmlc.frontend.doors.export_source",
    "webmlc.frontend.read_model",
    *ROOMS[WRITERS:],
    "webmlc.loops",
    "webmlc.schedule",
    "webmlc.target",
    "webmlc.build_options",
    "webmlc.package",
    "webmlc.generate",  # text from logits: it knows models only as a protocol
    "webmlc.host",
    "webmlc.cached_build",
    "webmlc.pipeline",
    "webmlc.programs",  # programs by hand
    "webmlc.check_source",
    "webmlc.report",  # what a build recorded, as a page
    "webmlc.tune",
    "webmlc",  # the public names, taken from pipeline, programs, host and tune
    "webmlc.cli",
    "webmlc.__main__",
)
# A module holds graph functions and loop functions side by side, and the meaning of an operator may
# be a kernel; only annotations say so.
ANNOTATIONS = {
    ("webmlc.graph.ir", "webmlc.loops.ir"),
    ("webmlc.graph.ops.operator", "webmlc.loops.ir"),
}
# An empty __init__ is loaded by an import of any module inside, so it must stay empty.
EMPTY = ("webmlc.graph", "webmlc.graph.algorithms")


def module_of(path: Path) -> str:
    """`webmlc/core/expr.py` -> `webmlc.core.expr`, `webmlc/core/__init__.py` -> `webmlc.core`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def stage_of(module: str) -> int:
    """Place in STAGES of the longest entry that is the module or a package around it."""
    fits = [s for s in STAGES if module == s or (s != "webmlc" and module.startswith(s + "."))]
    assert fits, f"{module} belongs to no stage: add it to a folder of the pipeline"
    return STAGES.index(max(fits, key=len))


def annotation_imports(tree: ast.Module) -> set[ast.AST]:
    """What stands under a top-level `if TYPE_CHECKING:`, which never runs."""
    return {
        inner
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in node.body
    }


def imported_modules(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, module of ours) for every import, relative ones and those in functions included."""
    tree = ast.parse(source)
    annotations = annotation_imports(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found = [alias.name for alias in names]
            case ast.ImportFrom(module=base, names=names, level=level):
                package = module.split(".")[: None if is_package else -1]
                above = ".".join(package[: len(package) - (level - 1)]) if level else ""
                origin = ".".join(filter(None, (above, base)))
                found = [submodule_or(origin, alias.name) for alias in names]
            case _:
                continue
        for name in found:
            allowed = node in annotations and (module, name) in ANNOTATIONS
            if f"{name}.".startswith("webmlc.") and not allowed:
                yield node.lineno, name


def submodule_or(origin: str, name: str) -> str:
    """`from webmlc.graph import ir` names the module webmlc.graph.ir, not webmlc.graph."""
    path = ROOT.joinpath(*origin.split("."), name)
    return f"{origin}.{name}" if path.is_dir() or path.with_suffix(".py").is_file() else origin


def imports_to_the_right(source: str, module: str, is_package: bool) -> list[str]:
    own = stage_of(module)
    return [
        f"{module}, line {line}: imports {name}, which stands to its right"
        for line, name in imported_modules(source, module, is_package)
        if stage_of(name) > own
    ]


def source_files() -> list[Path]:
    return sorted((ROOT / "webmlc").rglob("*.py"))


def test_every_stage_has_source() -> None:
    present = {stage_of(module_of(path)) for path in source_files()}
    missing = [s for i, s in enumerate(STAGES) if i not in present and s != "webmlc.__main__"]
    assert not missing


@pytest.mark.parametrize("path", source_files(), ids=module_of)
def test_imports_point_left(path: Path) -> None:
    module, is_package = module_of(path), path.name == "__init__.py"
    assert imports_to_the_right(path.read_text("utf-8"), module, is_package) == []


@pytest.mark.parametrize("package", EMPTY)
def test_init_imports_nothing(package: str) -> None:
    body = ast.parse((ROOT.joinpath(*package.split(".")) / "__init__.py").read_text("utf-8")).body
    assert all(isinstance(node, ast.Expr) for node in body), "only a docstring may stand here"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("webmlc.core.expr", "import webmlc.graph.ir"),
        ("webmlc.frontend.read", "from webmlc.graph import fuse"),
        ("webmlc.frontend.read", "from ..graph.fuse import fuse"),
        ("webmlc.loops.ir", "def late():\n    from ..schedule import rules"),
        ("webmlc.target.wasm.printer", "from ...package.manifest import Manifest"),
        ("webmlc.host.wasm", "from webmlc import build"),
        ("webmlc.pipeline", "from webmlc.cli import main"),
        ("webmlc.graph.ir", "from webmlc.loops.ir import LoopFunction"),
        ("webmlc.graph.ir", "if TYPE_CHECKING:\n    from webmlc.loops.text import parse"),
        (
            "webmlc.graph.fuse",
            "if TYPE_CHECKING:\n    from webmlc.loops.ir import LoopFunction",
        ),
    ],
)
def test_an_import_to_the_right_is_found(module: str, line: str) -> None:
    assert len(imports_to_the_right(line, module, is_package=False)) == 1


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("webmlc.frontend.read", "from webmlc.graph.ir import Graph"),
        ("webmlc.graph.fuse", "from .ir import Graph"),
        ("webmlc.target.wasm.printer", "from ..flatten import flatten"),
        ("webmlc.graph.ir", "if TYPE_CHECKING:\n    from webmlc.loops.ir import LoopFunction"),
        ("webmlc.cli", "from webmlc import build"),
        ("webmlc.core.expr", "import numpy, onnx.helper"),
    ],
)
def test_an_import_to_the_left_passes(module: str, line: str) -> None:
    assert imports_to_the_right(line, module, is_package=False) == []


DEVICE_ROOMS = ("target", "host", "report")
"""The folders whose code is about one device, or shows a person its name."""


def compared_devices(path: Path) -> Iterator[int]:
    """The lines of a file that compare something with the name of a device."""
    names = set(get_args(Device))
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        sides: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        constants = (part for side in sides for part in ast.walk(side))
        if any(isinstance(part, ast.Constant) and part.value in names for part in constants):
            yield node.lineno  # type: ignore[attr-defined]


def test_only_targets_and_hosts_compare_the_name_of_a_device(tmp_path: Path) -> None:
    """`core.machine.DEVICES` and `target.targets.TARGETS` say what distinguishes devices."""
    sample = tmp_path / "sample.py"
    sample.write_text('a == "wasm"\nb in ("x", "webgpu")\nc == "relaxed"\nd["wasm"] = 1\n', "utf-8")
    assert list(compared_devices(sample)) == [1, 2]
    folder = ROOT / "webmlc"
    for path in folder.rglob("*.py"):
        if path.relative_to(folder).parts[0] not in DEVICE_ROOMS:
            assert not list(compared_devices(path)), path
