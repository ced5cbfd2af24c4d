"""Compare a language model with the same model in transformers, whose weights are dequantised.

In: a GGUF file, by default that of the chat demo, and a Python with torch, transformers, gguf and
accelerate, which webmlc does not need:

    python -m venv /tmp/reference
    /tmp/reference/bin/pip install torch transformers gguf accelerate
    python benchmarks/llm_accuracy.py --python /tmp/reference/bin/python

Out: for a default build and for one with `--exact`, a table and `llm_accuracy.json`:

- the perplexity of passages of the README and the documentation of webmlc, and how far it is from
  the reference's, with the standard error of that difference;
- the greedy continuations of some prompts that equal the reference's; and for each other one, how
  much the reference prefers its own token to ours where they first differ.

The command fails if a perplexity is further away than `BOUNDS`, or if a continuation of the exact
build differs where the reference's preference is clear. It takes some minutes.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import webmlc
from benchmarks.results import commit
from demos.chat.run import fetch_model
from webmlc.frontend.gguf.read_gguf import read_gguf
from webmlc.generate.prompt import TextCodec
from webmlc.host.load import Model

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = Path(__file__).parent / "llm" / "reference.py"
TEXTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/glossary.md",
    "docs/bundlers.md",
    "docs/pictures.md",
    "docs/troubleshooting.md",
    "docs/gpu.md",
)
BOUNDS = {"default": 5e-3, "exact": 5e-4}
"""The largest relative difference of a perplexity. From the acceptance of language models."""
NEAR_TIE = 5e-3
"""A difference of two logits that summing in another order may reverse. Logits reach 36, and the
largest difference from the reference in float32 is about 1e-3. Chosen by hand.
"""
PASSAGE = 2560
"""The tokens of a passage: each begins with an empty context."""
CHUNK = 256
"""The tokens of one run."""
NEIGHBOURS = 32
"""The tokens whose losses count as one sample of a standard error, because they depend on each
other. Chosen by hand.
"""
QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child.",
    "List three uses of a paper clip.",
    "What is 17 plus 25?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Hamlet?",
    "How do bees make honey?",
    "Give me a recipe for pancakes.",
    "What causes the seasons?",
    "Write a Python function that reverses a string.",
    "Name the planets of the solar system.",
    "What is the difference between weather and climate?",
    "Summarise the story of Cinderella in two sentences.",
    "How does a refrigerator work?",
    "Suggest a name for a bookshop.",
    "What should I pack for a day of hiking?",
    "Explain what a compiler does.",
    "Tell me a joke about cats.",
)


def losses_of(model: Model, ids: Sequence[int]) -> np.ndarray:
    """The negative log-likelihood of each token but the first, given those before it."""
    losses = []
    session = model.session(capacity=len(ids))
    for begin in range(0, len(ids) - 1, CHUNK):
        inputs = np.array([ids[begin : min(begin + CHUNK, len(ids) - 1)]], np.int64)
        logits = session.run({"input_ids": inputs})["logits"].astype(np.float64)
        targets = ids[begin + 1 : begin + 1 + len(logits)]
        top = logits.max(-1, keepdims=True)
        logits -= top + np.log(np.exp(logits - top).sum(-1, keepdims=True))
        losses.append(-logits[np.arange(len(targets)), targets])
    session.dispose()
    return np.concatenate(losses)


def continuation(model: Model, prompt: Sequence[int], count: int, ends: Sequence[int]) -> list[int]:
    """The greedy continuation of a prompt, up to an end token."""
    session = model.session(capacity=len(prompt) + count)
    tokens: list[int] = []
    fresh = list(prompt)
    while len(tokens) < count and not (tokens and tokens[-1] in ends):
        logits = session.run({"input_ids": np.array([fresh], np.int64)})["logits"]
        fresh = [int(logits[-1].argmax())]
        tokens += fresh
    session.dispose()
    return tokens


def compare(model: Model, job: dict[str, Any], reference: dict[str, Any], name: str) -> Any:
    """The row of a build."""
    losses = np.concatenate([losses_of(model, passage) for passage in job["passages"]])
    expected = np.concatenate(reference["losses"])
    perplexity = float(np.exp(losses.mean()))
    differences = []
    for question, prompt, other in zip(
        QUESTIONS, job["prompts"], reference["continuations"], strict=True
    ):
        tokens = continuation(model, prompt, job["count"], job["ends"])
        pairs = enumerate(zip(tokens, other["tokens"], strict=False))
        first = next((i for i, (ours, theirs) in pairs if ours != theirs), None)
        if first is not None:
            # The reference keeps its largest logits of each step, the first one being its choice.
            best = dict(other["best"][first])
            floor = min(best.values())
            gap = best[other["tokens"][first]] - best.get(tokens[first], floor)
            differences.append({"prompt": question, "token": first, "gap": round(gap, 5)})
    print(f"{name}: perplexity {perplexity:.4f}, {len(differences)} texts differ", file=sys.stderr)
    return {
        "build": name,
        "perplexity": round(perplexity, 5),
        "difference": round(float(np.expm1((losses - expected).mean())), 6),
        "standard_error": round(standard_error(losses - expected), 6),
        "equal_texts": len(QUESTIONS) - len(differences),
        "differences": differences,
    }


def standard_error(differences: np.ndarray) -> float:
    """The standard error of the mean of the differences of losses, in nats."""
    parts = max(1, len(differences) // NEIGHBOURS)
    means = [part.mean() for part in np.array_split(differences, parts)]
    return float(np.std(means) / np.sqrt(parts))


def run_reference(python: Path, job: dict[str, Any]) -> dict[str, Any]:
    """The losses and the continuations of transformers."""
    done = subprocess.run(
        [str(python), str(REFERENCE)],
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def show(rows: list[dict[str, Any]], reference: float, texts: int) -> None:
    table = Table(title=f"reference: perplexity {reference:.4f}")
    for column in ("build", "perplexity", "difference", "equal texts", "where texts differ"):
        table.add_column(column)
    for row in rows:
        gaps = ", ".join(f"token {d['token']}: {d['gap']}" for d in row["differences"])
        equal = f"{row['equal_texts']} of {texts}"
        difference = f"{row['difference']:+.4%} ± {row['standard_error']:.4%}"
        table.add_row(row["build"], f"{row['perplexity']:.4f}", difference, equal, gaps)
    Console(width=160).print(table)


def failures(rows: list[dict[str, Any]]) -> list[str]:
    """The figures that are farther from the reference than their bounds."""
    messages = []
    for row in rows:
        if abs(row["difference"]) > BOUNDS[row["build"]]:
            messages.append(f"{row['build']}: the perplexity differs by {row['difference']:.3%}")
        if row["build"] == "exact":
            messages += [
                f"exact: {item['prompt']!r} differs at token {item['token']}"
                for item in row["differences"]
                if item["gap"] > NEAR_TIE
            ]
    return messages


def main(
    python: Annotated[
        Path, typer.Option(help="A Python with torch, transformers, gguf and accelerate.")
    ],
    model: Annotated[
        Path | None, typer.Option(help="A GGUF file.", show_default="that of demos/chat")
    ] = None,
    passages: Annotated[int, typer.Option(help="The passages of the text.")] = 4,
    count: Annotated[int, typer.Option(help="The most tokens of a continuation.")] = 48,
    out: Annotated[Path, typer.Option("--json")] = ROOT / "benchmarks" / "llm_accuracy.json",
) -> None:
    """Compare a language model with transformers."""
    path = (model or fetch_model()).resolve()
    rows: list[dict[str, Any]] = []
    job: dict[str, Any] = {}
    reference: dict[str, Any] = {}
    for name in BOUNDS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"building {path.name}, {name}", file=sys.stderr)
            module = read_gguf(path, every_row=True)
            webmlc.build(module, folder, target="wasm", exact=name == "exact")
            loaded = webmlc.load(folder, device="wasm", threads=2)
            if not job:
                job = job_of(loaded, path, passages, count)
                reference = run_reference(python, job)
            rows.append(compare(loaded, job, reference, name))
            loaded.dispose()
    expected = float(np.exp(np.concatenate(reference["losses"]).mean()))
    show(rows, expected, len(QUESTIONS))
    result = {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "model": path.name,
        "reference": reference["version"],
        "tokens": sum(map(len, job["passages"])),
        "perplexity": round(expected, 5),
        "builds": rows,
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    if messages := failures(rows):
        sys.exit("\n".join(messages))


def job_of(model: Model, path: Path, passages: int, count: int) -> dict[str, Any]:
    """The job of both sides."""
    codec = TextCodec(model.file, model.has_chat_template)
    text = "\n".join((ROOT / name).read_text("utf-8") for name in TEXTS)
    ids = codec.tokens_of(text)
    parts = [ids[i * PASSAGE : (i + 1) * PASSAGE] for i in range(passages)]
    prompts = [codec.tokens_of([{"role": "user", "content": text}]) for text in QUESTIONS]
    ends = sorted(codec.end_tokens)
    return {
        "model": str(path),
        "passages": parts,
        "prompts": prompts,
        "count": count,
        "ends": ends,
    }


if __name__ == "__main__":
    typer.run(main)
