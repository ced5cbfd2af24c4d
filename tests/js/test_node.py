"""The same runtime under Node, whose V8 has no relaxed SIMD unless asked: the fallback's proof."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.packages import expected, scaled

SCRIPT = Path(__file__).parent / "run_model.mjs"


@pytest.mark.parametrize(
    ("flags", "threads", "variant"),
    [([], 1, "simd128"), ([], 2, "simd128"), (["--experimental-wasm-relaxed-simd"], 2, "relaxed")],
)
def test_a_package_runs_under_node(
    tmp_path: Path, flags: list[str], threads: int, variant: str
) -> None:
    scaled(tmp_path)
    done = subprocess.run(
        ["node", *flags, str(SCRIPT), str(tmp_path), str(threads)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["variant"], result["threads"]) == (variant, threads)
    for n, output in zip([3, 1, 5000, 6000, 20000, 2], result["outputs"], strict=True):
        x = np.sin(np.arange(4 * n) + n).astype(np.float32).reshape(n, 4)
        np.testing.assert_allclose(np.reshape(output, (n, 4)), expected(x), atol=1e-6)
    assert result["profiled"] == ["scale", "relu"]
    assert result["together"] == list(range(20))
    assert result["error"] == ["InputError", "input"]
