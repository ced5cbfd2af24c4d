"""Small models of each architecture against plain equations, on both devices: a prompt, more
tokens, and then one token, with the keys and values of earlier tokens as inputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

import webmlc
from tests.language_models.reference import logits_of
from tests.language_models.small_models import LLAMA, QWEN2, QWEN3, SmallModel, write_model
from webmlc.core.errors import InputError
from webmlc.core.expr import Var
from webmlc.frontend.gguf.read_gguf import read_gguf
from webmlc.frontend.read_model import read_model
from webmlc.graph.infer.infer_shapes import infer_shapes
from webmlc.graph.infer.normalise import normalise
from webmlc.graph.quantise.exactness import compute_exactly
from webmlc.package.manifest import File, Symbol
from webmlc.package.manifest_json import read_manifest
from webmlc.package.program import signature

FLOATS = (Type.F32, Type.F16)
"""Kernels of quantised weights take long to build, so one model on the devices has them."""
IDS = [int(i) for i in np.random.default_rng(1).integers(0, LLAMA.vocabulary, 23)]
PARTS = (IDS[:13], IDS[13:22], IDS[22:])
"""The tokens of three runs."""


@pytest.mark.parametrize(
    ("model", "every_row", "devices"),
    [
        pytest.param(replace(LLAMA, types=(Type.Q4_1,)), False, ("wasm", "webgpu"), id="llama"),
        pytest.param(replace(QWEN2, types=FLOATS, hidden=128), True, ("webgpu",), id="qwen2"),
        pytest.param(replace(QWEN3, types=FLOATS, hidden=128), True, ("wasm",), id="qwen3"),
    ],
)
def test_logits_equal_reference(
    model: SmallModel, every_row: bool, devices: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "small.gguf"
    tensors = write_model(path, model)
    module = compute_exactly(read_gguf(path, every_row=every_row, has_cache_inputs=True))
    target = "both" if len(devices) == 2 else devices[0]
    manifest = webmlc.build(module, tmp_path / "package", target=target)
    check_assets(tmp_path / "package", manifest.files, model.positions)
    expected = logits_of(model, tensors, IDS)
    if not every_row:
        expected = expected[np.cumsum([len(part) for part in PARTS]) - 1]
    for device in devices:
        logits = run_parts(tmp_path / "package", device, model)
        np.testing.assert_allclose(logits, expected, atol=2e-5, err_msg=device)
        check_row_work(tmp_path / "package", device, model)


def check_row_work(package: Path, device: str, model: SmallModel) -> None:
    """Check that the manifest states a token's work. A token reads all keys and values, and nearly
    all weights.
    """
    program = read_manifest(package).programs[device]  # type: ignore[index]
    row = program.resources.row
    assert row is not None
    assert 0 < row.steps < len(program.steps) or not any(run.once for run in program.runs)
    assert row.bytes_per_row >= model.layers * 2 * model.groups * model.size * 4
    assert 0.5 * program.resources.weights < row.bytes < 4 * program.resources.weights


def check_assets(package: Path, files: Mapping[str, File], positions: int) -> None:
    """Check that the package has the files of the tokeniser."""
    for name in ("tokenizer.deflate", "chat_template.jinja", "generation_config.json"):
        assert files[name].bytes == (package / name).stat().st_size
    config = json.loads((package / "generation_config.json").read_text())
    assert config == {"bos_token_id": 0, "eos_token_id": [2, 0], "max_length": positions}


def run_parts(package: Path, device: str, model: SmallModel) -> np.ndarray:
    """The logits of all runs, one below the other."""
    loaded = webmlc.load(package, device=device)
    empty = np.zeros((0, model.groups, model.size), np.float32)
    caches = {port.name: empty for port in loaded.inputs if port.name != "input_ids"}
    rows = []
    for part in PARTS:
        outputs = loaded.run({"input_ids": np.array([part]), **caches})
        rows.append(outputs.pop("logits"))
        np.testing.assert_array_equal(outputs.pop("next_token"), rows[-1].argmax(1))
        caches = {n.replace("present", "past"): array for n, array in outputs.items()}
    return np.concatenate(rows)


def test_caches_are_half_as_large_unless_exact(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    write_model(path, LLAMA)
    for exact, dtype in ((False, "bfloat16"), (True, None)):
        webmlc.build(path, tmp_path / "package", target="wasm", exact=exact)
        program = json.loads((tmp_path / "package" / "manifest.json").read_text())["programs"][
            "wasm"
        ]
        states = [b for b in program["buffers"] if b.get("kind") == "state"]
        assert [state.get("dtype") for state in states] == [dtype] * 2 * LLAMA.layers


def test_a_context_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    write_model(path, LLAMA)
    for context, positions in ((12, 12), (10**6, LLAMA.positions)):
        module = read_model(path, context=context)
        assert json.loads(module.assets["generation_config.json"])["max_length"] == positions
    with pytest.raises(InputError, match="GGUF files only"):
        read_model(module, context=12)


def test_caches_are_state(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    write_model(path, LLAMA)
    module = infer_shapes(normalise(read_model(path)))
    main = module.main
    assert (main.inputs, main.outputs) == (("input_ids",), ("logits", "next_token"))
    assert str(main.type("logits")) == f"float32[1, {LLAMA.vocabulary}]"
    assert str(main.type("next_token")) == "int64[1]"
    appends = [node for node in main.nodes if node.op == "Append"]
    assert len(appends) == 2 * LLAMA.layers
    for node in appends:
        assert node.attributes["length"] == Var("past")
        assert str(main.type(node.inputs[0])) == "float32[tokens, 2, 16]"
        assert str(main.type(node.outputs[0])) == "float32[past + tokens, 2, 16]"
    symbols = signature(module).symbols
    assert symbols == (Symbol("tokens", "input_ids", 1), Symbol("past", "", 0))
    requirements = [(str(r.left), r.rule, str(r.right)) for r in main.requirements]
    assert ("past + tokens", "at most", str(LLAMA.positions)) in requirements
