"""Run a language model with transformers, for `benchmarks/llm_accuracy.py`.

This runs in a Python of its own, with torch, transformers, gguf and accelerate, and without webmlc.

    in (stdin):   { model, passages: [[token]], prompts: [[token]], count, ends: [token] }
    out (stdout): { version, losses: [[nats]], continuations: [continuation] }
    continuation: { tokens, best: [[[token, logit]]] }
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

BEST = 32
"""The logits of a step that are kept."""


def losses_of(model: Any, ids: list[int]) -> list[float]:
    """The negative log-likelihood of each token but the first, given those before it."""
    with torch.inference_mode():
        logits = model(torch.tensor([ids[:-1]])).logits[0].double()
    losses: list[float] = torch.nn.functional.cross_entropy(
        logits, torch.tensor(ids[1:]), reduction="none"
    ).tolist()
    return losses


def continuation_of(
    model: Any, prompt: list[int], count: int, ends: list[int]
) -> dict[str, list[Any]]:
    """The greedy continuation of a prompt, with the largest logits of each step."""
    tokens: list[int] = []
    best: list[list[tuple[int, float]]] = []
    fresh, cache = torch.tensor([prompt]), None
    with torch.inference_mode():
        while len(tokens) < count and not (tokens and tokens[-1] in ends):
            output = model(fresh, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            values, indices = output.logits[0, -1].topk(BEST)
            best.append(list(zip(indices.tolist(), values.tolist(), strict=True)))
            tokens.append(int(indices[0]))
            fresh = indices[:1][None]
    return {"tokens": tokens, "best": best}


def main() -> None:
    job = json.load(sys.stdin)
    path = Path(job["model"])
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    result = {
        "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "losses": [losses_of(model, ids) for ids in job["passages"]],
        "continuations": [
            continuation_of(model, prompt, job["count"], job["ends"]) for prompt in job["prompts"]
        ],
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
