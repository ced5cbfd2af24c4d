"""Python and JavaScript generate the same texts from the same logits, and run the same tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.generate.fakes import FakeModel, language_files, mixed_logits, reader, write_files
from tests.node import answer_once
from webmlc.core.errors import InputError
from webmlc.generate.generate import TextGenerator
from webmlc.generate.random_numbers import RandomNumbers

SCRIPT = Path(__file__).parent / "twin.mjs"
SEEDS = (0, 1, 7, 2**32 - 1)
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello world 🙂"}]
NEXT = [*HELLO, {"role": "assistant", "content": "well"}, {"role": "user", "content": "And?"}]
LONG = "hello wörld " * 60
PARTS = [{"type": "text", "text": "hello"}, {"type": "text", "text": "world"}]
NUMBERS = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
WRONG_NUMBERS = ("0.5", "hot", -1, [1], True)
JOBS: list[dict[str, Any]] = [
    {"prompt": HELLO, "options": {"max_new_tokens": 40}},
    {"prompt": NEXT, "options": {"max_new_tokens": 40, "temperature": 0.7, "seed": 3}},
    {"prompt": NEXT, "options": {"max_new_tokens": 40, "temperature": 0.7, "seed": 4}},
    {"prompt": LONG, "options": {"max_new_tokens": 60, "temperature": 2, "top_k": 0, "seed": 1}},
    {"prompt": LONG, "options": {"temperature": 1, "top_k": 0, "top_p": 0.8, "seed": 2}},
    {"prompt": LONG, "options": {"temperature": 1.5, "top_k": 0, "min_p": 0.1, "seed": 2}},
    {"prompt": "hello", "options": {"do_sample": True, "repetition_penalty": 1.3, "seed": 9}},
    {
        "prompt": [1, 2, 3],
        "options": {"temperature": 1, "top_k": 7, "top_p": 0.9, "min_p": 0.05, "seed": 5},
    },
    {"prompt": "hello", "options": {"temperature": 3, "top_k": 0, "seed": 8, "stop": ["a", "zz"]}},
    {"prompt": [5] * 20, "options": {"capacity": 24, "temperature": 1, "top_k": 0, "seed": 6}},
    {"prompt": [5] * 24, "options": {"capacity": 24}},
    {"prompt": [], "options": {}},
    {"prompt": [{"content": "no role"}], "options": {}},
    {"prompt": "x", "options": {"temprature": 1}},
    {"prompt": "x", "options": {"top_p": 0}},
    {"prompt": "x", "options": {"max_new_tokens": 0}},
    {"prompt": "x", "options": {"seed": 2**32}},
    {"prompt": LONG, "options": {"max_new_tokens": 30}, "abortAfter": 3},
    {"prompt": LONG, "options": {"max_new_tokens": 30}, "fails": True},
    {"prompt": LONG, "options": {"max_new_tokens": 3}},  # in another session
    {"prompt": "\ud800 hello \udc00\ud83d\ude42", "options": {"max_new_tokens": 4}},
    {"prompt": [{"role": "user", "content": PARTS}], "options": {"max_new_tokens": 4}},
    {"prompt": [{"role": "user", "content": [{"type": "image"}]}], "options": {}},
    {"prompt": [{"role": "user", "content": None}], "options": {}},
    {"prompt": [{"role": 3, "content": "x"}], "options": {}},
    {"prompt": 5, "options": {}},
    {"prompt": [1.5], "options": {}},
    {"prompt": "x", "options": {"capacity": 4097}},
    {"prompt": "x", "options": {"template_arguments": "thinking"}},
    *({"prompt": "x", "options": {name: value}} for name in NUMBERS for value in WRONG_NUMBERS),
    *({"prompt": "x", "options": {"stop": stop}} for stop in (5, [""], ["a", 1], {"a": 1}, True)),
    {"prompt": "x", "options": {"do_sample": "no"}},
    {"prompt": "x", "options": {"do_sample": 1}},
]
TIMES = ("prompt_seconds", "completion_seconds", "tokens_per_second")


def in_javascript(folder: Path) -> Any:
    """The numbers and the answers of the JavaScript twin."""
    return answer_once(SCRIPT, {"folder": str(folder), "random": SEEDS, "jobs": JOBS})


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return in_javascript(write_files(tmp_path_factory.mktemp("twin")))


def failing(_: Sequence[int]) -> NDArray[np.float32]:
    """The logits of a model whose runs fail."""
    raise InputError("no memory")


def answer(generator: TextGenerator, model: FakeModel, job: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of Python, as the script writes it."""
    pieces: list[str] = []
    after = job.get("abortAfter")
    model.logits = failing if job.get("fails") else mixed_logits
    options = dict(job["options"]) | {"is_interrupted": lambda: len(pieces) == after}
    try:
        generation = generator.generate(job["prompt"], options)
        pieces.extend(generation)
    except InputError:
        return {"code": "input"}
    usage = {name: getattr(generation.usage, name) for name in generation.usage.__slots__}
    session = model.sessions[-1]
    runs, session.runs = session.runs, []
    outputs, session.outputs = session.outputs, []
    return {"pieces": pieces, "usage": usage, "runs": runs, "outputs": outputs}


def test_the_same_texts(twin: Any) -> None:
    model = FakeModel()
    generator = TextGenerator(model, reader(language_files()))
    kinds = set()
    for job, other in zip(JOBS, twin["answers"], strict=True):
        expected = answer(generator, model, job)
        other.pop("error", None)
        for name in TIMES:
            expected.get("usage", {}).pop(name, None)
            other.get("usage", {}).pop(name, None)
        if "seed" not in job["options"] and "usage" in other:
            other["usage"]["seed"] = expected["usage"]["seed"]
        assert other == expected, job
        kinds.add(expected.get("usage", {}).get("finish_reason"))
    failed = next(number for number, job in enumerate(JOBS) if job.get("fails"))
    assert twin["answers"][failed + 1]["usage"]["cached_tokens"] == 0
    assert kinds == {"stop", "length", "context", "interrupted", None}


def test_the_same_random_numbers(twin: Any) -> None:
    for seed, numbers in zip(SEEDS, twin["random"], strict=True):
        random = RandomNumbers(seed)
        assert [random.next() for _ in numbers] == numbers
