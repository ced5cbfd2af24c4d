"""Mixtures of experts, MoE and QMoE: a router selects a few experts for each token.

Sizes in the comments: tokens n, experts E, selected experts k, hidden size H, inner size I.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import as_int
from webmlc.graph.builder import Builder, Value
from webmlc.graph.ops.microsoft.few_bits import unpack_bits
from webmlc.graph.ops.microsoft.gates import ACTIVATIONS, swiglu
from webmlc.graph.ops.microsoft.rows import known_size, row
from webmlc.graph.ops.operator import Context, NotSupportedError, Operator, case
from webmlc.graph.ops.shapes import check_shapes, product

EXPERT_ACTIVATIONS: Mapping[str, Callable[[Value], Value]] = {
    **ACTIVATIONS, "gelu": lambda x: x.op("Gelu", approximate="tanh"),
}  # fmt: skip
"""The activations of experts, whose GELU is the approximation."""

GATED = ("swiglu", "geglu")
"""The activations of two halves of the first product, or of two products."""

LEAST_SHARE = 1e-8
"""onnxruntime skips an expert whose weight, an input of the model, is not above this number."""

ACTIVATION_NAMES = ("relu", "gelu", "silu", "swiglu", "identity", "relu2", "geglu")


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of one layer of all experts, [E, rows, columns], and a bias [E, rows]."""

    weights: Value
    bias: Value | None

    def at(self, build: Builder, places: Value) -> _Layer:
        """The layer of the experts at these places [n, k], as [n, k, rows, columns]."""
        bias = self.bias and build("Gather", self.bias, places, axis=0)
        return _Layer(build("Gather", self.weights, places, axis=0), bias)

    def product(self, x: Value, axes: int) -> Value:
        """Multiply tokens [..., n, columns] by the weights of `axes` dimensions."""
        order = (*range(axes - 2), axes - 1, axes - 2)
        y = x @ self.weights.transpose(*order)
        return y if self.bias is None else y + self.bias.unsqueeze(axes - 2)


Layers = tuple[_Layer, _Layer, _Layer | None]


def _mixture(context: Context, build: Builder, layers: Layers) -> Value:
    """Run the experts and add their outputs, each times the weight that the router gives it.

    All experts run for all tokens. An expert that a token does not select gives 0, even if its
    output is infinite or NaN. Only if fewer experts are selected than there are, for a known number
    of tokens, the weights of the selected experts are gathered.
    """
    x = build.inputs[0]
    hidden = known_size(context.shape(0)[-1], "the hidden size")
    count = known_size(context.shape(1)[1], "the number of experts")
    tokens = x.reshape(-1, hidden)
    shares, places = _routes(context, build)
    number = as_int(product(context.shape(0)[:-1]))
    if number is not None and 2 * number * context.count("k", 1) <= count:
        first, second, third = layers
        selected = (first.at(build, places), second.at(build, places),
                    third and third.at(build, places))  # fmt: skip
        y = _feed(context, build, tokens.unsqueeze(1, 2), selected, 4)
        output = build("ReduceSum", _mixed(y, shares.unsqueeze(2, 3)), [1, 2], keepdims=0)
    else:
        y = _feed(context, build, tokens.unsqueeze(0), layers, 3)
        zeros = build("ConstantOfShape", build.inputs[1].op("Shape"),
                      value=np.zeros(1, context.dtype(0).numpy))  # fmt: skip
        mixing = build("ScatterElements", zeros, places, shares, axis=1)
        mixed = _mixed(y, mixing.transpose(1, 0).unsqueeze(2))
        output = build("ReduceSum", mixed, [0], keepdims=0)
    return output.op("Reshape", x.op("Shape"))


def _mixed(outputs: Value, weights: Value) -> Value:
    """Multiply experts' outputs by weights; where a weight is 0, outputs may be infinite or NaN."""
    return weights.cast(DType.bool).where(outputs * weights, 0.0)


def _routes(context: Context, build: Builder) -> tuple[Value, Value]:
    """The weights and the numbers of the experts of each token, [n, k]. The weights of QMoE always
    add up to 1, as in onnxruntime, unless they are an input.
    """
    top, logits, is_quantised = context.count("k", 1), build.inputs[1], context.node.op == "QMoE"
    mixing = build.optional(14) if is_quantised else None
    scores = logits.op("Softmax", axis=-1) if mixing is None else logits
    # Of equal scores, onnxruntime takes the last expert, and TopK the first.
    last = known_size(context.shape(1)[1], "the number of experts") - 1
    reversed_scores = build("Slice", scores, [-1], [-last - 2], [-1], [-1])
    shares, reversed_places = build.many("TopK", reversed_scores, [top], outputs=2, axis=-1)
    places = build.constant(np.int64(last)) - reversed_places
    if mixing is not None:
        shares = build("GatherElements", mixing, places, axis=1)
    is_normalised = is_quantised and mixing is None
    if context.attribute("normalize_routing_weights", 0) or is_normalised:
        shares = shares / build("ReduceSum", shares, [-1])
    if mixing is not None:
        shares = shares.op("Greater", LEAST_SHARE).where(shares, 0.0)
    return shares, places


def _feed(context: Context, build: Builder, x: Value, layers: Layers, axes: int) -> Value:
    """Run the two or three layers of experts on tokens [..., n, H]."""
    first, second, third = layers
    name = str(context.attribute("activation_type", "relu"))
    value = first.product(x, axes)
    fusion = int(context.attribute("swiglu_fusion", 0))
    if name not in GATED:
        if fusion:
            raise NotSupportedError(f"swiglu_fusion {fusion} of the activation {name}")
        value = EXPERT_ACTIVATIONS[name](value)
        if third is not None:
            value = value * third.product(x, axes)
        return second.product(value, axes)
    if fusion == 1:
        pairs = value.reshape(*[0] * (axes - 1), -1, 2)
        gate, up = (pairs.element(i, axes) for i in (0, 1))
    elif fusion == 2:
        gate, up = build.many("Split", value, outputs=2, axis=-1, num_outputs=2)
    elif third is not None:
        gate, up = value, third.product(x, axes)
    else:
        raise NotSupportedError(f"{name} without a second projection (swiglu_fusion 0, no FC3)")
    if name == "geglu":
        return second.product(EXPERT_ACTIVATIONS["gelu"](gate) * up, axes)
    limit = context.attribute("swiglu_limit", None)
    activated = swiglu(
        build, gate, up,
        alpha=float(context.attribute("activation_alpha", 1.0)),
        beta=float(context.attribute("activation_beta", 0.0)),
        limit=None if limit is None else float(limit),
    )  # fmt: skip
    if limit is not None and context.dtype(0) is not DType.float32:
        activated = activated.cast(context.dtype(0))
    return second.product(activated, axes)


def _check(context: Context) -> None:
    """Refuse forms that only CUDA has."""
    for name in ("use_sparse_mixer", "swiglu_limit_after_activation"):
        if context.attribute(name, 0):
            raise NotSupportedError(f"{name}, which only CUDA has")
    check_shapes(context, "" if context.rank(0) == 3 else "tokens hidden", "tokens experts")


def _moe(context: Context, build: Builder) -> Value:
    _check(context)
    first, second, third = (
        None if w is None else _Layer(w, build.optional(i + 1))
        for i, w in ((i, build.optional(i)) for i in (2, 4, 6))
    )
    assert first is not None and second is not None
    return _mixture(context, build, (first, second, third))


def _quantised_moe(context: Context, build: Builder) -> Value:
    _check(context)
    if context.attribute("weights_prepacked", -1) == 1:
        raise NotSupportedError("weights that are packed for a GPU (weights_prepacked)")
    if context.attribute("quant_type", "int") != "int" or any(map(context.has, range(15, 21))):
        raise NotSupportedError("weights of small floats, or quantised activations")
    first, second, third = (
        _quantised_layer(context, build, n) if context.has(3 * n - 1) else None for n in (1, 2, 3)
    )
    assert first is not None and second is not None
    return _mixture(context, build, (first, second, third))


def _quantised_layer(context: Context, build: Builder, number: int) -> _Layer:
    """The layer `number` of 1 to 3, with weights that a DequantizeLinear reads. A row has a scale,
    or a scale for each block.
    """
    index, zero_index = 3 * number - 1, 10 + number
    default = context.attribute("expert_weight_bits", 4)
    bits = int(context.attribute(f"fc{number}_expert_weight_bits", default))
    packed, scales = context.constant(index), build.optional(index + 1)
    if packed is None or scales is None:
        raise NotSupportedError("weights that are not constant, or that have no scales")
    if bits not in (2, 4, 8):
        raise NotSupportedError(f"weights of {bits} bits")
    experts, rows = packed.shape[:2]
    dtype = DType(f"uint{bits}")
    elements = unpack_bits(packed.reshape(experts, rows, -1), bits)
    columns = elements.shape[2]
    block = int(context.attribute("block_size", 0)) or columns
    blocks = -(-columns // block)
    zeros = np.full((experts, rows, blocks), 1 << (bits - 1))
    if context.has(zero_index):
        packed_zeros = context.constant(zero_index)
        if packed_zeros is None:
            raise NotSupportedError("zero points that are not constant")
        if packed_zeros.ndim == 2:  # packed along the rows
            zeros = unpack_bits(packed_zeros, bits)[:, :rows, None]
        else:
            lines = unpack_bits(packed_zeros.reshape(experts, rows, -1), bits)
            zeros = lines[..., :blocks].reshape(experts, rows, blocks)
    weights = build(
        "DequantizeLinear", build.constant(elements, dtype),
        scales.reshape(experts, rows, blocks), build.constant(zeros, dtype), axis=2,
        block_size=block,
    )  # fmt: skip
    if context.dtype(index + 1) is not context.dtype(0):
        weights = weights.cast(context.dtype(0))
    return _Layer(weights, build.optional(index + 2))


ROUTED = ("float32[2, 3, 8]", "float32[6, 4]")
FC1, FC2, FC3 = "float32[4, 10, 8]", "float32[4, 8, 10]", "float32[4, 10, 8]"
WIDE, HALF = "float32[4, 20, 8]", "float32[4, 8, 10]"
MOE = (
    "activation_alpha activation_beta activation_type k normalize_routing_weights swiglu_fusion"
    " swiglu_limit swiglu_limit_after_activation use_sparse_mixer"
)


def _bytes(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Weights for a case: all bytes occur."""
    return (np.arange(np.prod(shape)) * 37 % 256).astype(np.uint8).reshape(shape)


def _scales(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.linspace(0.01, 0.05, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _overflowing(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Weights of experts, those of the last infinite."""
    weights = _scales(*shape)
    weights[-1] = np.inf
    return weights


TOKENS, LOGITS = "float32[6, 32]", "float32[6, 4]"
BITS_4 = (
    _bytes(4, 16, 16),
    _scales(4, 16),
    None,
    _bytes(4, 32, 8),
    _scales(4, 32),
    "float32[4, 32]",
)
BITS_8 = (_bytes(4, 64, 32), _scales(4, 64), "float32[4, 64]",
          _bytes(4, 32, 32), _scales(4, 32))  # fmt: skip

OPS: tuple[Operator, ...] = (
    row("MoE", 8, MOE, _moe,
        case(*ROUTED, FC1, None, FC2, k=2),
        case(*ROUTED, FC1, "float32[4, 10]", FC2, "float32[4, 8]", k=1, activation_type="gelu"),
        case("float32[6, 8]", "float32[6, 4]", FC1, "float32[4, 10]", FC2, "float32[4, 8]", k=2,
             activation_type="silu", normalize_routing_weights=1),
        case(*ROUTED, WIDE, "float32[4, 20]", FC2, None, k=2, activation_type="swiglu",
             swiglu_fusion=1, activation_alpha=1.7, activation_beta=1.0, swiglu_limit=2.0),
        case("float32[6, 8]", "float32[6, 4] in 0.5..0.5", FC1, None, FC2, k=2),
        case(*ROUTED, FC1, None, _overflowing(4, 8, 10), k=1),
        case("float32[1, 1, 8]", "float32[1, 4]", FC1, "float32[4, 10]", FC2, "float32[4, 8]",
             k=2, activation_type="identity"),
        case(*ROUTED, FC1, "float32[4, 10]", FC2, None, FC3, "float32[4, 10]", k=2,
             activation_type="swiglu"),
        activation_type=ACTIVATION_NAMES),
    row("QMoE", 21, f"{MOE} accuracy_level block_size expert_weight_bits fc1_expert_weight_bits"
        " fc2_expert_weight_bits fc3_expert_weight_bits quant_type weights_prepacked",
        _quantised_moe,
        case(TOKENS, LOGITS, *BITS_4, k=2, expert_weight_bits=4, weights_prepacked=0),
        case(TOKENS, "float32[6, 4] in 0.5..0.5", *BITS_4, k=2),
        case(TOKENS, LOGITS, *BITS_8, k=2, expert_weight_bits=8,
             activation_type="swiglu", swiglu_fusion=1, weights_prepacked=0,
             normalize_routing_weights=1),
        case(TOKENS, LOGITS, _bytes(4, 32, 16), _scales(4, 32, 2), None, _bytes(4, 32, 16),
             _scales(4, 32, 2), None, None, None, None, _bytes(4, 32, 1), _bytes(4, 32, 1), None,
             "float32[6, 4] in -0.5..1", k=2, expert_weight_bits=4, block_size=16,
             activation_type="silu", weights_prepacked=0),
        activation_type=ACTIVATION_NAMES, quant_type=("int", "fp4", "nvfp4", "fp8", "wfp4afp8")),
)  # fmt: skip
