"""Write the graph of a decoder, which predicts the next token of a text.

In: a file, its architecture and its sizes. Out: the function `main`. Its input is `input_ids`,
int64 [1, tokens]. Its outputs belong to the last token: `logits`, float32 [1, vocabulary], and
`next_token`, int64 [1], the most likely one. The keys and values of earlier tokens are state, and
`past` is their number:

    x = embedding[input_ids]
    for each layer:
        h = rms_norm(x)
        keys, values = Append(rotate(h Kᵀ)), Append(h Vᵀ)       [past + tokens, groups, size]
        x = x + attention(rotate(h Qᵀ), keys, values) Oᵀ
        h = rms_norm(x)
        x = x + (silu(h Gᵀ) * h Uᵀ) Dᵀ
    logits = rms_norm(x) Wᵀ
    next_token = argmax(logits)

In the last layer, only the last token needs queries and the operations after them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from webmlc.core.dtypes import DType
from webmlc.core.expr import Expr, Var, const
from webmlc.frontend.gguf.architectures import Architecture, Sizes
from webmlc.frontend.gguf.file import GgufFile
from webmlc.frontend.gguf.weights import Matrix
from webmlc.graph.builder import Builder, Expansion, Value
from webmlc.graph.ir import Array, Function, Node, TensorType
from webmlc.graph.ops.block_quantised import BlockQuantised, block_gather, block_product
from webmlc.graph.ops.decoder import rotary_tables

TOKENS, PAST = Var("tokens"), Var("past")
"""The symbols of the number of new tokens, and of the tokens before them."""
FLOAT = 1
"""The number of float32 in the attribute of a Cast, from ONNX's `TensorProto`."""


@dataclass(slots=True)
class Decoder:
    """A writer of the function. If `every_row`, its outputs have a row for every token.

    If `has_cache_inputs`, the past keys and values are inputs `past_key.N` and `past_value.N`, and
    all keys and values are outputs `present_key.N` and `present_value.N`. Otherwise they are state.
    """

    file: GgufFile
    architecture: Architecture
    sizes: Sizes
    every_row: bool = False
    has_cache_inputs: bool = False
    expansion: Expansion = field(default_factory=Expansion)
    inputs: dict[str, TensorType] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def function(self) -> Function:
        """Write the whole function."""
        self.inputs["input_ids"] = TensorType(DType.int64, (const(1), TOKENS))
        sizes, build = self.sizes, self.build("token_embd")
        embedding = self.file.matrix("token_embd.weight", sizes.vocabulary, sizes.width)
        x = _gather(build, build.value("input_ids").reshape(-1), embedding)
        tables = rotary_tables(
            self.build("rope"), sizes.frequencies, sizes.positions, first=PAST, rows=TOKENS
        )
        for layer in range(sizes.layers):
            x = self.layer(x, layer, tables)
        self.logits(x, embedding)
        self.next_token()
        return Function(
            "main",
            tuple(self.inputs),
            ("logits", "next_token", *self.outputs),
            tuple(self.expansion.nodes),
            self.inputs,
            self.expansion.constants,
        )

    def build(self, name: str) -> Builder:
        """The builder of the nodes that use the tensor of this name."""
        return Builder(Node("", (), (name,), origin=(name,)), self.expansion)

    def layer(self, x: Value, layer: int, tables: tuple[Value, Value]) -> Value:
        """Write a layer: attention, then the feed-forward network."""
        sizes, block = self.sizes, f"blk.{layer}"
        build = self.build(f"{block}.attn")
        h = self.norm(f"{block}.attn_norm", x)
        keys = self.heads(f"{block}.attn_k", h, sizes.groups, tables)
        values = self.heads(f"{block}.attn_v", h, sizes.groups)
        if layer == sizes.layers - 1 and not self.every_row:
            x, h, cos, sin = (build("Gather", v, [-1], axis=0) for v in (x, h, *tables))
            tables = (cos, sin)
        queries = self.heads(f"{block}.attn_q", h, sizes.heads, tables)
        attention = build(
            "CausalAttention",
            queries,
            self.cache("key", layer, keys),
            self.cache("value", layer, values),
            domain="webmlc",
            scale=self.file.positive("attention.scale", sizes.size**-0.5),
        )
        inner = sizes.heads * sizes.size
        merged = attention.reshape(0, inner)
        x = x + self.product(f"{block}.attn_output", merged, inner, sizes.width)
        return self.feed_forward(x, block)

    def feed_forward(self, x: Value, block: str) -> Value:
        """Write the gated network with two hidden products."""
        width, hidden = self.sizes.width, self.sizes.hidden
        build = self.build(f"{block}.ffn")
        h = self.norm(f"{block}.ffn_norm", x)
        gate = build("Swish", self.product(f"{block}.ffn_gate", h, width, hidden))
        up = self.product(f"{block}.ffn_up", h, width, hidden)
        down = self.product(f"{block}.ffn_down", gate * up, hidden, width)
        return x + down

    def logits(self, x: Value, embedding: Matrix) -> None:
        """Write the last norm and product. A tied model uses the embedding as the last matrix."""
        sizes, build = self.sizes, self.build("output")
        h = self.norm("output_norm", x)
        tied = "output.weight" not in self.file.tensors
        matrix = (
            embedding if tied else self.file.matrix("output.weight", sizes.vocabulary, sizes.width)
        )
        _product(build, h, matrix, "logits")

    def next_token(self) -> None:
        """Write the most likely token of each row, so that a host need not read all logits.

        Among equal logits, the first wins. The token is -1 if the largest logit is not finite.
        """
        build = self.build("next_token")
        logits = build.value("logits")
        best = build("ArgMax", logits, axis=-1, keepdims=1)
        largest = build("GatherElements", logits, best, axis=-1)
        is_invalid = build("IsNaN", largest) | build("IsInf", largest)
        token = is_invalid.where(np.array([[-1]]), best)
        build("Reshape", token, [-1], output="next_token")

    def norm(self, name: str, x: Value, size: int = 0) -> Value:
        """Write the RMS norm of rows, or of rows of heads."""
        weight = self.file.vector(f"{name}.weight", size or self.sizes.width)
        build = self.build(name)
        return build(
            "RMSNormalization", x, build.constant(weight), axis=-1, epsilon=self.sizes.epsilon
        )

    def product(self, name: str, x: Value, columns: int, rows: int) -> Value:
        """Write the product with a matrix, and the sum with the bias if the file has a bias."""
        matrix = self.file.matrix(f"{name}.weight", rows, columns)
        return self.biased(name, x, matrix, self.file.optional_vector(f"{name}.bias", rows))

    def biased(self, name: str, x: Value, matrix: Matrix, bias: Array | None) -> Value:
        build = self.build(name)
        y = _product(build, x, matrix)
        return y if bias is None else y + build.constant(bias)

    def heads(
        self, name: str, x: Value, heads: int, tables: tuple[Value, Value] | None = None
    ) -> Value:
        """Write queries, keys or values, [tokens, heads, size]. With tables, they are rotated."""
        sizes, rows, build = self.sizes, heads * self.sizes.size, self.build(name)
        matrix = self.file.matrix(f"{name}.weight", rows, sizes.width)
        required = self.architecture.has_biases
        read_bias = self.file.vector if required else self.file.optional_vector
        bias = read_bias(f"{name}.bias", rows)
        order = self.order_of_halves(heads)
        if tables is not None and order is not None:
            matrix = _reordered(matrix, order)
            bias = None if bias is None else bias[order]
        y = self.biased(name, x, matrix, bias)
        y = y.reshape(0, heads, sizes.size)
        if tables is None:
            return y
        if self.architecture.has_head_norms:
            y = self.norm(f"{name}_norm", y, sizes.size)
        return build("Rotate", y, *tables, domain="webmlc")

    def order_of_halves(self, heads: int) -> Array | None:
        """The order of rows that turns rotated neighbours into rotated halves.

        Scores stay the same, because queries and keys have the same order. A kernel reads
        consecutive elements of halves.
        """
        if not self.architecture.is_interleaved:
            return None
        size, rotated = self.sizes.size, 2 * len(self.sizes.frequencies)
        head = np.concatenate(
            [np.arange(0, rotated, 2), np.arange(1, rotated, 2), np.arange(rotated, size)]
        )
        order: Array = np.arange(heads)[:, None] * size + head
        return order.reshape(-1)

    def cache(self, kind: str, layer: int, rows: Value) -> Value:
        """Write the keys or values of all tokens: the past rows, then the new rows."""
        build = self.build(f"blk.{layer}.{kind}s")
        if not self.has_cache_inputs:
            return build("Append", rows, domain="webmlc", length=PAST)
        past, present = f"past_{kind}.{layer}", f"present_{kind}.{layer}"
        shape: tuple[Expr, ...] = (PAST, const(self.sizes.groups), const(self.sizes.size))
        self.inputs[past] = TensorType(DType.float32, shape)
        self.outputs.append(present)
        return build("Concat", past, rows, axis=0, output=present)


def _product(build: Builder, x: Value, matrix: Matrix, output: str = "") -> Value:
    """Multiply rows by the rows of a matrix: x Wᵀ."""
    if isinstance(matrix, BlockQuantised):
        return block_product(build, x, matrix, output)
    return build("MatMul", x, _float32(build, np.ascontiguousarray(matrix.T)), output=output)


def _gather(build: Builder, indices: Value, matrix: Matrix) -> Value:
    """Gather rows of a matrix."""
    if isinstance(matrix, BlockQuantised):
        return block_gather(build, indices, matrix)
    rows = build("Gather", build.constant(matrix), indices, axis=0)
    return rows if matrix.dtype == np.float32 else rows.cast(DType.float32)


def _float32(build: Builder, matrix: Array) -> Value:
    """A constant as float32. Halves stay halves in the package: the Cast widens them at load."""
    constant = build.constant(matrix)
    return constant if matrix.dtype == np.float32 else constant.cast(DType.float32)


def _reordered(matrix: Matrix, order: Array) -> Matrix:
    """The matrix with its rows in another order."""
    if not isinstance(matrix, BlockQuantised):
        return matrix[order]
    minimums = matrix.minimums
    return replace(
        matrix,
        values=matrix.values[order],
        scales=matrix.scales[order],
        minimums=None if minimums is None else minimums[order],
    )
