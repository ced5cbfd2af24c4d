"""The runtime under Node 20: its relaxed dot products swap their operands, so it falls back."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.node import as_tensors, in_node
from tests.packages import TRAP_ROWS, expected, scaled, trapping

SCRIPT = Path(__file__).parent / "run_model.mjs"
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("flags", "threads", "variant"),
    [([], 1, "simd128"), ([], 2, "simd128"), (["--experimental-wasm-relaxed-simd"], 2, "simd128")],
)
def test_a_package_runs_under_node(
    tmp_path: Path, flags: list[str], threads: int, variant: str
) -> None:
    scaled(tmp_path)
    process = subprocess.run(
        ["node", *flags, str(SCRIPT), str(tmp_path), str(threads)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert (result["variant"], result["threads"]) == (variant, threads)
    for n, output in zip([3, 1, 5000, 6000, 20000, 2], result["outputs"], strict=True):
        x = np.sin(np.arange(4 * n) + n).astype(np.float32).reshape(n, 4)
        np.testing.assert_allclose(np.reshape(output, (n, 4)), expected(x), atol=1e-6)
    assert result["profiled"] == ["scale", "relu"]
    assert result["together"] == list(range(20))
    assert result["error"] == ["InputError", "input"]


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_after_a_trap_are_right(tmp_path: Path, threads: int) -> None:
    trapping(tmp_path)
    sizes = [3, TRAP_ROWS, 3, 2000, TRAP_ROWS, TRAP_ROWS, 1]
    feeds = {n: np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32) for n in sizes}
    results = in_node(tmp_path, [as_tensors({"x": feeds[n]}) for n in sizes], threads)
    for n, result in zip(sizes, results, strict=True):
        if n == TRAP_ROWS:
            assert result["code"] == "internal"
            assert "unreachable" in result["error"]
            continue
        got = np.array(result["y"]["data"], np.float32).reshape(n, 4)
        np.testing.assert_allclose(got, expected(feeds[n]), atol=1e-6)


BUNDLED = """import { load } from "./model/webmlc.js";

try {
  const folder = new URL(process.argv[2], import.meta.url);
  const model = await load(folder, { device: "wasm", threads: 2 });
  const x = { dtype: "float32", shape: [1, 4], data: Float32Array.from([1, 2, 3, 4]) };
  const runs = [];
  for (let i = 0; i < 3; i++) {
    runs.push(Array.from((await model.run({ x })).y.data));
    await new Promise((resolve) => setTimeout(resolve, 60)); // the helper starts
  }
  model.dispose();
  console.log(JSON.stringify(runs));
} catch ({ name, message }) {
  console.log(JSON.stringify([name, message]));
}
"""


def test_a_bundle_runs_under_node(tmp_path: Path) -> None:
    """It uses the worker of the package. If that is missing, the error names it."""
    scaled(tmp_path / "model")
    (tmp_path / "main.mjs").write_text(BUNDLED)
    esbuild = [str(ROOT / "node_modules" / ".bin" / "esbuild"), "main.mjs", "--bundle"]
    options = ["--platform=node", "--format=esm", "--outfile=dist/main.mjs"]
    subprocess.run([*esbuild, *options], cwd=tmp_path, check=True, capture_output=True)
    main = ["node", str(tmp_path / "dist" / "main.mjs"), "../model/"]
    values = []
    for _ in range(2):
        process = subprocess.run(main, capture_output=True, text=True, timeout=60, check=True)
        values.append(json.loads(process.stdout))
        (tmp_path / "model" / "wasm_worker.js").unlink(missing_ok=True)
    runs, (name, message) = values
    assert runs == [[1, 0, 1.5, 12]] * 3
    assert name == "HostError"
    assert f"{tmp_path.as_uri()}/model/wasm_worker.js did not start (Cannot find module" in message


def test_inputs_are_copied_and_a_loaded_model_lets_the_process_end(tmp_path: Path) -> None:
    """Paths are relative to the working folder."""
    scaled(tmp_path / "package")
    script = SCRIPT.with_name("run_lifetime.mjs")
    process = subprocess.run(
        ["node", str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    first, second = (float(expected(np.full((1, 4), v, np.float32))[0, 0]) for v in (1, 9))
    assert json.loads(process.stdout) == [first, second] * 8
