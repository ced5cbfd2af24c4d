"""A small language model, built from GGUF: Python and Node generate the same text with it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from tests.js.test_session import exercised
from tests.language_models.small_models import SmallModel, write_model
from webmlc import build
from webmlc.host.load import Model, load

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
PIPELINE = """
import { pathToFileURL } from "node:url";
const folder = pathToFileURL(`${process.argv[2]}/`).href;
const { pipeline, TextStreamer } = await import(`${folder}pipeline.js`);
const device = { device: "wasm", variant: "simd128", threads: 1 };
const generate = await pipeline("text-generation", folder, device);
const [question, text, options] = JSON.parse(process.argv[3]);
const pieces = [];
const streamer = new TextStreamer(null, { callback_function: (piece) => pieces.push(piece) });
console.log(
  JSON.stringify({
    chat: await generate(question, { ...options, streamer }),
    text: await generate(text, options),
    answers: await generate([question, text], { ...options, return_full_text: false }),
    pieces: pieces.join(""),
  }),
);
await generate.dispose();
"""
MANY = 1000
SMALL = SmallModel(
    "llama",
    tied=True,
    layers=1,
    hidden=128,
    positions=MANY + 64,
    types=(GGMLQuantizationType.Q8_0,),
)
"""A model that builds in seconds."""
TOKENS: dict[str, Any] = {"prompt": [5, 6, 7], "count": MANY}
FIRST = 24
"""The tokens that are compared with those from the logits. A random model then repeats itself."""
QUESTION = [{"role": "user", "content": "!#%&"}]
JOBS: list[tuple[Any, dict[str, Any]]] = [
    (QUESTION, {"max_new_tokens": 12}),
    (QUESTION, {"max_new_tokens": 12, "temperature": 1, "seed": 1}),
    ("!#%&ABC", {"max_new_tokens": 12, "temperature": 0.5, "top_p": 0.9, "seed": 2}),
    (
        [5, 6, 7] * 10,
        {"max_new_tokens": 100, "temperature": 2, "top_k": 0, "seed": 5, "capacity": 64},
    ),
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
    by_logits = greedy_tokens(model, [5, 6, 7], FIRST, "logits")
    assert greedy_tokens(model, [5, 6, 7], FIRST) == by_logits
    model.dispose()
    script = tmp_path / "run.mjs"
    script.write_text(SCRIPT)
    command = ["node", str(script), str(package), json.dumps(JOBS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    assert json.loads(done.stdout) == answers
    assert [cached for _, cached, _ in answers][1] == 3
    assert answers[3][2] == "context"


def test_the_pipeline_gives_the_same_texts(package: Path, tmp_path: Path) -> None:
    text, options = "!#%&ABC", {"max_new_tokens": 8, "do_sample": False}
    model = load(package, device="wasm", features="simd128")
    answers = [model.generate(p, **options).complete() for p in (QUESTION, text)]
    model.dispose()
    assert all(answers)
    script = tmp_path / "run.mjs"
    script.write_text(PIPELINE)
    command = ["node", str(script), str(package), json.dumps([QUESTION, text, options])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-1000:]
    reply = {"role": "assistant", "content": answers[0]}
    assert json.loads(done.stdout) == {
        "chat": [{"generated_text": [*QUESTION, reply]}],
        "text": [{"generated_text": text + answers[1]}],
        "answers": [[{"generated_text": answer}] for answer in answers],
        "pieces": answers[0],
    }


@pytest.mark.parametrize("threads", [1, 2])
def test_a_thousand_tokens_plan_and_allocate_nothing(package: Path, threads: int) -> None:
    results = exercised(package, threads, "./tokens.mjs", TOKENS)
    check_tokens(results, package)
    most = 1 + 2 * (threads - 1)
    assert results["messages"] <= most, "the page asks for the memory once, and helpers start"
    assert results["memory"][0] == results["memory"][1] > 0


def check_tokens(results: dict[str, Any], package: Path, count: int = MANY) -> None:
    """Compare the first tokens with those that Python reads from the logits."""
    model = load(package, device="wasm", features="simd128")
    expected = greedy_tokens(model, TOKENS["prompt"], FIRST, "logits")
    model.dispose()
    assert results["tokens"][:FIRST] == expected
    assert len(results["tokens"]) == count + 4
    assert all(0 <= token < SMALL.vocabulary for token in results["tokens"])
    assert results["length"] == len(TOKENS["prompt"]) + count + 3
    assert results["bytes"] == 8


def greedy_tokens(
    model: Model, prompt: list[int], count: int, output: str = "next_token"
) -> list[int]:
    """The most likely tokens after a prompt, found by the model or from its logits."""
    session, tokens = model.session(capacity=len(prompt) + count), prompt
    answer: list[int] = []
    for _ in range(count):
        rows = session.run({"input_ids": np.array([tokens], np.int64)}, [output])[output]
        tokens = [int(rows[-1] if output == "next_token" else rows[-1].argmax())]
        answer += tokens
    return answer
