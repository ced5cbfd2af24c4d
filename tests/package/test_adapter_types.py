"""The types of the adapters: those of ONNX Runtime Web, export by export, and transformers.js's."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMON = ROOT / "node_modules" / "onnxruntime-common" / "dist" / "esm"
ADAPTER = ROOT / "runtime_js" / "onnxruntime" / "onnxruntime.d.ts"
USES = ROOT / "tests" / "js" / "types" / "adapter.ts"
PATHS = {
    "webmlc": "runtime_js/webmlc.d.ts",
    "webmlc/onnxruntime": "runtime_js/onnxruntime/onnxruntime.d.ts",
    "webmlc/pipeline": "runtime_js/pipeline/pipeline.d.ts",
}
EXPORT = re.compile(r"^export (?:declare )?(?:namespace|type|interface|const|class) (\w+)", re.M)
IMPLEMENTATION = re.compile(r"-impl|type-helper|version")


def test_programs_of_other_runtimes_have_types(tmp_path: Path) -> None:
    """TypeScript's newest library knows Float16Array."""
    paths = {name: [str(ROOT / path)] for name, path in PATHS.items()}
    paths["onnxruntime-common"] = [str(COMMON / "index.d.ts")]
    options = {
        "strict": True, "noEmit": True, "skipLibCheck": True, "types": [], "paths": paths,
        "module": "ESNext", "moduleResolution": "bundler", "target": "ES2022",
        "lib": ["ESNext", "DOM", "DOM.Iterable"],
    }  # fmt: skip
    config = tmp_path / "tsconfig.json"
    config.write_text(json.dumps({"compilerOptions": options, "files": [str(USES)]}))
    command = [ROOT / "node_modules" / ".bin" / "tsc", "--project", config]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_every_export_has_its_counterpart() -> None:
    files = [path for path in COMMON.glob("*.d.ts") if not IMPLEMENTATION.search(path.name)]
    names = {name for path in files for name in EXPORT.findall(path.read_text("utf-8"))}
    assert {"InferenceSession", "TensorConstructor", "TRACE"} <= names
    parts_of_tensors = {"TensorUtils", "TypedShapeUtils", "TypedTensorUtils"}
    assert names - parts_of_tensors <= set(EXPORT.findall(ADAPTER.read_text("utf-8")))
