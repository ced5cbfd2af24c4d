"""Builds that reuse what earlier ones kept write the same."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import webmlc.cached_build
import webmlc.pipeline
from tests.command_line import run
from webmlc import build
from webmlc.build_options import BuildOptions
from webmlc.core import dependencies, disk_cache
from webmlc.core.dependencies import note_file, note_library
from webmlc.core.disk_cache import DiskCache, user_cache
from webmlc.core.errors import InternalError, ModelError, ModelWarning, PackageError
from webmlc.core.machine import RELAXED, SIMD128
from webmlc.core.package_files import file_hash
from webmlc.core.stages import Listing, ignore
from webmlc.frontend.doors import export_source
from webmlc.frontend.doors.door import Door, Example
from webmlc.frontend.file_kinds import is_kind
from webmlc.loops.content import content, kernel_key
from webmlc.loops.ir import LoopFunction, Store, map_statements
from webmlc.loops.text import parse_function
from webmlc.package import compile_kernels, kernel_pool
from webmlc.package.compile_kernels import KernelCompiler
from webmlc.package.kernel_pool import KernelPool
from webmlc.package.manifest import MANIFEST
from webmlc.package.write import Parts, write_package
from webmlc.pipeline import compile_model
from webmlc.report.write_report import write_report
from webmlc.schedule.rules import default_schedule
from webmlc.target.target import Task
from webmlc.target.wasm.target import WASM
from webmlc.target.webgpu.target import WEBGPU

GPU = WEBGPU.variants["gpu"]

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
small (float[1, 3, 6, 6] x) => (float[1, 8, 6, 6] y) {
  sums = Conv <pads = [1, 1, 1, 1]> (x, filters)
  z = LAST (sums)
  y = Softmax <axis = 3> (z)
}
"""
SUMS = """
<ir_version: 8, opset_import: ["" : 17]>
sums (float[n, m] x) => (float[n, m] y) {
  total = ReduceSum <keepdims = 1> (x)
  shares = Div (x, total)
  y = Softmax <axis = 1> (shares)
}
"""
"""A kernel that is cut, because its intermediates have a symbolic size."""
BYTES = """
<ir_version: 8, opset_import: ["" : 17]>
bytes (uint8[4, 16] x, int8[16, 8] w) => (int32[4, 8] y) {
  y = MatMulInteger (x, w)
}
"""
"""A kernel that differs in the variants `dot` and `pairs`."""
CHOICE = """
<ir_version: 8, opset_import: ["" : 17]>
choice (float[4, 8] x, int64[3] i) => (float[3, 8] y, int64[4] z) {
  y = Gather <axis = 0> (x, i)
  z = ArgMax <axis = 1, keepdims = 0> (x)
}
"""
"""Kernels with checks of indices, and with 64-bit integers."""
MODELS = {
    "small": TEXT.replace("LAST", "Relu").replace("x) =>", "x, float[8, 3, 3, 3] filters) =>"),
    "sums": SUMS,
    "bytes": BYTES,
    "choice": CHOICE,
}
RELU = """
@T.kernel
def relu(A: T.Buffer((n, 8), "float32"), B: T.Output((n, 8), "float32"), n: T.symbol):
    for i, j in T.grid(n, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.max(A[vi, vj], T.float32(0.0))
"""


def write_model(path: Path, last: str = "Relu", scale: float = 1.0) -> Path:
    """Write a model of a few kernels."""
    model = onnx.parser.parse_model(TEXT.replace("LAST", last))
    filters = np.linspace(-scale, scale, 8 * 3 * 9, dtype=np.float32).reshape(8, 3, 3, 3)
    model.graph.initializer.append(numpy_helper.from_array(filters, "filters"))
    onnx.save(model, path)
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskCache:
    """An empty cache, which builds use."""
    monkeypatch.setenv("WEBMLC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(disk_cache, "compiler_key", lambda: "key")  # whoever edits a source now
    disk = user_cache()
    assert disk is not None
    return disk


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models that are compiled from now on."""
    names: list[str] = []
    compile_model = webmlc.pipeline.compile_model

    def note(*arguments: Any, **options: Any) -> Parts:
        parts = compile_model(*arguments, **options)
        names.append(parts.manifest.name)
        return parts

    monkeypatch.setattr(webmlc.pipeline, "compile_model", note)
    return names


def test_a_package_is_the_same_bytes_however_it_was_built(
    tmp_path: Path, cache: DiskCache, compiled: list[str]
) -> None:
    model = write_model(tmp_path / "small.onnx")
    build(model, tmp_path / "plain", cache=False)
    plain = files(tmp_path / "plain")
    build(model, tmp_path / "cold")
    assert files(tmp_path / "cold") == plain
    compiled.clear()
    manifest = build(model, tmp_path / "restored")
    assert not compiled
    assert files(tmp_path / "restored") == plain
    assert manifest.programs["wasm"].steps


def test_only_changed_files_of_a_folder_are_written_again(tmp_path: Path, cache: DiskCache) -> None:
    out = tmp_path / "package"
    model = write_model(tmp_path / "small.onnx")
    build(model, out, "wasm")
    contents = files(out)
    changed = out / "weights.safetensors"
    changed.write_bytes(b"edited by hand")
    before = {path.name: path.stat().st_ino for path in out.iterdir()}
    with pytest.raises(PackageError, match=rf"\({changed.name}\)"):
        build(model, out, "wasm")
    build(model, out, "wasm", force=True)
    after = {path.name: path.stat().st_ino for path in out.iterdir()}
    assert files(out) == contents
    assert {name for name in before if after[name] != before[name]} == {changed.name}
    assert all(path.stat().st_nlink == 1 for path in out.iterdir())


def test_a_file_that_is_a_link_becomes_one_of_the_package(tmp_path: Path, cache: DiskCache) -> None:
    out = tmp_path / "package"
    model = write_model(tmp_path / "small.onnx")
    build(model, out, "wasm")
    weights, elsewhere = out / "weights.safetensors", tmp_path / "elsewhere"
    weights.rename(elsewhere)
    weights.symlink_to(elsewhere)
    build(model, out, "wasm")
    assert not weights.is_symlink()
    assert weights.read_bytes() == elsewhere.read_bytes()


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are lowered from now on, for each form of their code."""
    names: list[str] = []
    lower = KernelCompiler._lowered

    def note(self: KernelCompiler, task: Task, *arguments: Any) -> LoopFunction:
        names.append(task.kernel.name)
        return lower(self, task, *arguments)

    monkeypatch.setattr(KernelCompiler, "_lowered", note)
    return names


@pytest.mark.parametrize("text", MODELS.values(), ids=MODELS)
def test_a_package_of_kernels_from_the_cache_is_the_same_bytes(
    text: str, tmp_path: Path, cache: DiskCache, lowered: list[str]
) -> None:
    model = onnx.parser.parse_model(text)
    plain = compile_model(model, BuildOptions(emit_text=True))
    assert lowered
    for folder in ("cold", "warm"):
        lowered.clear()
        parts = compile_model(model, BuildOptions(emit_text=True), cache=cache)
        assert (folder == "cold") == bool(lowered)
        assert parts.texts == plain.texts
        write_package(tmp_path / folder, parts)
    write_package(tmp_path / "plain", plain)
    assert files(tmp_path / "plain") == files(tmp_path / "cold") == files(tmp_path / "warm")


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also few kernels are compiled by forked processes: those of the tests may have threads."""
    monkeypatch.setattr(kernel_pool, "FEWEST", {"fork": 1, "spawn": 1})
    monkeypatch.setattr(kernel_pool, "start_method", lambda: "fork")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("name", ["small", "bytes"])
def test_other_processes_compile_the_same_bytes(
    name: str, tmp_path: Path, cache: DiskCache, lowered: list[str]
) -> None:
    processes = set(multiprocessing.active_children())  # of other tests
    model = onnx.parser.parse_model(MODELS[name])
    write_package(tmp_path / "plain", compile_model(model))
    lowered.clear()
    write_package(tmp_path / "forked", compile_model(model, BuildOptions(jobs=2), cache=cache))
    assert not lowered and cache.size()[0]
    assert files(tmp_path / "forked") == files(tmp_path / "plain")
    assert set(multiprocessing.active_children()) <= processes


# Three seconds: a spawned process imports webmlc and onnx.
def test_a_spawned_process_compiles_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_pool, "FEWEST", {"fork": 1, "spawn": 1})
    monkeypatch.setattr(kernel_pool, "start_method", lambda: "spawn")
    kernels = {"relu": parse_function(RELU)}
    with KernelCompiler(default_schedule, ignore, jobs=2) as compiler:
        compiler.start(kernels, [GPU])
        (key,) = compiler.pool.pending
        assert compiler.pool.pending[key].exception() is None
        tasks = compiler.tasks(kernels, GPU)
        codes = compiler.compile(tasks, "gpu").codes
    assert codes == KernelCompiler(default_schedule, ignore).compile(tasks, "gpu").codes


def task_key(task: Task) -> bytes:
    """Instead of its code, the key of a task."""
    return task.key.encode()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.usefixtures("forks")
def test_one_process_compiles_all_variants_of_a_kernel() -> None:
    kernels = [parse_function(RELU), parse_function(RELU.replace("max", "min"))]
    machines = {"relaxed": RELAXED, "simd128": SIMD128}
    all_tasks = [Task(k, machine, form) for k in kernels for form, machine in machines.items()]
    with KernelPool(2, task_key) as pool:
        pool.start({task.key: task for task in all_tasks})
        groups = [pool.pending[task.key] for task in all_tasks]
        assert [pool.take(task.key) for task in all_tasks] == list(map(task_key, all_tasks))
    assert groups[0] is groups[1] is not groups[2] is groups[3]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.usefixtures("forks")
def test_an_error_of_another_process_is_the_same_error(
    tmp_path: Path, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = set(multiprocessing.active_children())  # of other tests

    def fail(*_: object) -> None:
        raise InternalError("wasm: kernel conv: cannot print this")

    monkeypatch.setattr(compile_kernels, "print_code", fail)
    with pytest.raises(InternalError, match=r"^wasm: kernel conv: cannot print this$"):
        build(write_model(tmp_path / "small.onnx"), tmp_path / "one", jobs=2)
    assert set(multiprocessing.active_children()) <= processes
    assert not (tmp_path / "one").exists()


WAITING = """
import os, signal, sys, time
from webmlc.package.kernel_pool import KernelPool
from webmlc.package import kernel_pool
from webmlc.target.target import Task
from webmlc.core.machine import RELAXED
from webmlc.loops.text import parse_function

def wait(task):
    print(os.getpid(), flush=True)
    time.sleep(0 if sys.argv[1] == "SIGINT" else 60)
    return b""

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
kernel_pool.FEWEST = {"fork": 1, "spawn": 1}
function = parse_function(sys.argv[2])
with KernelPool(2, wait) as pool:
    pool.start({"key": Task(function, RELAXED, "relaxed")})
    while True:
        time.sleep(1)
"""


# Two seconds: the processes import the compiler.
@pytest.mark.skipif(sys.platform != "linux", reason="only there, processes of builds are forks")
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_no_process_outlives_its_build(name: str) -> None:
    command = [sys.executable, "-c", WAITING, name, RELU]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as parent:
        assert parent.stdout
        assert int(parent.stdout.readline()) != parent.pid
        parent.send_signal(getattr(signal, name))
        try:
            # It returns once no process is left that could write.
            _, errors = parent.communicate(timeout=60)
        finally:
            parent.kill()
    assert ("KeyboardInterrupt" in errors) == (name == "SIGINT")
    assert parent.returncode == -getattr(signal, name)


def test_a_changed_model_compiles_only_what_changed(
    tmp_path: Path, cache: DiskCache, lowered: list[str]
) -> None:
    build(write_model(tmp_path / "small.onnx"), tmp_path / "one")
    before = set(lowered)
    lowered.clear()
    build(write_model(tmp_path / "small.onnx", scale=2.0), tmp_path / "two")
    assert not lowered  # other weights, the same kernels
    assert files(tmp_path / "one") != files(tmp_path / "two")
    build(write_model(tmp_path / "small.onnx", last="Sigmoid"), tmp_path / "three")
    assert lowered and len(set(lowered)) < len(before)
    build(tmp_path / "small.onnx", tmp_path / "plain", cache=False)
    assert files(tmp_path / "three") == files(tmp_path / "plain")


def test_the_command_hashes_a_model_once(
    tmp_path: Path,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    hashed: list[Path] = []

    def note(path: Path) -> str:
        hashed.append(path)
        return file_hash(path)

    monkeypatch.setattr(webmlc.cached_build, "file_hash", note)
    model = write_model(tmp_path / "small.onnx")
    arguments = ("build", model, "-o", tmp_path / "package", "--target", "wasm")
    assert run(monkeypatch, capsys, *arguments).code == 0
    assert hashed == [model] and cache.size()[0]
    assert run(monkeypatch, capsys, *arguments).code == 0
    assert hashed == [model, model]


def test_equal_kernels_of_other_names_are_compiled_once(lowered: list[str]) -> None:
    function = parse_function(RELU)
    kernels = {name: replace(function, name=name, origin=(name,)) for name in ("relu", "relu_1")}
    compiler = KernelCompiler(default_schedule, ignore)
    compiled = compiler.compile(compiler.tasks(kernels, WASM.variants["relaxed"]), "relaxed")
    assert lowered == ["relu"]
    assert compiled.codes["relu_1"].origin == ("relu_1",)
    assert compiled.lowered["relu_1"]().name == "relu_1"


def test_the_content_of_a_kernel_is_what_its_code_depends_on() -> None:
    function = parse_function(RELU)
    body = map_statements(
        function.body, lambda stmt: replace(stmt, stage=3) if isinstance(stmt, Store) else None
    )
    named = replace(function, name="other", origin=("node",), stages=(("node",),), body=body)
    assert content(named) == content(function)
    for old, new in (("0.0", "-0.0"), ("8", "16"), ("T.max", "T.min"), ("(n, 8)", "(8, n)")):
        assert content(parse_function(RELU.replace(old, new))) != content(function)
    explained = [Task(f, RELAXED, "relaxed", sizes=(4,)) for f in (function, named)]
    assert explained[0].key != explained[1].key  # the stages of their lines have other numbers
    assert explained[0].key != replace(explained[0], sizes=(8,)).key
    key = kernel_key("code", function, RELAXED)
    assert key == kernel_key("code", replace(function, name="other"), RELAXED)
    assert key != kernel_key("code", function, SIMD128)
    assert key != kernel_key("other", function, RELAXED)


def test_a_watcher_receives_all_stages_without_a_cache_and_the_code_with_one(
    cache: DiskCache,
) -> None:
    titles = {}
    for name, disk in (("plain", None), ("cached", cache)):
        stages = Listing()
        compile_model(
            onnx.parser.parse_model(SUMS), BuildOptions("wasm", on_stage=stages), cache=disk
        )
        titles[name] = {stage.title for stage in stages.stages if stage.kernel}
    forms = ("relaxed", "simd128")
    parts = ("loops", "schedule", "lowered", "code")
    assert titles["plain"] == {f"{form}: {part}" for form in forms for part in parts}
    assert titles["cached"] == {f"{form}: code" for form in forms}


def test_a_dump_shows_all_stages_with_a_cache_and_several_jobs(
    tmp_path: Path, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEBMLC_DUMP", str(tmp_path / "dump"))
    compile_model(onnx.parser.parse_model(SUMS), BuildOptions("wasm", jobs=2), cache=cache)
    assert any("lowered" in path.name for path in (tmp_path / "dump").iterdir())
    assert cache.size() == (0, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
@pytest.mark.usefixtures("forks")
def test_a_report_reuses_kernels_and_other_processes(
    tmp_path: Path, cache: DiskCache, lowered: list[str]
) -> None:
    model, page = tmp_path / "sums.onnx", tmp_path / "page.html"
    onnx.save(onnx.parser.parse_model(SUMS), model)

    def data(rows: int, **options: Any) -> dict[str, Any]:
        lowered.clear()
        return write_report(model, page, BuildOptions(**options), {"n": rows}).data

    plain = data(3, cache=False)
    assert lowered and not cache.size()[0]
    assert data(3, jobs=2) == plain and not lowered
    assert data(3) == plain and not lowered
    larger = data(5)
    assert lowered and larger["texts"] == plain["texts"]
    steps, larger_steps = (report["programs"]["wasm"]["steps"] for report in (plain, larger))
    assert all(a["moved"] < b["moved"] for a, b in zip(steps, larger_steps, strict=True))
    lowered.clear()
    build(model, tmp_path / "package")
    assert not lowered


def test_damaged_entries_are_compiled_again(
    tmp_path: Path, cache: DiskCache, compiled: list[str]
) -> None:
    model = write_model(tmp_path / "small.onnx")
    build(model, tmp_path / "one", "wasm")
    compiled.clear()
    for position, path in enumerate(sorted(cache.folder.glob("*/*"))):
        data = path.read_bytes()
        path.write_bytes(data[:-1] if position % 2 else data[:40] + b"?" + data[41:])
    build(model, tmp_path / "two", "wasm")
    assert compiled
    assert files(tmp_path / "one") == files(tmp_path / "two")


def test_other_options_and_other_external_data_are_other_packages(
    tmp_path: Path, cache: DiskCache
) -> None:
    model = onnx.load(write_model(tmp_path / "small.onnx"))
    stored = {"all_tensors_to_one_file": True, "size_threshold": 0, "location": "weights.bin"}
    onnx.save_model(model, tmp_path / "small.onnx", save_as_external_data=True, **stored)
    build(tmp_path / "small.onnx", tmp_path / "one", "wasm")
    build(tmp_path / "small.onnx", tmp_path / "text", "wasm", emit_text=True)
    assert (tmp_path / "text" / "model.relaxed.wat").exists()
    data = np.frombuffer((tmp_path / "weights.bin").read_bytes(), np.float32)
    (tmp_path / "weights.bin").write_bytes((data * 2).tobytes())
    build(tmp_path / "small.onnx", tmp_path / "two", "wasm")
    build(tmp_path / "small.onnx", tmp_path / "plain", "wasm", cache=False)
    assert files(tmp_path / "one") != files(tmp_path / "two") == files(tmp_path / "plain")


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Door:
    """A door of files `.toy`, whose last bytes are the name of an operator. Its exporter also reads
    a file of weights beside them. Like those of many formats, the files mention a location.
    """

    def export(path: Path, _: Example) -> onnx.ModelProto:
        note_library("toy_exporter")
        weights = path.with_suffix(".weights")
        note_file(weights)
        model = onnx.parser.parse_model(
            TEXT.replace("LAST", path.read_bytes().split()[-1].decode())
        )
        filters = np.full((8, 3, 3, 3), float(weights.read_text()), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(filters, "filters"))
        return model

    door = Door("Toy", "toy_exporter", lambda source: is_kind(source, ".toy"), export)
    monkeypatch.setattr(export_source, "DOORS", (door,))
    monkeypatch.setattr(dependencies, "version", lambda name: "1.0")
    return door


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A file that is no ONNX model."""
    path = tmp_path / "model.toy"
    path.write_bytes(b"\xfftoy location external_data Relu")
    path.with_suffix(".weights").write_text("0.5")
    return path


@pytest.mark.usefixtures("door")
def test_the_packages_of_every_door_are_kept_with_what_its_reader_read(
    toy: Path,
    tmp_path: Path,
    cache: DiskCache,
    compiled: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_compiled() -> bool:
        compiled.clear()
        build(toy, tmp_path / "package", "wasm")
        return bool(compiled)

    assert is_compiled() and not is_compiled()
    toy.with_suffix(".weights").write_text("0.25")
    assert is_compiled() and not is_compiled()
    toy.write_bytes(b"\xfftoy location Sigmoid")
    assert is_compiled() and not is_compiled()
    monkeypatch.setattr(dependencies, "version", lambda name: "1.1")
    assert is_compiled() and not is_compiled()
    toy.with_suffix(".weights").unlink()
    with pytest.raises(ModelError, match="toy_exporter cannot export this model"):
        is_compiled()


@pytest.mark.usefixtures("door")
@pytest.mark.parametrize("command", ["build", "run", "report", "check"])
def test_the_commands_take_the_files_of_every_door(
    command: str,
    toy: Path,
    tmp_path: Path,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = ("-o", tmp_path / "out.npz") if command != "check" else ()
    for _ in range(2):  # fresh, and from the cache
        result = run(monkeypatch, capsys, command, toy, *out)
        assert result.code == 0, result.err


@pytest.mark.usefixtures("door")
@pytest.mark.parametrize(
    ("suffix", "content"), [(".toy", b"\xfftoy Sigmoid"), (".weights", b"0.25")]
)
def test_a_model_that_changes_while_it_is_built_is_not_kept(
    suffix: str,
    content: bytes,
    toy: Path,
    tmp_path: Path,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, compile_model = toy.with_suffix(suffix), webmlc.pipeline.compile_model
    before = file.read_bytes()

    def edit_and_compile(source: Any, *arguments: Any, **options: Any) -> Parts:
        file.write_bytes(content)
        if suffix == ".toy":  # it is read after it was hashed
            source = webmlc.pipeline.export_source(toy)  # type: ignore[attr-defined]
        return compile_model(source, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(webmlc.pipeline, "compile_model", edit_and_compile)
        build(toy, tmp_path / "edited", "wasm")
    file.write_bytes(before)
    build(toy, tmp_path / "again", "wasm")
    build(toy, tmp_path / "plain", "wasm", cache=False)
    assert files(tmp_path / "again") == files(tmp_path / "plain")


def test_entries_of_other_models_are_never_used(tmp_path: Path, cache: DiskCache) -> None:
    folders = {}
    for name in ("Sin", "Cos"):
        before = {path: path.read_bytes() for path in cache.folder.glob("*/*")}
        build(write_model(tmp_path / f"{name}.onnx", last=name), tmp_path / name, "wasm")
        after = {path: path.read_bytes() for path in cache.folder.glob("*/*")}
        folders[name] = {path: data for path, data in after.items() if path not in before}
    plain = files(tmp_path / "Sin")
    for path in folders["Sin"]:
        for data in folders["Cos"].values():
            path.write_bytes(data)
        build(tmp_path / "Sin.onnx", tmp_path / "again", "wasm")
        assert files(tmp_path / "again") == plain


def test_a_restored_package_repeats_the_warnings(tmp_path: Path, cache: DiskCache) -> None:
    node = helper.make_node("RandomUniformLike", ["x"], ["y"], seed=1.0)
    info = [helper.make_tensor_value_info(name, 1, [4]) for name in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "random", info[:1], info[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "random.onnx")
    for folder in ("one", "two"):
        with pytest.warns(ModelWarning, match="draws random numbers"):
            build(tmp_path / "random.onnx", tmp_path / folder, "wasm")


def test_an_edit_of_the_compiler_matches_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBMLC_CACHE", "somewhere")
    key: Callable[[], str] = disk_cache.compiler_key.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(disk_cache, "_START_TIME", math.inf)
    before = key()
    assert len(before) == 64 and key() == before
    monkeypatch.setattr(disk_cache, "LIBRARIES", ("numpy",))
    assert key() != before
    monkeypatch.setattr(disk_cache, "_START_TIME", 0.0)  # all sources are newer than the process
    assert key() == ""
    monkeypatch.setattr(disk_cache, "compiler_key", lambda: "")
    assert user_cache() is None


def test_the_entries_that_were_used_last_stay(tmp_path: Path) -> None:
    disk = DiskCache(tmp_path, limit=1000)
    for age, key in enumerate(["aa1", "bb2", "cc3"]):
        disk.put(key, bytes(300))
        moment = time.time() - 100 + age
        os.utime(tmp_path / key[:2] / key[2:], (moment, moment))
    assert disk.get("aa1") == bytes(300)
    disk.put("dd4", bytes(300))
    disk.put("ee5", bytes(2000))  # larger than the whole cache
    disk.evict()
    keys = [key for key in ("aa1", "bb2", "cc3", "dd4", "ee5") if disk.get(key) is not None]
    assert keys == ["aa1", "cc3", "dd4"]
    blocked = DiskCache(tmp_path / "aa" / "1" / "no folder")
    blocked.put("ff6", b"")
    assert blocked.get("ff6") is None and blocked.size() == (0, 0)


def test_the_commands_show_clear_and_skip_the_cache(
    tmp_path: Path,
    cache: DiskCache,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def webmlc(*arguments: object) -> str:
        result = run(monkeypatch, capsys, *arguments)
        assert result.code == 0, result.err
        return result.out

    model = write_model(tmp_path / "small.onnx")
    webmlc("build", model, "-o", tmp_path / "one", "--target", "wasm", "--no-cache")
    assert "0 entries" in webmlc("cache")
    webmlc("build", model, "-o", tmp_path / "two", "--target", "wasm")
    assert (tmp_path / "two" / MANIFEST).exists()
    assert "0 entries" not in webmlc("cache")
    assert "\n0 entries" in webmlc("cache", "--clear")
    monkeypatch.setenv("WEBMLC_CACHE", "off")
    assert "The cache is off" in webmlc("cache")
