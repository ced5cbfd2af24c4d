"""Write the report of a model: one page that shows where its code comes from, and what it costs.

In: a model, or the folder of a package. Out: one HTML file that needs no other file and no network.

    write_report(Path("model.onnx"), Path("report.html"))

The page holds its data as deflated JSON: the nodes and their places in drawings (`nodes`, `views`),
the programs (`programs`), the files (`downloads`), the emitted code, and the plan to run the CPU
program step by step (`measurable`). A package does not hold the model's graph or the schedules, so
its report shows the nodes of its steps, and no loops.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from webmlc.build_options import DEFAULTS, BuildOptions
from webmlc.cached_build import usable_cache
from webmlc.core.disk_cache import DiskCache
from webmlc.core.errors import UserError
from webmlc.core.replace_file import replace_file
from webmlc.core.stages import ignore
from webmlc.core.symbol_names import symbol_name
from webmlc.frontend.doors.export_source import export_source
from webmlc.frontend.file_kinds import is_kind
from webmlc.frontend.protos import constant_nodes
from webmlc.graph.ir import Module
from webmlc.host.report import operator_rows, type_text
from webmlc.package.compression import deflate
from webmlc.package.manifest import MANIFEST, AnyPort, Manifest
from webmlc.package.manifest_json import read_manifest
from webmlc.package.runtime_files import join_modules
from webmlc.package.write import write_package
from webmlc.pipeline import compile_model
from webmlc.report.measurable import measurable
from webmlc.report.nodes import FATES, ModelNode, Recorder, model_nodes, step_nodes
from webmlc.report.package_files import (
    distinct,
    downloads,
    function_lines,
    package_texts,
    step_lines,
    tensors,
)
from webmlc.report.programs import VARIANT, Sources, all_symbols, programs
from webmlc.report.views import View, views

PAGE = Path(__file__).with_name("page")
"""The folder of the page's HTML, style and scripts."""


@dataclass(frozen=True, slots=True)
class Report:
    """The data of a page, and binary parts as base64 by name."""

    data: dict[str, Any]
    parts: Mapping[str, str]


def write_report(
    source: Path,
    out: Path,
    options: BuildOptions = DEFAULTS,
    sizes: Mapping[str, int] | None = None,
) -> Report:
    """Write the page of a model, or of the package in a folder, to `out`.

    `options` are the options of a build, for a model. `sizes` are the sizes of symbolic dimensions,
    for which the figures hold; the default is an example size. With `options.cache`, kernels that
    an earlier report explained for the same sizes are not compiled again.

    Raises the errors of `compile.build`, `InputError` if a size belongs to no dimension, and
    `UserError` if a package is given with options that only a build has.
    """
    if (source / MANIFEST).is_file():
        if options.deciding() != BuildOptions(options.target).deciding():
            raise UserError("a package is built already: give the model, or leave these options")
        report = package_report(source, sizes or {})
    else:
        disk = usable_cache() if options.cache and options.choose is None else None
        report = model_report(source, options, sizes or {}, disk)
        if disk is not None:
            disk.evict()
    replace_file(out, page_text(report).encode())
    return report


def model_report(
    source: Path, options: BuildOptions, sizes: Mapping[str, int], cache: DiskCache | None
) -> Report:
    """Build a model, and collect the data of its report."""
    recorder = Recorder(options.on_stage or ignore)
    by_symbol = {symbol_name(text): size for text, size in sizes.items()}  # `_report` checks them
    model = export_source(source)
    assert not isinstance(model, Module)  # the source is a path
    parts = compile_model(model, replace(options, on_stage=recorder), cache, by_symbol)
    computed = {
        origin for program in parts.programs.values() for s in program.steps for origin in s.origin
    }
    constants_of_file = {} if is_kind(source, ".gguf") else constant_nodes(model)
    nodes = model_nodes(recorder.graphs, computed, constants_of_file)
    texts = {v: m.text for v, m in recorder.modules.items() if v == VARIANT}
    texts |= distinct({variant: shaders.text for variant, shaders in recorder.shaders.items()})
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_package(Path(folder), parts)
        calls = step_lines(texts.get(VARIANT, ""))
        shaders, explanations = _shaders(texts), parts.explanations
        stages = {device: program.stages for device, program in parts.programs.items()}
        sources = Sources(
            nodes, recorder, explanations, shaders=shaders, calls=calls, stages=stages
        )
        return _report(manifest, Path(folder), source.name, sources, texts, sizes)


def package_report(folder: Path, sizes: Mapping[str, int]) -> Report:
    """Collect the data of the report of a package."""
    manifest = read_manifest(folder)
    texts = distinct(package_texts(folder, manifest))
    steps = [step for program in manifest.programs.values() for step in program.steps]
    lines = {n: function_lines(text, {s.entry_in(n) for s in steps}) for n, text in texts.items()}
    calls = step_lines(texts.get(VARIANT, ""))
    shaders = _shaders(texts)
    sources = Sources(step_nodes(manifest), lines=lines, shaders=shaders, calls=calls)
    return _report(manifest, folder, "", sources, texts, sizes)


def _shaders(texts: Mapping[str, str]) -> list[str]:
    """The names of the texts that are shaders."""
    return [name for name in texts if name != VARIANT]


def _report(
    manifest: Manifest,
    folder: Path,
    model: str,
    sources: Sources,
    texts: Mapping[str, str],
    sizes: Mapping[str, int],
) -> Report:
    """Put the data together."""
    symbols = all_symbols(manifest, sizes)
    run, parts = measurable(manifest, folder, symbols)
    data = {
        "name": manifest.name,
        "compiler": manifest.compiler,
        "model": model,
        "symbols": symbols,
        "inputs": [_port(port) for port in manifest.model_inputs],
        "outputs": [_port(port) for port in manifest.model_outputs],
        "operators": operator_rows(manifest),
        "fates": FATES,
        "nodes": [_node(node) for node in sources.nodes],
        "views": [_view(view) for view in views(sources.nodes)],
        "programs": programs(manifest, sources, symbols),
        "downloads": downloads(manifest, (folder / MANIFEST).stat().st_size),
        "tensors": tensors(manifest),
        "texts": dict(texts),
        "run": run,
    }
    return Report(data, parts)


def _port(port: AnyPort) -> dict[str, str]:
    return {"name": port.name, "type": type_text(port)}


def _node(node: ModelNode) -> dict[str, Any]:
    """A node as JSON, without empty fields."""
    return {k: v for k, v in asdict(node).items() if v not in ("", (), None)}


def _view(view: View) -> dict[str, Any]:
    """A view as JSON. Items of one node have no label."""
    data = asdict(view)
    data["items"] = [{k: v for k, v in item.items() if v != ""} for item in data["items"]]
    return data


def page_text(report: Report) -> str:
    """The page. A policy in it allows its own scripts, and the package in its folder."""
    packed = base64.b64encode(deflate(json.dumps(report.data).encode())).decode()
    blobs = {"data": packed, **report.parts}
    data = "\n".join(
        f'<script type="text/plain" id="part-{name}">{text}</script>'
        for name, text in blobs.items()
    )
    style = (PAGE / "report.css").read_text("utf-8")
    script = _script(sorted(PAGE.glob("*.js")))
    values = {
        "POLICY": _policy(script, style),
        "TITLE": _escape(f"{report.data['name']}: report"),
        "STYLE": style,
        "DATA": data,
        "SCRIPT": script,
    }
    page = (PAGE / "index.html").read_text("utf-8")
    for name, value in values.items():
        page = page.replace(f"<!-- {name} -->", value)
    return page


def _script(files: Sequence[Path]) -> str:
    """The scripts of the page as one module."""
    joined = join_modules({file.name: file.read_text("utf-8") for file in files})
    (script,) = joined.values()
    return script


def _policy(script: str, style: str) -> str:
    """The content security policy: it allows the page's own script and style, and modules of the
    page's origin.
    """
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in (script, style)
    ]
    return (
        f"default-src 'none'; script-src {hashes[0]} 'self' 'wasm-unsafe-eval'; "
        f"style-src {hashes[1]}; connect-src 'self'; worker-src 'self'; img-src data:"
    )


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
