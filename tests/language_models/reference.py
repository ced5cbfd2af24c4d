"""The logits of a decoder in float64: the equations of the architectures, written plainly."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tests.language_models.small_models import SmallModel

Tensors = Mapping[str, np.ndarray]


def logits_of(model: SmallModel, tensors: Tensors, ids: list[int]) -> np.ndarray:
    """The logits of every token, [tokens, vocabulary]."""
    weights = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    x = weights["token_embd.weight"][ids]
    for layer in range(model.layers):
        block = {
            name.removeprefix(f"blk.{layer}."): w
            for name, w in weights.items()
            if name.startswith(f"blk.{layer}.")
        }
        h = _norm(x, block["attn_norm.weight"])
        q, k, v = (_heads(model, block, h, name, weights) for name in "qkv")
        x = x + _attention(q, k, v) @ block["attn_output.weight"].T
        h = _norm(x, block["ffn_norm.weight"])
        gate = h @ block["ffn_gate.weight"].T
        hidden = gate / (1 + np.exp(-gate)) * (h @ block["ffn_up.weight"].T)
        x = x + hidden @ block["ffn_down.weight"].T
    head = weights["token_embd.weight" if model.tied else "output.weight"]
    return _norm(x, weights["output_norm.weight"]) @ head.T


def _norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


def _heads(
    model: SmallModel, block: Tensors, h: np.ndarray, name: str, weights: Tensors
) -> np.ndarray:
    """Queries, keys or values, [tokens, heads, size]."""
    y = h @ block[f"attn_{name}.weight"].T
    y = y + block.get(f"attn_{name}.bias", 0)
    y = y.reshape(len(h), -1, model.size)
    if name == "v":
        return y
    if model.head_norms:
        y = _norm(y, block[f"attn_{name}_norm.weight"])
    count = model.rotated or model.size
    factors = weights.get("rope_freqs.weight", np.ones(count // 2)) * model.frequency_scale
    frequencies = model.frequency_base ** -(np.arange(0, count, 2) / count) / factors
    angles = (np.arange(len(h))[:, None] * frequencies)[:, None]
    cos, sin = np.cos(angles), np.sin(angles)
    if model.architecture == "llama":  # neighbours
        first, second = slice(0, count, 2), slice(1, count, 2)
    else:  # halves
        first, second = slice(count // 2), slice(count // 2, count)
    rotated = y.copy()
    rotated[..., first] = y[..., first] * cos - y[..., second] * sin
    rotated[..., second] = y[..., first] * sin + y[..., second] * cos
    return rotated


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention, merged to [tokens, heads * size]."""
    tokens, heads, size = q.shape
    shared = heads // k.shape[1]
    k, v = k.repeat(shared, axis=1), v.repeat(shared, axis=1)
    scores = np.einsum("thd,jhd->htj", q, k) / np.sqrt(size)
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("htj,jhd->thd", weights, v).reshape(tokens, -1)
