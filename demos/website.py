"""Write the demos' site: pages, packages, and what all pages share.

Out: one folder per demo beside `shared/`, `offline.js` and `onnxruntime/`. A demo's folder holds
its page, a package per model, and the original models in `original/`. A page loads an original, and
ONNX Runtime Web, only if somebody asks for a comparison.

    folder = write_page(Path(__file__).parent, site)
    write_package(folder, "model", model)
"""

import re
import shutil
from pathlib import Path
from typing import Any

import onnx

import webmlc

ROOT = Path(__file__).parents[1]
SITE = ROOT / "build" / "demos"
"""The folder of the site."""
SHARED = Path(__file__).parent / "shared"
OFFLINE = ROOT / "runtime_js" / "language"
"""The folder of `offline.js`, the service worker of all pages, and of `work_offline.js`."""
GALLERY = Path(__file__).parent / "gallery"
PICTURES = ROOT / "docs" / "gallery"
CARD = re.compile(r' *<li><a href="(?P<demo>\w+)/">.*?</li>\n', re.DOTALL)
"""The card of a demo in the page of the gallery."""
PAGE_SUFFIXES = (".html", ".css", ".js", ".svg", ".txt", ".png", ".jpg", ".wav")
"""The files of a demo that its page needs."""
ONNX_RUNTIME = ROOT / "node_modules" / "onnxruntime-web" / "dist"
ONNX_RUNTIME_FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
    "ort.webgpu.min.mjs",
    "ort-wasm-simd-threaded.asyncify.mjs",
    "ort-wasm-simd-threaded.asyncify.wasm",
)


def write_shared(site: Path) -> None:
    """Write the files that all pages of the site share."""
    _copy_page(SHARED, site / "shared")
    write_offline(site, site / "shared")
    (site / "onnxruntime").mkdir(exist_ok=True)
    for name in ONNX_RUNTIME_FILES:
        shutil.copyfile(ONNX_RUNTIME / name, site / "onnxruntime" / name)


def write_offline(site: Path, scripts: Path) -> None:
    """Write the service worker of a site, whose folder is its scope, and what registers it."""
    shutil.copyfile(OFFLINE / "offline.js", site / "offline.js")
    shutil.copyfile(OFFLINE / "work_offline.js", scripts / "work_offline.js")


def write_gallery(site: Path) -> None:
    """Write the page that shows the demos of the site, with the pictures of `docs/gallery`."""
    _copy_page(GALLERY, site)
    _copy_page(PICTURES, site / "pictures")

    def shown(card: re.Match[str]) -> str:
        return card[0] if (site / card["demo"] / "index.html").is_file() else ""

    page = site / "index.html"
    page.write_text(CARD.sub(shown, page.read_text("utf-8")), "utf-8")


def write_page(source: Path, site: Path) -> Path:
    """Copy the page of a demo into the site, and return the new folder."""
    _copy_page(source, site / source.name)
    return site / source.name


def write_package(
    folder: Path,
    name: str,
    model: onnx.ModelProto,
    original: onnx.ModelProto | None = None,
    **options: Any,
) -> None:
    """Compile a model into `folder/name`, and keep it, or another `original`, for comparisons.

    `options` are those of `webmlc.build`.
    """
    (folder / "original").mkdir(exist_ok=True)
    onnx.save(original or model, folder / "original" / f"{name}.onnx")
    note = ""
    if options.get("quantise"):
        note = f"webmlc's weights are {options['quantise']}, those of the original float32."
    (folder / "original" / "note.txt").write_text(note)
    webmlc.build(model, folder / name, **options)


def _copy_page(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix in PAGE_SUFFIXES:
            shutil.copyfile(path, folder / path.name)
