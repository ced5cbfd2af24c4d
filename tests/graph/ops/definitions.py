"""Compute in numpy the operators of onnxruntime for which its CPU has no kernel, or only for some
forms.

The functions are written from the text of the schemas. Each takes the inputs of a case and its
attributes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from webmlc.graph.ir import Array

Inputs = tuple[Any, ...]


def by_onnx(op: str, *inputs: Array | None, **attributes: Any) -> Array:
    """The first output of an operator of ONNX, by its reference."""
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    node = helper.make_node(op, names, ["y"], **attributes)
    feeds = {n: x for n, x in zip(names, inputs, strict=True) if n}
    graph = helper.make_graph(
        [node],
        op,
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
         for n, x in feeds.items()],
        [helper.make_tensor_value_info("y", 0, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    return np.asarray(ReferenceEvaluator(model).run(None, feeds)[0])


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def fast_gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(x * (0.7978845608 + 0.035677408 * x * x)))


def softmax(x: Array) -> Array:
    y = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(y / y.sum(-1, keepdims=True))


def group_norm(
    x: Array, gamma: Array, beta: Array, skip: Any = None, bias: Any = None, **a: Any
) -> Any:
    last = a.get("channels_last", 1)
    s = x if last else x.transpose(0, 2, 3, 1)
    if skip is not None:
        s = s + (skip[:, None, None] if skip.ndim == 2 else skip)
    s = s if bias is None else s + bias
    n, h, w, c = s.shape
    grouped = s.reshape(n, h * w, a["groups"], -1)
    mean = grouped.mean((1, 3), keepdims=True)
    deviation = np.sqrt(grouped.var((1, 3), keepdims=True) + a.get("epsilon", 1e-5))
    y = ((grouped - mean) / deviation).reshape(n, h, w, c) * gamma + beta
    y = y * sigmoid(y) if a["activation"] else y
    return y if last else y.transpose(0, 3, 1, 2), s


def bias_split_gelu(x: Array, bias: Array) -> Array:
    left, right = np.split(x + bias, 2, -1)
    return np.asarray(left * gelu(right))


def nhwc_conv(x: Array, w: Array, b: Any = None, **attributes: Any) -> Array:
    y = by_onnx("Conv", x.transpose(0, 3, 1, 2), w.transpose(0, 3, 1, 2), b, **attributes)
    return y.transpose(0, 2, 3, 1)


def nhwc_fused_conv(x: Array, w: Array, b: Any = None, z: Any = None, **a: Any) -> Array:
    activation, (alpha, *_) = a.pop("activation"), a.pop("activation_params", (0.0,))
    y = nhwc_conv(x, w.transpose(0, 2, 3, 1), b, **a) + (0 if z is None else z)
    assert activation in ("Relu", "LeakyRelu")
    return np.where(y > 0, y, alpha * y)


def bias_softmax(x: Array, bias: Array, axis: int = 1, **_: Any) -> Array:
    scores = x + bias
    return softmax(scores.reshape(*scores.shape[:axis], -1)).reshape(scores.shape)


def bias_dropout(x: Array, bias: Array, residual: Any = None, *_: Any, **__: Any) -> Any:
    y = x + bias + (0 if residual is None else residual)
    return y, np.ones(y.shape, bool)


def complex_product(a: Array, b: Array, conjugate: bool = False) -> Array:
    left, right = (x[..., 0] + 1j * x[..., 1] for x in (a, b))
    y = left * (right.conj() if conjugate else right)
    return np.stack([y.real, y.imag], -1)


def rfft(x: Array, **_: Any) -> Array:
    y = np.fft.rfft(x)
    return np.stack([y.real, y.imag], -1)


def all_finite(*inputs: Array, isinf_only: int = 0, isnan_only: int = 0) -> Array:
    test = np.isinf if isinf_only else np.isnan if isnan_only else lambda x: ~np.isfinite(x)
    return np.bool_(not any(test(x).any() for x in inputs))


def mul_integer(a: Array, a_zero: Any, b: Array, b_zero: Any = None) -> Array:
    left, right = (
        x.astype(np.int32) - np.int32(0 if z is None else z) for x, z in ((a, a_zero), (b, b_zero))
    )
    return np.asarray(left * right)


def sum_integer(x: Array, axes: tuple[int, ...], keepdims: int) -> Array:
    dtype = np.int32 if x.dtype == np.int8 else np.uint32
    return np.asarray(x.astype(dtype).sum(tuple(axes), dtype, keepdims=bool(keepdims)))


def matmul_activation(a: Array, b: Array, activation: str, **attributes: Any) -> Array:
    b = b.swapaxes(-1, -2) if attributes.get("transB") else b
    y = a @ b * attributes.get("alpha", 1.0)
    slope = attributes.get("activation_alpha", 0.0) if activation == "LeakyRelu" else 0.0
    return np.where(y > 0, y, slope * y)


def swiglu(gate: Array, up: Any = None, **a: Any) -> Array:
    if up is None:
        gate, up = np.split(gate, 2, -1)
    if (limit := a.get("limit", 0.0)) > 0:
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    alpha, beta = a.get("activation_alpha", 1.0), a.get("activation_beta", 0.0)
    return np.asarray(gate * sigmoid(alpha * gate) * (up + beta))


def router_gate_up(x: Array, w: Array, router_size: int, **attributes: Any) -> Any:
    y = x @ w
    return y[..., :router_size], swiglu(y[..., router_size:], **attributes)


def low_rank_mix(
    x: Array, norm: Array, down: Array, up: Array, inject: Array,
    block: Any = None, gate: Any = None, **a: Any,
) -> Any:  # fmt: skip
    count = a["num_branches"]
    s = x.reshape(*x.shape[:-1], count, -1)
    if block is not None:
        s = s + gate[..., None] * block[..., None, :]
    rms = np.sqrt((s * s).mean(-1, keepdims=True) + a.get("epsilon", 1e-5))
    hn = s / rms * norm.reshape(count, -1)
    flat = hn.reshape(x.shape)
    z = a.get("silu_alpha", 1.0) * (flat @ down)
    g = sigmoid((z * sigmoid(z)) @ up).reshape(s.shape)
    output = a.get("reduction_scale", 1.0) * (hn * g).sum(-2)
    post = sigmoid((flat @ inject) / a.get("gate_div", 1.0)) * a.get("gate_mul", 1.0)
    return output, post, s.reshape(x.shape)


def decoder_attention(
    x: Array, w: Array, b: Array, mask: Any, past: Array, bias: Any, length: Array,
    _: Any = None, origins: Any = None, **a: Any,
) -> Any:  # fmt: skip
    """One query of each row. The keys of a buffer are in groups of four floats."""
    rows, heads, is_shared = len(x), a["num_heads"], a.get("past_present_share_buffer", 0)
    total = (int(length[0]) if is_shared else past.shape[3]) + 1
    q, k, v = (p.reshape(rows, heads, 1, -1) for p in np.split(x @ w + b, 3, -1))
    size, buffer = q.shape[-1], past.shape[3]
    old_k, old_v = past
    if is_shared:
        old_k = old_k.reshape(rows, heads, size // 4, buffer, 4).transpose(0, 1, 3, 2, 4)
        old_k = old_k.reshape(rows, heads, buffer, size)
    keys, values = (
        np.concatenate([old[:, :, : total - 1], new, old[:, :, total:]], 2)
        for old, new in ((old_k, k), (old_v, v))
    )
    outputs = np.zeros((rows, heads, size))
    for row in range(rows):
        sources = np.full(total, row)
        if origins is not None:
            beams = origins.shape[1]
            first = row // beams * beams
            sources[:-1] = first + origins[row // beams, row % beams, : total - 1]
        for head in range(heads):
            tokens = np.arange(total)
            scores = keys[sources, head, tokens] @ q[row, head, 0] / math.sqrt(size)
            scores += 0 if mask is None else np.where(mask[row] > 0, 0, -10000.0)
            scores += 0 if bias is None else bias[0, head, 0]
            outputs[row, head] = softmax(scores) @ values[sources, head, tokens]
    if is_shared:
        keys = keys.reshape(rows, heads, buffer, size // 4, 4).transpose(0, 1, 3, 2, 4)
    return outputs.reshape(rows, 1, -1), np.stack([keys.reshape(values.shape), values])


def gemma(emb: Array, q: Array, q_rot: Array, k: Array, k_rot: Array) -> Any:
    cos, sin = np.cos(emb)[:, None], np.sin(emb)[:, None]
    return q * cos + q_rot * sin, k * cos + k_rot * sin


def relative_bias(
    table: Array, queries: Array, keys: Array, max_distance: int, is_bidirectional: int = 0
) -> Array:
    """Written from the kernel of onnxruntime, one element after another."""
    buckets, heads = table.shape
    values = table.reshape(heads, buckets)
    y = np.zeros((1, heads, int(queries), int(keys)))
    for i in range(int(queries)):
        for j in range(int(keys)):
            count, first, distance = buckets, 0, i - j
            if is_bidirectional:
                count //= 2
                first = count if distance < 0 else 0
            distance, near = abs(distance), count // 2
            bucket = distance
            if distance >= near:
                growth = math.log(distance / near) / math.log(max_distance / near)
                bucket = min(near + int(growth * (count - near) + 1e-6), count - 1)
            y[0, :, i, j] = values[:, first + bucket]
    return y


def gated_bias(
    query: Array, query_bias: Array, bias: Array, weights: Array, weights_bias: Array,
    factor: Array, offsets: Any = None, num_heads: int = 1,
) -> Array:  # fmt: skip
    if offsets is not None:
        query = restore_padding(query, offsets)
    batch, length, _ = query.shape
    layer = (query + query_bias).reshape(batch, length, num_heads, -1).transpose(0, 2, 1, 3)
    gates = sigmoid((layer @ weights + weights_bias).reshape(*layer.shape[:3], 2, -1).sum(-1))
    update, reset = gates[..., :1], gates[..., 1:]
    return np.asarray((update * (reset * factor - 1) + 2) * bias)


def restore_padding(x: Array, offsets: Array) -> Array:
    y = np.zeros((offsets.size, x.shape[1]), x.dtype)
    y[offsets.reshape(-1)[: len(x)]] = x
    return y.reshape(*offsets.shape, -1)


def remove_padding(x: Array, counts: Array) -> Any:
    is_token = (np.arange(x.shape[1]) < counts[:, None]).reshape(-1)
    places = np.arange(is_token.size)
    offsets = np.concatenate([places[is_token], places[~is_token]]).reshape(x.shape[:2])
    ends = np.concatenate([[0], np.cumsum(counts)])
    indices = (offsets, ends, counts.max(keepdims=True))
    return x.reshape(-1, x.shape[2])[is_token], *(i.astype(np.int32) for i in indices)


def packed_multi_head(
    q: Array, k: Any, v: Any, bias: Any, offsets: Array, ends: Array, score_bias: Any = None,
    **a: Any,
) -> Array:  # fmt: skip
    """Each row attends to its own tokens only."""
    if k is None:
        q, k, v = (q[:, :, i].reshape(len(q), -1) for i in range(3))
    heads, hidden = a["num_heads"], q.shape[1]
    if bias is not None:
        biases = np.split(bias, [hidden, 2 * hidden])
        q, k, v = q + biases[0], k + biases[1], v + biases[2]
    y = np.zeros(v.shape)
    for row, (start, end) in enumerate(pairwise(ends)):
        rows, length = slice(start, end), end - start
        for head in range(heads):
            q_head, k_head, v_head = (
                x[rows].reshape(length, heads, -1)[:, head] for x in (q, k, v)
            )
            scores = q_head @ k_head.T * (a.get("scale") or 1 / math.sqrt(q_head.shape[1]))
            if score_bias is not None:
                bias_rows, bias_heads = score_bias.shape[:2]
                head_bias = score_bias[row % bias_rows, head % bias_heads]
                scores = scores + head_bias[:length, :length]
            columns = slice(head * v_head.shape[1], (head + 1) * v_head.shape[1])
            y[rows, columns] = softmax(scores) @ v_head
    return y


def packed_attention(
    x: Array, weights: Array, bias: Array, offsets: Array, ends: Array, score_bias: Any = None,
    **a: Any,
) -> Array:  # fmt: skip
    sizes = a.get("qkv_hidden_sizes") or [weights.shape[1] // 3] * 3
    q, k, v = np.split(x @ weights + bias, np.cumsum(sizes)[:2], -1)
    return packed_multi_head(q, k, v, None, offsets, ends, score_bias, **a)


def int8(x: Array, scale: Array) -> Array:
    return np.clip(np.rint(x / scale), -128, 127).astype(np.int8)


def ordered_norm(
    x: Array, scale: Array, gamma: Array, beta: Any, y_scale: Array, epsilon: float = 1e-5, **_: Any
) -> Array:
    real = x * scale
    mean, variance = real.mean(-1, keepdims=True), real.var(-1, keepdims=True)
    y = (real - mean) / np.sqrt(variance + epsilon) * gamma
    return int8(y if beta is None else y + beta, y_scale)


def ordered_product(
    a: Array, a_scale: Array, b: Array, b_scale: Array, y_scale: Array, bias: Any = 0.0,
    c: Any = 0, c_scale: Any = 1.0, **_: Any,
) -> Array:  # fmt: skip
    sums = a.astype(np.int32) @ b.reshape(b.shape[::-1]).T.astype(np.int32)
    return int8(sums * (a_scale * b_scale) + bias + c * c_scale, y_scale)


def reduced_mean(
    x: Array, scale: Array, zero: Array, y_scale: Array, y_zero: Array, axes: Any, keepdims: int
) -> Array:
    real = (x.astype(np.float32) - zero) * scale
    y = real.mean(tuple(axes), keepdims=bool(keepdims)) / y_scale
    return np.clip(np.rint(y) + y_zero, 0, 255).astype(np.uint8)


def few_bits(x: Array, weights: Array, scales: Array, bias: Any = None, bits: int = 4) -> Array:
    """x Wᵀ of weights [columns, blocks, bytes] with a scale for each block."""
    shifts = np.arange(0, 8, bits)
    elements = (weights[..., None] >> shifts & (2**bits - 1)).reshape(*weights.shape[:2], -1)
    real = (elements.astype(np.float32) - 2 ** (bits - 1)) * scales.reshape(len(scales), -1, 1)
    y = x @ real.reshape(len(weights), -1)[:, : x.shape[-1]].T
    return np.asarray(y if bias is None else y + bias)


def rms(x: Array, scale: Any, epsilon: float) -> Array:
    if scale is None:
        return x
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale)


def few_bits_mlp(x: Array, skip: Any, norm: Any, *layers: Any, **a: Any) -> Any:
    total = x if skip is None else x + skip
    y = rms(total, norm, a.get("epsilon", 1e-5))
    gate, up = (few_bits(y, *layers[i : i + 3]) for i in (0, 3))
    return gate * sigmoid(gate) * up, total


def few_bits_qkv(x: Array, skip: Any, norm: Any, *layers: Any, **a: Any) -> Any:
    y = rms(x + skip, norm, a.get("epsilon", 1e-6))
    return *(few_bits(y, *layers[i : i + 3]) for i in (0, 3, 6)), x + skip


def few_bits_lora(
    x: Array, w: Array, s: Array, down: Array, down_s: Array, up: Array, up_s: Array, **_: Any
) -> Array:
    narrow = few_bits(x, down, down_s, bits=8)
    return few_bits(x, w, s) + few_bits(narrow, up, up_s, bits=8)


def attend(q: Array, k: Array, v: Array, scale: float, visible: Any = True) -> Array:
    """Attention of [..., S, H] and [..., T, H]."""
    scores = np.where(visible, q @ k.swapaxes(-1, -2) * scale, -np.inf)
    return np.asarray(softmax(scores) @ v)


def heads_of(x: Array, count: int) -> Array:
    return x.reshape(*x.shape[:2], count, -1).transpose(0, 2, 1, 3)


def multi_head(
    q: Array, k: Any = None, v: Any = None, bias: Any = None, num_heads: int = 1
) -> Array:
    """Packed Q, K and V, [B, S, N, 3, H], or packed K and V, [B, T, N, 2, H]."""
    if k is None:
        q, k, v = (q[:, :, :, i] for i in range(3))
    else:
        q, (k, v) = q.reshape(*q.shape[:2], num_heads, -1), (k[:, :, :, i] for i in range(2))
    if bias is not None:
        q, k, v = (
            x + b.reshape(x.shape[2:]) for x, b in zip((q, k, v), np.split(bias, 3), strict=True)
        )
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    y = attend(q, k, v, 1 / math.sqrt(q.shape[-1]))
    return y.transpose(0, 2, 1, 3).reshape(q.shape[0], q.shape[2], -1)


def decoder_multi_head(
    q: Array, k: Array, v: Array, _: Any, __: Any, past_k: Array, past_v: Array, *___: Any,
    num_heads: int,
) -> Any:  # fmt: skip
    """Keys and values that are appended to a past without a buffer."""
    q, k, v = (heads_of(x, num_heads) for x in (q, k, v))
    k, v = np.concatenate([past_k, k], 2), np.concatenate([past_v, v], 2)
    y = attend(q, k, v, 1 / math.sqrt(q.shape[-1]))
    return y.transpose(0, 2, 1, 3).reshape(len(q), 1, -1), k, v


def sparse_attention(
    q: Array, k: Any, v: Any, past_k: Array, past_v: Array, starts: Array, columns: Array,
    total: Array, lengths: Array, cos: Any = None, sin: Any = None, **a: Any,
) -> Any:  # fmt: skip
    """One token after another: it sees the earlier keys in the blocks of its block's row."""
    heads, groups = a["num_heads"], a["kv_num_heads"]
    if k is None:
        width = q.shape[2] // (heads + 2 * groups)
        q, k, v = np.split(q, [heads * width, (heads + groups) * width], -1)
    q, k, v = (heads_of(x, n).copy() for x, n in ((q, heads), (k, groups), (v, groups)))
    count, size = q.shape[2:]
    keys, values, y = past_k.copy(), past_v.copy(), np.zeros(q.shape)
    for row, length in enumerate(lengths):
        places = np.arange(length - count, length)
        if cos is not None:
            for x in (q, k):
                left, right = np.split(x[row].copy(), 2, -1)
                x[row] = np.concatenate([left * cos[places] - right * sin[places],
                                         left * sin[places] + right * cos[places]], -1)  # fmt: skip
        keys[row, :, places], values[row, :, places] = (x[row].transpose(1, 0, 2) for x in (k, v))
        for head in range(heads):
            layout = head % len(starts)
            for token, place in enumerate(places):
                block = place // a["sparse_block_size"]
                blocks = columns[layout, starts[layout, block] : starts[layout, block + 1]]
                seen = [t for t in range(place + 1) if t // a["sparse_block_size"] in blocks]
                group = head * groups // heads
                scores = keys[row, group, seen] @ q[row, head, token]
                scores = scores * (a.get("scale") or 1 / math.sqrt(size))
                y[row, head, token] = softmax(scores) @ values[row, group, seen]
    return y.transpose(0, 2, 1, 3).reshape(len(q), count, -1), keys, values


def mixture(
    x: Array, router: Array, w1: Array, b1: Any, w2: Array, b2: Any, w3: Any = None, b3: Any = None,
    **a: Any,
) -> Array:  # fmt: skip
    """SwiGLU with separate projections, one token after another."""
    assert a["activation_type"] == "swiglu" and not a.get("swiglu_fusion")
    tokens, y = x.reshape(len(router), -1), np.zeros((len(router), x.shape[-1]))
    for token, logits in enumerate(router):
        shares = softmax(logits)
        for expert in np.argsort(-shares)[: a["k"]]:
            gate, up = (w[expert] @ tokens[token] + b[expert] for w, b in ((w1, b1), (w3, b3)))
            value = w2[expert] @ (gate * sigmoid(gate) * up)
            y[token] += shares[expert] * (value if b2 is None else value + b2[expert])
    return y.reshape(x.shape)


def gated_delta(
    q: Array, k: Array, v: Array, past: Array, decay: Array, beta: Array, **a: Any
) -> Any:
    """LinearAttention with a window of states, one token after another."""
    window, heads, queries = a["state_window"], a["kv_num_heads"], a["q_num_heads"]
    state, tokens = past[-1].copy(), q.shape[1]
    size, y, states = state.shape[2], [], []
    for t in range(tokens):
        q_t, k_t, v_t = (x[:, t].reshape(len(x), n, -1) for x, n in
                         ((q, queries), (k, heads), (v, heads)))  # fmt: skip
        state = state * np.exp(decay[:, t])[:, :, None, None]
        stored = np.einsum("bhkv,bhk->bhv", state, k_t)
        state = state + np.einsum("bhk,bhv->bhkv", k_t, beta[:, t][..., None] * (v_t - stored))
        repeated = state.repeat(queries // heads, 1)
        y.append(np.einsum("bhkv,bhk->bhv", repeated, q_t).reshape(len(q), -1) / math.sqrt(size))
        states.append(state)
    return np.stack(y, 1), np.stack(states[-window:])


def causal_conv(x: Array, kernel: Array, bias: Any, past: Array, state_window: int) -> Any:
    """CausalConvWithState with a window of states, one position after another."""
    taps, length = kernel.shape[2], x.shape[2]
    joined = np.concatenate([past[-1], x], 2)
    y = np.stack([(joined[:, :, t : t + taps] * kernel[:, 0]).sum(-1) for t in range(length)], 2)
    ends = range(length - state_window + 1, length + 1)
    states = np.stack([joined[:, :, end : end + taps - 1] for end in ends])
    return y if bias is None else y + bias[:, None], states


def spectrum(x: Array, n_fft: Array, hop: Array, window: Array, length: Array) -> Array:
    padded = np.pad(x[0], len(window) // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, int(n_fft))[:: int(hop)] * window
    return np.asarray(np.abs(np.fft.rfft(frames)).T[None] ** 2)


def segments(x: Array) -> Any:
    x = x.reshape(-1)
    inside = np.concatenate([[0], x, [0]])
    changes = np.flatnonzero(inside[1:] != inside[:-1])
    runs = [(a, b) for a, b in pairwise(changes) if x[a]]
    return np.array(runs), x[[a for a, _ in runs]]


def require(is_legal: Any) -> None:
    """Raise ValueError for inputs to which a definition gives no meaning."""
    if not is_legal:
        raise ValueError("the definition says nothing of such inputs")


def dense(_: Array, values: Array, missing: Array, limits: Array, **a: Any) -> Array:
    require(limits[0] >= 0 and (np.diff(limits) >= 0).all())
    rows = [values[start:end] for start, end in pairwise(limits)]
    result = np.full((len(rows), max(map(len, rows))), missing.item())
    for line, row in zip(result, rows, strict=True):
        line[: len(row)] = row
    return result


def sparse(limits: Array) -> Any:
    lengths = np.diff(limits)
    places = [(row, column) for row, n in enumerate(lengths) for column in range(n)]
    return np.array(places), np.array([len(lengths), lengths.max()])


def segment_sum(x: Array, ids: Array) -> Array:
    require(ids[0] >= 0 and (np.diff(ids) >= 0).all())
    return np.stack([x[ids == i].sum(0) for i in range(ids[-1] + 1)])


def scattered(
    shape: Array, indices: Array, updates: Array, maskedValue: int | None = None, **a: Any
) -> Any:
    result = np.zeros(shape, updates.dtype)
    is_used = np.ones(indices.shape[:-1], bool)
    if maskedValue is not None:
        is_used = indices[..., 0] != maskedValue
    require((indices[is_used] >= 0).all())
    np.add.at(result, indices[is_used][:, 0], updates[is_used])
    return result


def longformer(
    x: Array, w: Array, b: Array, mask: Array, gw: Array, gb: Array, flags: Array, **a: Any
) -> Array:
    """Attention token by token, each to the tokens that it sees."""
    require(np.isin(flags, (0, 1)).all())
    n, window = a["num_heads"], a["window"]
    if w.ndim == 3:
        weights, b5 = [*w, *gw], np.split(b, 5)
        biases = [*b5[:3], gb, *b5[3:]]
    else:
        weights = np.split(w, 3, 1) + np.split(gw, 3, 1)
        biases = np.split(b, 3) + np.split(gb, 3)
    parts = [(x @ m + c).reshape(*x.shape[:2], n, -1) for m, c in zip(weights, biases, strict=True)]
    y = np.zeros_like(parts[0])
    for batch, i in np.ndindex(x.shape[:2]):
        q, k, v = parts[3:] if flags[batch, i] else parts[:3]
        keys = [
            j
            for j in range(x.shape[1])
            if mask[batch, j] >= 0 and (flags[batch, i] or abs(i - j) <= window or flags[batch, j])
        ]
        scores = np.einsum("nh,tnh->nt", q[batch, i], k[batch, keys]) / math.sqrt(q.shape[-1])
        y[batch, i] = np.einsum("nt,tnh->nh", softmax(scores), v[batch, keys])
    return np.asarray(y.reshape(x.shape))


DEFINITIONS: Mapping[str, Callable[..., Any]] = {
    "LongformerAttention": longformer,
    "NegPos": lambda x: (np.minimum(x, 0), np.maximum(x, 0)),
    "Inverse": np.linalg.inv,
    "SegmentSum": segment_sum,
    "SegmentExtraction": segments,
    "StftNorm": spectrum,
    "RaggedTensorToDense": dense,
    "RaggedTensorToSparse": sparse,
    "AddSharedInput": lambda x, y, z: (x + y, x + z),
    "MulSharedInput": lambda x, y, z: (x * y, x * z),
    "MulSigmoid": lambda x: x * sigmoid(x),
    "MulMulSigmoid": lambda x, y: x * y * sigmoid(y),
    "NegXPlus1": lambda x: 1 - x,
    "ReplaceZero": lambda x, by: np.where(x == 0, by, x),
    "FastGelu": lambda x, bias: fast_gelu(x + bias),
    "ScatterNDOfShape": scattered,
    "MaskedScatterNDOfShape": scattered,
    "Transpose2DCastFP16": lambda x: x.T.astype(np.float16),
    "Transpose2DCastFP32": lambda x: x.T.astype(np.float32),
    "MultiHeadAttention": multi_head,
    "DecoderMaskedMultiHeadAttention": decoder_multi_head,
    "SparseAttention": sparse_attention,
    "MoE": mixture,
    "LinearAttention": gated_delta,
    "CausalConvWithState": causal_conv,
    "DecoderMaskedSelfAttention": decoder_attention,
    "GemmaRotaryEmbedding": gemma,
    "QuantizeWithOrder": lambda x, scale, **_: int8(x, scale),
    "DequantizeWithOrder": lambda x, scale, **_: x * scale,
    "QOrderedGelu": lambda x, scale, y_scale, **_: int8(gelu(x * scale), y_scale),
    "QOrderedLayerNormalization": ordered_norm,
    "QOrderedMatMul": ordered_product,
    "QLinearReduceMean": reduced_mean,
    "MatMulNBitsMlp": few_bits_mlp,
    "MatMulNBitsQkv": few_bits_qkv,
    "MatMulNBitsQLoRA": few_bits_lora,
    "RelativePositionBias": relative_bias,
    "GatedRelativePositionBias": gated_bias,
    "RestorePadding": restore_padding,
    "RemovePadding": remove_padding,
    "PackedAttention": packed_attention,
    "PackedMultiHeadAttention": packed_multi_head,
    "GroupNorm": group_norm,
    "SkipGroupNorm": group_norm,
    "BiasAdd": lambda x, bias, skip: x + bias + skip,
    "BiasSplitGelu": bias_split_gelu,
    "NhwcConv": nhwc_conv,
    "NhwcFusedConv": nhwc_fused_conv,
    "BiasSoftmax": bias_softmax,
    "BiasDropout": bias_dropout,
    "ComplexMul": complex_product,
    "ComplexMulConj": lambda a, b: complex_product(a, b, True),
    "Rfft": rfft,
    "Irfft": lambda x, **_: np.fft.irfft(x[..., 0] + 1j * x[..., 1]),
    "IsAllFinite": all_finite,
    "MulInteger": mul_integer,
    "ReduceSumInteger": sum_integer,
    "GemmFastGelu": lambda x, w, b=0: fast_gelu(x @ w + b),
    "FusedMatMulActivation": matmul_activation,
    "TorchEmbedding": lambda weight, indices, *_: weight[indices],
    "SwiGLU": swiglu,
    "RouterGateUpProj": router_gate_up,
    "HyperConnectionLowRankMix": low_rank_mix,
}
"""The definitions of operators of `com.microsoft`, by name. Those of operators that the CPU runs
define only the forms of cases that it does not run.
"""


def by_definition(
    name: str, inputs: Inputs, attributes: Mapping[str, Any], outputs: int
) -> list[Array]:
    """The outputs of an operator, in the type of its first floating input unless it casts."""
    results = DEFINITIONS[name](*inputs, **attributes)
    results = results if isinstance(results, tuple) else (results,)
    floats = [x.dtype for x in inputs if x is not None and x.dtype.kind == "f"]
    arrays = [np.asarray(r) for r in results[:outputs]]
    casts = not floats or "Cast" in name
    return [a if casts or a.dtype.kind != "f" else a.astype(floats[0]) for a in arrays]
