"""Small models of the families that people run: an encoder of text with a mask, a vision
transformer, an encoder of speech, a decoder with a cache, a quantised convolutional network.

Each function returns a model with seeded random weights and inputs that it takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

WIDTH, HEADS, HIDDEN, LAYERS = 64, 4, 128, 2
LOWEST = float(np.finfo(np.float32).min)
"""A mask adds this to the scores of tokens that must not be seen."""

Inputs = dict[str, np.ndarray[Any, Any]]
Weights = dict[str, np.ndarray[Any, Any]]
HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def model_of(graph: str, weights: Weights) -> onnx.ModelProto:
    """The model of a graph in ONNX's text form, whose free names are these weights."""
    model = onnx.parser.parse_model(HEADER + graph)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    return model


def random(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    """Weights that keep the scale of what they multiply."""
    return (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def shared_weights() -> Weights:
    """The nodes that the layers of all transformers share."""
    head = WIDTH // HEADS
    return {
        "heads": np.array([0, -1, HEADS, head]),
        "joined": np.array([0, -1, WIDTH]),
        "scale": np.array(head**-0.5, np.float32),
        "half": np.array(0.5, np.float32),
        "one": np.array(1, np.float32),
        "root": np.array(2**0.5, np.float32),
        "lowest": np.array(LOWEST, np.float32),
        "gain": np.ones(WIDTH, np.float32),
        "zeros": np.zeros(WIDTH, np.float32),
    }


def gelu(source: str, target: str) -> str:
    """`target` = Gelu(`source`), as exporters write it."""
    return f"""
        {target}_d = Div({source}, root)
        {target}_e = Erf({target}_d)
        {target}_s = Add({target}_e, one)
        {target}_p = Mul({source}, {target}_s)
        {target} = Mul({target}_p, half)
    """


def transformer(
    rng: np.random.Generator, source: str, target: str, bias: str = "", cached: bool = False
) -> tuple[str, Weights]:
    """Nodes and weights of `LAYERS` layers from `source` to `target`: attention and a perceptron.

    `bias` is added to the scores; where `cached`, keys and values of layer l follow `past_k_l` and
    `past_v_l`, and are the outputs `present_k_l` and `present_v_l`.
    """
    text, weights = [], shared_weights()
    for i in range(LAYERS):
        x, y = (source if i == 0 else f"x{i}"), (target if i == LAYERS - 1 else f"x{i + 1}")
        for letter in "qkvo":
            weights[f"w{letter}{i}"] = random(rng, WIDTH, WIDTH)
        weights[f"up{i}"], weights[f"down{i}"] = (
            random(rng, WIDTH, HIDDEN),
            random(rng, HIDDEN, WIDTH),
        )
        text.append(f"n{i} = LayerNormalization({x}, gain, zeros)")
        text += [
            f"""
            {letter}m{i} = MatMul(n{i}, w{letter}{i})
            {letter}r{i} = Reshape({letter}m{i}, heads)
            {letter}t{i} = Transpose<perm = [0, 2, 1, 3]>({letter}r{i})
            """
            for letter in "qkv"
        ]
        k, v = f"kt{i}", f"vt{i}"
        if cached:
            k, v = f"present_k_{i}", f"present_v_{i}"
            text.append(f"{k} = Concat<axis = 2>(past_k_{i}, kt{i})")
            text.append(f"{v} = Concat<axis = 2>(past_v_{i}, vt{i})")
        text.append(f"""
            kx{i} = Transpose<perm = [0, 1, 3, 2]>({k})
            product{i} = MatMul(qt{i}, kx{i})
            scaled{i} = Mul(product{i}, scale)
        """)
        scores = f"scaled{i}"
        if bias:
            scores = f"scores{i}"
            text.append(f"{scores} = Add(scaled{i}, {bias})")
        text.append(f"""
            p{i} = Softmax<axis = -1>({scores})
            a{i} = MatMul(p{i}, {v})
            at{i} = Transpose<perm = [0, 2, 1, 3]>(a{i})
            aj{i} = Reshape(at{i}, joined)
            o{i} = MatMul(aj{i}, wo{i})
            h{i} = Add({x}, o{i})
            hn{i} = LayerNormalization(h{i}, gain, zeros)
            u{i} = MatMul(hn{i}, up{i})
            {gelu(f"u{i}", f"g{i}")}
            f{i} = MatMul(g{i}, down{i})
            {y} = Add(h{i}, f{i})
        """)
    return "\n".join(text), weights


def text_encoder() -> tuple[onnx.ModelProto, Inputs]:
    """As MiniLM: tokens that a mask hides get the lowest score there is."""
    rng = np.random.default_rng(1)
    layers, weights = transformer(rng, "x", "hidden", bias="bias")
    weights |= {"table": random(rng, 100, WIDTH) * 10, "axes": np.array([1, 2])}
    graph = f"""text_encoder (int64[batch, sequence] ids, int64[batch, sequence] mask)
        => (float[batch, sequence, {WIDTH}] hidden) {{
        x = Gather(table, ids)
        seen = Cast<to = 1>(mask)
        wide = Unsqueeze(seen, axes)
        hides = Sub(one, wide)
        bias = Mul(hides, lowest)
        {layers}
    }}"""
    mask = np.array([[1] * 13, [1] * 9 + [0] * 4])
    return model_of(graph, weights), {"ids": rng.integers(0, 100, (2, 13)), "mask": mask}


def vision_transformer() -> tuple[onnx.ModelProto, Inputs]:
    """As DeiT: a token per patch, and one that the classes are read from."""
    rng = np.random.default_rng(2)
    layers, weights = transformer(rng, "x", "hidden")
    weights |= {
        "patch": random(rng, WIDTH, 3, 8, 8),
        "flat": np.array([0, WIDTH, -1]),
        "token": random(rng, 1, 1, WIDTH),
        "places": random(rng, 1, 17, WIDTH),
        "first": np.array(0),
        "classes": random(rng, WIDTH, 10),
    }
    graph = f"""vision_transformer (float[1, 3, 32, 32] image) => (float[1, 10] logits) {{
        c = Conv<kernel_shape = [8, 8], strides = [8, 8]>(image, patch)
        r = Reshape(c, flat)
        t = Transpose<perm = [0, 2, 1]>(r)
        s = Concat<axis = 1>(token, t)
        x = Add(s, places)
        {layers}
        head = Gather<axis = 1>(hidden, first)
        logits = MatMul(head, classes)
    }}"""
    return model_of(graph, weights), {"image": rng.standard_normal((1, 3, 32, 32), np.float32)}


def speech_encoder() -> tuple[onnx.ModelProto, Inputs]:
    """As Whisper's: two convolutions over time before the layers."""
    rng = np.random.default_rng(3)
    layers, weights = transformer(rng, "x", "hidden")
    weights |= {"w1": random(rng, WIDTH, 16, 3), "w2": random(rng, WIDTH, WIDTH, 3)}
    weights |= {"places": random(rng, 1, 50, WIDTH)}
    graph = f"""speech_encoder (float[1, 16, 100] features) => (float[1, 50, {WIDTH}] hidden) {{
        c1 = Conv<kernel_shape = [3], pads = [1, 1]>(features, w1)
        {gelu("c1", "g")}
        c2 = Conv<kernel_shape = [3], pads = [1, 1], strides = [2]>(g, w2)
        {gelu("c2", "e")}
        t = Transpose<perm = [0, 2, 1]>(e)
        x = Add(t, places)
        {layers}
    }}"""
    return model_of(graph, weights), {"features": rng.standard_normal((1, 16, 100), np.float32)}


def decoder() -> tuple[onnx.ModelProto, Inputs]:
    """As llama: keys and values of the tokens before, and a causal mask."""
    rng = np.random.default_rng(4)
    layers, weights = transformer(rng, "x", "hidden", bias="bias", cached=True)
    weights |= {
        "table": random(rng, 100, WIDTH) * 10,
        "zero": np.array(0, np.float32),
        "row": np.array([0]),
        "column": np.array([1]),
        "words": random(rng, WIDTH, 100),
    }
    names = [f"{kind}_{i}" for i in range(LAYERS) for kind in ("k", "v")]
    head = WIDTH // HEADS
    past = ", ".join(f"float[1, {HEADS}, past, {head}] past_{name}" for name in names)
    present = ", ".join(f"float[1, {HEADS}, total, {head}] present_{name}" for name in names)
    graph = f"""decoder (int64[1, sequence] ids, int64[sequence] at, int64[total] places, {past})
        => (float[1, sequence, 100] logits, {present}) {{
        x = Gather(table, ids)
        rows = Unsqueeze(at, column)
        columns = Unsqueeze(places, row)
        later = Greater(columns, rows)
        bias = Where(later, lowest, zero)
        {layers}
        logits = MatMul(hidden, words)
    }}"""
    inputs: dict[str, Any] = {
        "ids": rng.integers(0, 100, (1, 3)),
        "at": np.arange(5, 8),
        "places": np.arange(8),
        **{f"past_{n}": rng.standard_normal((1, HEADS, 5, head), np.float32) for n in names},
    }
    return model_of(graph, weights), inputs


def quantised_network() -> tuple[onnx.ModelProto, Inputs]:
    """Convolutions of bytes between QuantizeLinear and DequantizeLinear; all scales are powers of
    two, so that no result lies between two bytes by its last bit alone.
    """
    rng = np.random.default_rng(5)
    weights: Weights = {
        "fine": np.array(2.0**-6, np.float32),
        "coarse": np.array(2.0**-4, np.float32),
        "middle": np.array(128, np.uint8),
        "low": np.array(0, np.uint8),
        "centre": np.array(0, np.int8),
        "classes": random(rng, 24, 10),
    }
    text = ["q0 = QuantizeLinear(image, fine, middle)", "y0 = DequantizeLinear(q0, fine, middle)"]
    for i, (inputs, outputs, stride) in enumerate(((3, 16, 2), (16, 16, 1), (16, 24, 2)), 1):
        weights[f"w{i}"] = rng.integers(-30, 31, (outputs, inputs, 3, 3), np.int8)
        weights[f"b{i}"] = rng.integers(-4000, 4001, outputs, np.int32)
        scale = 2.0**-6 * (2.0**-6 if i == 1 else 2.0**-4)
        weights[f"s{i}"] = np.array(scale, np.float32)
        text.append(f"""
            d{i} = DequantizeLinear(w{i}, fine, centre)
            e{i} = DequantizeLinear(b{i}, s{i})
            c{i} = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [{stride}, {stride}]>(
                y{i - 1}, d{i}, e{i})
            r{i} = Relu(c{i})
            q{i} = QuantizeLinear(r{i}, coarse, low)
            y{i} = DequantizeLinear(q{i}, coarse, low)
        """)
    graph = f"""quantised_network (float[1, 3, 32, 32] image) => (float[1, 10] scores) {{
        {" ".join(text)}
        p = GlobalAveragePool(y3)
        f = Flatten(p)
        scores = MatMul(f, classes)
    }}"""
    return model_of(graph, weights), {"image": rng.standard_normal((1, 3, 32, 32), np.float32)}


SMALL_MODELS = (text_encoder, vision_transformer, speech_encoder, decoder, quantised_network)
