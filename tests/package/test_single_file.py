"""A package as one script: what it holds, that it runs in Node, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import onnx.parser
import pytest

from tests.command_line import run
from tests.generate.fakes import language_assets
from tests.graph.typed.test_typed_values import classifier
from tests.packages import parts, scaled
from webmlc.core.errors import ModelWarning, PackageError
from webmlc.package import single_file
from webmlc.package.single_file import FIRST_LINE, write_single_file
from webmlc.package.write import write_package
from webmlc.pipeline import build

ROOT = Path(__file__).parents[2]

RUN = """
import { load } from "./scaled.mjs";
const results = [];
for (const threads of [1, 2]) {
  const model = await load({ device: "wasm", threads });
  const x = { dtype: "float32", shape: [1, 4], data: Float32Array.from([1, 2, 3, 4]) };
  const runs = [];
  for (let i = 0; i < 3; i++) runs.push(Array.from((await model.run({ x })).y.data));
  model.dispose();
  results.push({ runs, threads: model.threads, files: model.files.sort() });
}
console.log(JSON.stringify(results));
"""

GENERATE = """
import { load } from "./scaled.mjs";
const model = await load({ device: "wasm", threads: 1 });
try {
  model.generate("hello", { top_p: 2 });
} catch ({ name, message }) {
  console.log(`${model.hasChatTemplate} ${name}: ${message}`);
}
model.dispose();
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("single")
    scaled(folder / "model")
    write_single_file(folder / "model", folder / "scaled.mjs")
    return folder / "scaled.mjs"


def test_node_runs_the_script_alone(script: Path, tmp_path: Path) -> None:
    (tmp_path / "scaled.mjs").write_bytes(script.read_bytes())
    (tmp_path / "run.mjs").write_text(RUN)
    done = subprocess.run(
        ["node", str(tmp_path / "run.mjs")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    for report, threads in zip(json.loads(done.stdout), (1, 2), strict=True):
        assert report["runs"] == [[1, 0, 1.5, 12]] * 3
        assert report["threads"] == threads
        assert report["files"] == [
            "kernels.gpu.wgsl.deflate",
            "model.relaxed.wasm.deflate",
            "model.simd128.wasm.deflate",
            "weights.safetensors",
        ]


def test_the_script_fits_into_a_page_and_a_bundle(script: Path) -> None:
    """It ends no `<script>`, and names no file that a bundler would look for."""
    text = script.read_text("utf-8")
    assert text.startswith(f"{FIRST_LINE} scaled sha256:")
    assert not re.search(r"</|<!--|\bimport\b|new URL\(\"\./", text)


def test_a_language_model_has_its_tokenizer(tmp_path: Path) -> None:
    """The libraries' names, which may equal those of the runtime, are inside of functions."""
    write_package(tmp_path / "model", replace(parts(), assets=language_assets()))
    write_single_file(tmp_path / "model", tmp_path / "scaled.mjs")
    text = (tmp_path / "scaled.mjs").read_text("utf-8")
    assert "MIT License" in text
    assert "Apache-2.0" in text
    (tmp_path / "run.mjs").write_text(GENERATE)
    done = subprocess.run(
        ["node", str(tmp_path / "run.mjs")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("true InputError: top_p is 2")


def test_other_files_are_not_replaced(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.js"
    out.write_text("let mine = 1;\n")
    with pytest.raises(PackageError, match=r"page\.js exists, and no build of webmlc wrote it"):
        write_single_file(script.parent / "model", out)
    assert out.read_text() == "let mine = 1;\n"
    length = write_single_file(script.parent / "model", out, force=True)
    assert write_single_file(script.parent / "model", out) == length == out.stat().st_size
    for path in (out, tmp_path / "page.d.ts"):
        path.write_text(path.read_text() + "// mine\n")
        with pytest.raises(PackageError, match=f"{path.name} exists, and no build .* as it is"):
            write_single_file(script.parent / "model", out)
        write_single_file(script.parent / "model", out, force=True)


USES = """
import { load, InputError, runtime, type Model, type Outputs } from "./scaled.mjs";

const model: Model = await load({ device: "auto" });
const x = { dtype: "float32" as const, shape: [1, 4] as [number, 4], data: new Float32Array(4) };
const outputs: Outputs = await model.run({ x });
const values: Float32Array = outputs.y.data;
const kept: runtime.GpuTensor = (await model.run({ x }, { results: "gpu" })).y;
const tensor: runtime.Tensor = await kept.read();
await model.run({ x: kept }).catch((error) => error instanceof InputError);
// @ts-expect-error: no such output
outputs.z;
// @ts-expect-error: no such option
await load({ devices: "auto" });
// @ts-expect-error: the model is in the script
await load("./model/");
console.log(values, tensor);
"""


TYPED_USES = """
import { load, type runtime } from "./scaled.mjs";

const model = await load();
const picture: runtime.PixelSource = new ImageData(2, 2);
const labels: runtime.LabelledScore[] = (await model.run({ image: picture })).logits;
console.log(labels);
"""


@pytest.mark.parametrize("is_typed", [False, True])
def test_typescript_knows_a_single_file(tmp_path: Path, is_typed: bool) -> None:
    folder, uses = tmp_path / "model", USES
    if is_typed:
        options = {"inputs": {"image": "pixels=rgb"}, "outputs": {"logits": {"topk": 2}}}
        build(classifier(), folder, "wasm", **options)
        uses = TYPED_USES
    else:
        scaled(folder)
    write_single_file(folder, tmp_path / "scaled.mjs")
    text = (tmp_path / "scaled.d.mts").read_text("utf-8")
    assert text.startswith("// The types of a model in one script, written by webmlc: ")
    assert " from " not in re.sub(r"/\*.*?\*/|//.*", "", text, flags=re.DOTALL)
    (tmp_path / "use.mts").write_text(uses)
    process = subprocess.run(
        [
            "npx", "--no-install", "tsc", "--ignoreConfig", "--noEmit", "--strict",
            "--target", "ES2022", "--module", "ESNext", "--moduleResolution", "bundler",
            "--types", "", "--lib", "ES2022,DOM", str(tmp_path / "use.mts"),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout


def test_types_of_others_are_not_replaced(script: Path, tmp_path: Path) -> None:
    (tmp_path / "page.d.ts").write_text("type Mine = 1;\n")
    with pytest.raises(PackageError, match=r"page\.d\.ts exists, and no build of webmlc wrote it"):
        write_single_file(script.parent / "model", tmp_path / "page.js")
    assert not (tmp_path / "page.js").exists()


def test_a_large_script_is_warned_of_or_refused(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = script.parent / "model", tmp_path / "model.js"
    monkeypatch.setattr(single_file, "LARGE_BYTES", 100_000)
    with pytest.warns(ModelWarning, match=r"has 0\.2 MB: .*For more than 0\.1 MB, better build a"):
        write_single_file(model, out)
    out.unlink()
    monkeypatch.setattr(single_file, "MAX_BYTES", 100_000)
    with pytest.raises(PackageError, match=r"has 0\.2 MB, and the limit is 0\.1 MB; build a"):
        write_single_file(model, out)
    assert not out.exists()


def test_the_command_writes_only_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "relu.onnx"
    text = "<ir_version: 8, opset_import: ['' : 18]> g (float[4] x) => (float[4] y) { y = Relu(x) }"
    onnx.save(onnx.parser.parse_model(text.replace("'", '"')), model)
    options = ("--single-file", "--target", "wasm", "--json")
    result = run(monkeypatch, capsys, "build", model, *options)
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["file"] == "build/relu.js"
    assert sorted(path.name for path in (tmp_path / "build").iterdir()) == ["relu.d.ts", "relu.js"]
    assert (tmp_path / "build" / "relu.js").stat().st_size == report["bytes"]
