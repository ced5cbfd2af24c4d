"""Tiny decoders with random weights, inside the searches of onnxruntime: models as its converter
(`convert_generation.py`) writes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser

TOKENS, WIDTH, PLACES = 13, 8, 40
WEIGHTS = {
    "embedding": (TOKENS, WIDTH),
    "places": (PLACES, WIDTH),
    "features": (3, WIDTH),
    "head": (WIDTH, TOKENS),
    **dict.fromkeys(("wq", "wk", "wv", "wqc", "wkc", "wvc"), (WIDTH, WIDTH)),
}
CONSTANTS = """<int64[4] heads = {0, 0, 2, 4}, int64[3] flat = {0, 0, 8}, float big = {1e4},
    float one = {1}, float half = {0.5}, int64 after = {1}, int64[1] first = {0},
    int64[2] ends = {1, 2}, int64 keys = {0}, int64 values = {1}>"""


def heads(result: str, source: str, weight: str) -> str:
    """The product of [B, T, 8] and a weight, as [B, 2, T, 4]."""
    return f"""
        {result}_flat = MatMul({source}, {weight})
        {result}_split = Reshape({result}_flat, heads)
        {result} = Transpose<perm = [0, 2, 1, 3]>({result}_split)"""


def attention(result: str, q: str, k: str, v: str, bias: str) -> str:
    """Attention with a bias of scores, as [B, T, 8]."""
    return f"""
        {result}_kt = Transpose<perm = [0, 1, 3, 2]>({k})
        {result}_dots = MatMul({q}, {result}_kt)
        {result}_biased = Sub({result}_dots, {bias})
        {result}_weights = Softmax({result}_biased)
        {result}_mixed = MatMul({result}_weights, {v})
        {result}_back = Transpose<perm = [0, 2, 1, 3]>({result}_mixed)
        {result} = Reshape({result}_back, flat)"""


def causal(result: str, q: str, k: str, past: str) -> str:
    """A bias that hides later tokens: [T, P + T]. `past` is the name of a scalar P."""
    return f"""
        {result}_rows = Shape<start = 2, end = 3>({q})
        {result}_columns = Shape<start = 2, end = 3>({k})
        {result}_shape = Concat<axis = 0>({result}_rows, {result}_columns)
        {result}_zeros = ConstantOfShape({result}_shape)
        {result}_all = Add({result}_zeros, big)
        {result}_shift = Add({past}, after)
        {result} = Trilu({result}_all, {result}_shift)"""


def padding(result: str, mask: str) -> str:
    """A bias that hides tokens of padding: [B, 1, 1, T]."""
    return f"""
        {result}_mask = Cast<to = 1>({mask})
        {result}_hidden = Sub(one, {result}_mask)
        {result}_bias = Mul({result}_hidden, big)
        {result} = Unsqueeze({result}_bias, ends)"""


GPT = f"""decoder = d (int32[b, s] input_ids, int32[b, s] position_ids, int32[b, t] attention_mask,
        float[2, b, 2, p, 4] past_0)
    => (float[b, s, 13] logits, float[2, b, 2, t, 4] present_0) {{
        word = Gather(embedding, input_ids)
        place = Gather(places, position_ids)
        e = Add(word, place)
        {heads("q", "e", "wq")} {heads("kn", "e", "wk")} {heads("vn", "e", "wv")}
        k5 = Unsqueeze(kn, first)
        v5 = Unsqueeze(vn, first)
        kv = Concat<axis = 0>(k5, v5)
        present_0 = Concat<axis = 3>(past_0, kv)
        k = Gather<axis = 0>(present_0, keys)
        v = Gather<axis = 0>(present_0, values)
        past_size = Shape<start = 3, end = 4>(past_0)
        past = Squeeze(past_size)
        {causal("later", "q", "k", "past")} {padding("pads", "attention_mask")}
        bias = Add(later, pads)
        {attention("mixed", "q", "k", "v", "bias")}
        part = Mul(e, half)
        h = Sub(mixed, part)
        logits = MatMul(h, head)
    }}"""


KEYS, VALUES = "present_key_self_0", "present_value_self_0"
CROSS_KEYS, CROSS_VALUES = "present_key_cross_0", "present_value_cross_0"


def layer(join: str, past: str, cross_keys: str, cross_values: str, bias: str) -> str:
    """The layer of a decoder over `e`, which attends to its tokens and to an encoder."""
    return f"""
        {heads("q", "e", "wq")} {heads("kn", "e", "wk")} {heads("vn", "e", "wv")}
        {join}
        {causal("later", "q", KEYS, past)}
        {attention("self", "q", KEYS, VALUES, "later")}
        h = Add(e, self)
        {heads("qc", "h", "wqc")}
        {attention("cross", "qc", cross_keys, cross_values, bias)}
        part = Mul(h, half)
        out = Sub(cross, part)
        logits = MatMul(out, head)"""


def encoder(inputs: str, embed: str, bias: str, with_start: bool) -> str:
    """An encoder, which also computes the first step of the decoder if `with_start`. `embed` writes
    `encoder_hidden_states`, and `bias` the bias of cross attention.
    """
    states = "encoder_hidden_states"
    embed += heads(CROSS_KEYS, states, "wkc") + heads(CROSS_VALUES, states, "wvc")
    cross = f"float[b, 2, n, 4] {CROSS_KEYS}, float[b, 2, n, 4] {CROSS_VALUES}"
    if not with_start:
        return f"encoder = c ({inputs}) => ({cross}) {{ {embed} }}"
    join = f"""
        {KEYS} = Identity(kn)
        {VALUES} = Identity(vn)"""
    return f"""encoder = c ({inputs}, int32[b, m] decoder_input_ids)
        => (float[b, m, 13] logits, float[b, n, 8] {states}, float[b, 2, m, 4] {KEYS},
            float[b, 2, m, 4] {VALUES}, {cross}) {{
            {embed} {bias}
            e = Gather(embedding, decoder_input_ids)
            {layer(join, "keys", CROSS_KEYS, CROSS_VALUES, "bias")}
        }}"""


def decoder(inputs: str, bias: str) -> str:
    """A decoder that reads the keys and values of an encoder."""
    join = f"""
        {KEYS} = Concat<axis = 2>(past_key_self_0, kn)
        {VALUES} = Concat<axis = 2>(past_value_self_0, vn)
        past_size = Shape<start = 2, end = 3>(past_key_self_0)
        past = Squeeze(past_size)"""
    pasts = ", ".join(
        f"float[b, 2, {size}, 4] past_{kind}_{where}_0"
        for where, size in (("self", "p"), ("cross", "n"))
        for kind in ("key", "value")
    )
    return f"""decoder = d (int32[b, 1] input_ids, {inputs} {pasts})
        => (float[b, 1, 13] logits, float[b, 2, t, 4] {KEYS}, float[b, 2, t, 4] {VALUES}) {{
            {bias}
            e = Gather(embedding, input_ids)
            {layer(join, "past", "past_key_cross_0", "past_value_cross_0", "bias")}
        }}"""


WORDS = "encoder_hidden_states = Gather(embedding, encoder_input_ids)"
WORD_INPUTS = "int32[b, n] encoder_input_ids, int32[b, n] encoder_attention_mask"
WORD_BIAS = padding("bias", "encoder_attention_mask")
T5 = encoder(WORD_INPUTS, WORDS, WORD_BIAS, with_start=True) + ", " + decoder(
    "int32[b, n] encoder_attention_mask, float[b, n, 8] encoder_hidden_states,", WORD_BIAS
)  # fmt: skip
NEWER_T5 = encoder(WORD_INPUTS, WORDS, "", with_start=False) + ", " + decoder(
    "int32[b, n] encoder_attention_mask,", WORD_BIAS
)  # fmt: skip
SOUND = """turned = Transpose<perm = [0, 2, 1]>(encoder_input_ids)
        encoder_hidden_states = MatMul(turned, features)"""
NO_BIAS = "bias = Sub(one, one)"
WHISPER = encoder("float[b, 3, n] encoder_input_ids", SOUND, NO_BIAS, with_start=True) + ", " + (
    decoder("float[b, n, 8] encoder_hidden_states,", NO_BIAS)
)  # fmt: skip


def model(node: str, inputs: str, outputs: str, constants: dict[str, Any]) -> onnx.ModelProto:
    """A model of one search, which reads inputs and constants."""
    rng = np.random.default_rng(11)
    text = f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g ({inputs}) => ({outputs}) {CONSTANTS} {{ {node} }}"""
    result = onnx.parser.parse_model(text)
    arrays = {name: rng.standard_normal(size).astype(np.float32) for name, size in WEIGHTS.items()}
    for name, array in (arrays | constants).items():
        result.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    graphs = [a.g for a in result.graph.node[0].attribute if a.type == onnx.AttributeProto.GRAPH]
    if len(graphs) > 1:
        for graph in graphs:
            _copy_constants(result.graph, graph)
        read = set(result.graph.node[0].input)
        outer = [tensor for tensor in result.graph.initializer if tensor.name in read]
        del result.graph.initializer[:]
        result.graph.initializer.extend(outer)
    return result


def _copy_constants(outer: onnx.GraphProto, graph: onnx.GraphProto) -> None:
    """Copy the constants that a graph reads into it. onnxruntime runs two graphs of a node only if
    they read the same values from outside.
    """
    read = {name for node in graph.node for name in node.input}
    graph.initializer.extend(tensor for tensor in outer.initializer if tensor.name in read)
