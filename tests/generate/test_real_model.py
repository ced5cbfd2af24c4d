"""A small language model, built from GGUF: Python and Node generate the same text with it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

from tests.language_models.small_models import SmallModel, write_model
from webmlc import build
from webmlc.host.load import load

SCRIPT = """
import { pathToFileURL } from "node:url";
const folder = pathToFileURL(`${process.argv[2]}/`);
const { load } = await import(new URL("webmlc.js", folder).href);
const model = await load(folder, { device: "wasm", variant: "simd128", threads: 2 });
const answers = [];
for (const [prompt, options] of JSON.parse(process.argv[3])) {
  const generation = model.generate(prompt, options);
  const text = await generation.complete();
  answers.push([text, generation.usage.cached_tokens, generation.usage.finish_reason]);
}
console.log(JSON.stringify(answers));
model.dispose();
"""
SMALL = SmallModel("llama", tied=True, layers=1, hidden=128, types=(GGMLQuantizationType.Q8_0,))
"""A model that builds in seconds."""
QUESTION = [{"role": "user", "content": "!#%&"}]
JOBS: list[tuple[Any, dict[str, Any]]] = [
    (QUESTION, {"max_new_tokens": 12}),
    (QUESTION, {"max_new_tokens": 12, "temperature": 1, "seed": 1}),
    ("!#%&ABC", {"max_new_tokens": 12, "temperature": 0.5, "top_p": 0.9, "seed": 2}),
    ([5, 6, 7] * 10, {"max_new_tokens": 100, "temperature": 2, "top_k": 0, "seed": 5}),
]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("language")
    write_model(folder / "small.gguf", SMALL)
    build(folder / "small.gguf", folder / "package", target="wasm")
    return folder / "package"


def test_the_same_texts_in_python_and_node(package: Path, tmp_path: Path) -> None:
    model = load(package, device="wasm", features="simd128")
    answers = []
    for prompt, options in JOBS:
        generation = model.generate(prompt, **options)
        text, usage = generation.complete(), generation.usage
        answers.append([text, usage.cached_tokens, usage.finish_reason])
    model.dispose()
    script = tmp_path / "run.mjs"
    script.write_text(SCRIPT)
    command = ["node", str(script), str(package), json.dumps(JOBS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    assert json.loads(done.stdout) == answers
    assert [cached for _, cached, _ in answers][1] == 3
    assert answers[3][2] == "context"
