"""Options of a run in Node: some outputs, arrays that receive them, and signals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import webmlc
from tests.host.test_outputs import MODEL, NAMES, X
from tests.js.test_session import exercised

CHOSEN: list[list[str]] = [[], ["total"], ["places", "a"], ["constant"], list(NAMES)]
DATA: dict[str, Any] = {"x": X.ravel().tolist(), "chosen": CHOSEN}


@pytest.mark.parametrize("threads", [1, 2])
def test_options_of_a_run(tmp_path: Path, threads: int) -> None:
    webmlc.build(MODEL, tmp_path, target="wasm")
    check_outputs(exercised(tmp_path, threads, "./outputs.mjs", DATA))


def check_outputs(results: dict[str, Any]) -> None:
    """Compare what `outputs.mjs` returns with numpy."""
    places = np.argwhere(X > 0).sum(1)
    expected = {"a": np.exp(X).ravel(), "places": places, "total": np.exp(X).sum(1)}
    expected["constant"] = np.array([1, 2])

    def check(outputs: dict[str, list[float]], names: list[str]) -> None:
        assert list(outputs) == [name for name in NAMES if name in names]
        for name, values in outputs.items():
            np.testing.assert_allclose(values, expected[name], rtol=1e-5)

    for outputs, names in zip(results["selections"], CHOSEN * 2, strict=True):
        check(outputs, names)
    check(results["received"], list(NAMES))
    assert results["places"] == {"isA": True, "isPart": True, "rest": 7}
    check(results["aborted"].pop("after"), list(NAMES))
    texts = (
        'no output is named "b"; the model returns "a", "places", "total", "constant"',
        "outputs is no list of names",
        'no option of a run is named "output"; there are outputs, results, signal',
        'results has an array for "total", which is not one of outputs',
        'the array in results for "a" is Float64Array, expected float32 as Float32Array',
        'the array in results for "a" has 3 elements, but the output has 12',
    )
    assert results["errors"] == [f"input: {text}" for text in texts]
    aborted = results["aborted"]
    assert aborted.pop("order") == [0, "1 AbortError", 2]
    assert aborted.pop("reason") == "Error: enough"
    assert all(aborted[when].startswith("AbortError: ") for when in ("before", "between"))
