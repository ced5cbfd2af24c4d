"""Damaged GGUF models, compared with the equations of their architectures in float64."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, quants

from tests.language_models.reference import logits_of
from tests.language_models.small_models import LLAMA, QWEN2, QWEN3, SmallModel, write_model
from tests.users.mutations.command import build
from tests.users.mutations.family import Mutant, Note
from tests.users.mutations.gguf_changes import draw_change
from tests.users.mutations.gguf_container import parse
from tests.users.mutations.outcome import Outcome
from webmlc.core.machine import Device
from webmlc.host.load import load

BASES = {
    "llama": replace(LLAMA, layers=1),
    "llama of halves": replace(LLAMA, layers=1, types=(Type.F16, Type.Q4_0, Type.F32)),
    "qwen2": replace(QWEN2, layers=1),
    "qwen3": replace(QWEN3, layers=1),
}
IDS = [3, 1, 4, 1, 5]
"""The tokens that a model continues."""
CUT_SHARE = 0.05
"""The share of mutants that end early."""
LARGEST_WEIGHT = 1e4
"""The largest weight of a model that is compared: float32 holds the squares of its products."""
TOLERANCE = 2e-3
"""The error of logits, relative to the largest one."""


class GgufFamily:
    """Models of one file."""

    def draw(self, rng: random.Random) -> Mutant:
        base = rng.choice(sorted(BASES))
        container = parse(whole_file(base))
        changes = [draw_change(container, rng) for _ in range(rng.choice((1, 1, 1, 2)))]
        data = container.data()
        if rng.random() < CUT_SHARE:
            data = data[: rng.randrange(len(data))]
            changes.append(f"cut after {len(data)} bytes")
        return Mutant(f"{base}: {', '.join(changes)}", "model.gguf", {"model.gguf": data})

    def judge(self, mutant: Mutant, folder: Path, device: Device, note: Note) -> Outcome:
        path = mutant.write(folder)
        refusal = build(path, folder / "package", device, "--exact")
        if refusal is not None:
            return refusal
        model = load(folder / "package", device=device)
        try:
            logits = model.run({"input_ids": np.array([IDS])})["logits"]
            model.generate("!! text", max_new_tokens=2, temperature=0).complete()
            model.generate([{"role": "user", "content": "!"}], max_new_tokens=1).complete()
        finally:
            model.dispose()
        note("reference")
        try:
            expected = _reference(path)
        except Exception as error:
            return Outcome("unjudged", f"{type(error).__name__}: {error}")
        with np.errstate(all="ignore"):
            distance = np.abs(logits[0] - expected).max() / np.abs(expected).max()
        return Outcome("right") if distance < TOLERANCE else Outcome("wrong", f"by {distance:.2g}")

    def run_reference(self, mutant: Mutant, folder: Path) -> None:
        _reference(mutant.write(folder))


@cache
def whole_file(name: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.gguf")
        write_model(path, BASES[name])
        return path.read_bytes()


def _reference(path: Path) -> np.ndarray[Any, Any]:
    """The logits of the last token. Raises an error for a file that has other settings."""
    reader = GGUFReader(path)
    values = {name: field.contents() for name, field in reader.fields.items()}
    architecture = values["general.architecture"]

    def number(key: str, default: Any = None) -> Any:
        return values.get(f"{architecture}.{key}", default)

    if abs(number("attention.layer_norm_rms_epsilon") / 1e-5 - 1) > 1e-3:
        raise ValueError("another epsilon")
    if number("attention.scale") is not None or number("attention.key_length") is not None:
        raise ValueError("another attention")
    tensors = {
        t.name: quants.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1])
        for t in reader.tensors
    }
    if max(float(np.abs(tensor).max()) for tensor in tensors.values()) > LARGEST_WEIGHT:
        raise ValueError("weights whose products exceed float32")
    model = SmallModel(
        architecture,
        tied="output.weight" not in tensors,
        width=number("embedding_length"),
        hidden=number("feed_forward_length"),
        heads=number("attention.head_count"),
        layers=number("block_count"),
        frequency_base=number("rope.freq_base", 10000.0),
        frequency_scale=number("rope.scaling.factor", 1.0),
        rotated=number("rope.dimension_count", 0),
        head_norms=architecture == "qwen3",
    )
    logits: np.ndarray[Any, Any] = logits_of(model, tensors, IDS)[-1]
    return logits
