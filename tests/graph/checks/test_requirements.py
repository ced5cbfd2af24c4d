"""Every host checks a model's assumptions on its sizes before a kernel runs.

Each case is a model, inputs that fit it, inputs that do not, and the error that all hosts raise for
these, up to quotation marks. onnxruntime refuses them, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import webmlc
from tests.node import as_tensors, in_node
from webmlc.core.errors import InputError
from webmlc.package.manifest import Manifest
from webmlc.package.sizes import size_text

pytestmark = pytest.mark.xdist_group("requirements")  # one worker builds what the tests share

HEAD = '<ir_version: 8, opset_import: ["" : 18]> '

Feeds = dict[str, np.ndarray]


def ones(**shapes: tuple[int, ...]) -> Feeds:
    """Float inputs of these shapes."""
    return {name: np.ones(shape, np.float32) for name, shape in shapes.items()}


def tokens(count: int) -> Feeds:
    """Tokens, a table of words, a table of positions and their numbers."""
    tables = ones(words=(30, 2), table=(512, 2))
    ids = np.arange(count)[None] % 30
    return {"ids": ids, **tables, "all": np.arange(512)[None]}


def encoder(count: int) -> Feeds:
    """The inputs of an encoder layer, and its weights."""
    rng = np.random.default_rng(0)
    shapes = {"x": (count, 1, 8), "w": (8, 24), "v": (8, 8), "one": (8,)}
    return {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()}


@dataclass(frozen=True, slots=True)
class Case:
    text: str
    fits: Feeds
    fails: Feeds
    error: str
    refused_by_onnxruntime: bool = True


CASES = {
    "reshape": Case(
        "g (float[n] x) => (float[3,4] y) <int64[2] s = {3,4}> { y = Reshape(x, s) }",
        ones(x=(12,)), ones(x=(13,)),
        "node 'y': its sizes are n = 13 and 12: they must be equal; n = 13 from axis 0 of 'x'",
    ),
    "reshape to a computed size": Case(
        "g (float[n,4] x) => (float[k,8] y) <int64[2] s = {-1,8}> { y = Reshape(x, s) }",
        ones(x=(4, 4)), ones(x=(3, 4)),
        "node 'y': its sizes are n * 4 = 12 and n // 2 * 8 = 8: they must be equal; "
        "n = 3 from axis 0 of 'x'",
    ),
    "a Squeeze without axes": Case(
        "g (float[n,1] x) => (float[n] y) { y = Squeeze(x) }",
        ones(x=(3, 1)), ones(x=(1, 1)),
        "node 'y': its sizes are n = 1 and 1: they must differ, or the rank of the result changes: "
        "give the node its axes, or build for this size alone (--dim); n = 1 from axis 0 of 'x'",
        refused_by_onnxruntime=False,
    ),
    "broadcast": Case(
        "g (float[n] x, float[m] z) => (float[k] y) { y = Add(x, z) }",
        ones(x=(1,), z=(5,)), ones(x=(3,), z=(5,)),
        "node 'y': its sizes are n = 3 and m = 5: they must be equal, or one of them 1; "
        "n = 3 from axis 0 of 'x', m = 5 from axis 0 of 'z'",
    ),
    "positions in a table": Case(
        """g (float[n,2] x, float[8,2] table) => (float[n,2] y)
        <int64[1] zero = {0}, int64[1] axis = {0}> {
          size = Shape<start=0, end=1>(x)
          rows = Slice(table, zero, size, axis)
          y = Add(x, rows)
        }""",
        ones(x=(7, 2), table=(8, 2)), ones(x=(9, 2), table=(8, 2)),
        "node 'y': its sizes are n = 9 and T.min(n, 8) = 8: they must be equal, or one of them 1; "
        "n = 9 from axis 0 of 'x'",
    ),
    "positions of an encoder": Case(
        """g (int64[1,n] ids, float[30,2] words, float[512,2] table, int64[1,512] all)
        => (float[1,n,2] y) <int64[1] zero = {0}, int64[1] axis = {1}> {
          size = Shape<start=1, end=2>(ids)
          used = Slice(all, zero, size, axis)
          places = Gather(table, used)
          embedded = Gather(words, ids)
          y = Add(embedded, places)
        }""",
        tokens(512), tokens(513),
        "node 'y': its sizes are n = 513 and T.min(n, 512) = 512: they must be equal, or one of "
        "them 1; n = 513 from axis 1 of 'ids'",
    ),
    "an encoder layer that was traced with 12 tokens": Case(
        """g (float[n,1,8] x, float[8,24] w, float[8,8] v, float[8] one) => (float[n,1,8] y)
        <int64[3] split = {12,2,4}, int64[2] rows = {12,8}, int64[3] all = {12,1,8}> {
          qkv = MatMul(x, w)
          q, k, u = Split<axis=2, num_outputs=3>(qkv)
          q_heads = Reshape(q, split)
          k_heads = Reshape(k, split)
          u_heads = Reshape(u, split)
          a = Transpose<perm=[1,0,2]>(q_heads)
          b = Transpose<perm=[1,2,0]>(k_heads)
          c = Transpose<perm=[1,0,2]>(u_heads)
          scores = MatMul(a, b)
          shares = Softmax<axis=-1>(scores)
          sums = MatMul(shares, c)
          joined = Transpose<perm=[1,0,2]>(sums)
          flat = Reshape(joined, rows)
          projected = MatMul(flat, v)
          result = Reshape(projected, all)
          skipped = Add(x, result)
          y = LayerNormalization(skipped, one)
        }""",
        encoder(12), encoder(37),
        "node 'q_heads': its sizes are n * 8 = 296 and 96: they must be equal; "
        "n = 37 from axis 0 of 'x'",
    ),
    "matrix product": Case(
        "g (float[a,b] x, float[c,d] z) => (float[a,d] y) { y = MatMul(x, z) }",
        ones(x=(2, 3), z=(3, 4)), ones(x=(2, 3), z=(4, 4)),
        "node 'y': its sizes are b = 3 and c = 4: they must be equal; "
        "b = 3 from axis 1 of 'x', c = 4 from axis 0 of 'z'",
    ),
    "einsum": Case(
        """g (float[a,b] x, float[c,d] z) => (float[a,d] y)
        { y = Einsum<equation="ij,jk->ik">(x, z) }""",
        ones(x=(2, 3), z=(3, 4)), ones(x=(2, 3), z=(4, 4)),
        "node 'y': its sizes are b = 3 and c = 4: they must be equal, or one of them 1; "
        "b = 3 from axis 1 of 'x', c = 4 from axis 0 of 'z'",
    ),
    "window": Case(
        "g (float[1,1,h] x) => (float[1,1,k] y) { y = MaxPool<kernel_shape=[5]>(x) }",
        ones(x=(1, 1, 7)), ones(x=(1, 1, 3)),
        "node 'y': its sizes are 5 and h + 1 = 4: the first must not be larger; "
        "h = 3 from axis 2 of 'x'",
    ),
    "elements beyond 32 bits": Case(
        """g (float[n] x) => (float[1] y) {
          s = Shape(x) all = Concat<axis=0>(s, s, s) e = Expand(x, all) y = ReduceSum<keepdims=0>(e)
        }""",
        ones(x=(3,)), ones(x=(2048,)),
        "node 'e': its sizes are n * n * n = 8589934592 and 2147483647: "
        "the first must not be larger; n = 2048 from axis 0 of 'x'",
        refused_by_onnxruntime=False,  # it takes 32 GB
    ),
    "sizes beyond what numbers hold": Case(
        """g (float[n] x) => (float[1] y) { s = Shape(x) all = Concat<axis=0>(s, s, s, s)
          e = Expand(x, all) y = ReduceSum<keepdims=0>(e) }""",
        ones(x=(3,)), ones(x=(65536,)),
        "node 'e': with these inputs a size is beyond 9007199254740991",
        refused_by_onnxruntime=False,  # it takes 64 EB
    ),
    "reflection of nothing": Case(
        'g (float[n] x) => (float[m] y) <int64[2] p = {2,2}> { y = Pad<mode="reflect">(x, p) }',
        ones(x=(5,)), ones(x=(0,)),
        "node 'y': its sizes are 1 and n = 0: the first must not be larger; "
        "n = 0 from axis 0 of 'x'",
    ),
    "best of nothing": Case(
        "g (float[n,m] x) => (int64[n] y) { y = ArgMax<axis=1, keepdims=0>(x) }",
        ones(x=(2, 3)), ones(x=(2, 0)),
        "node 'y': its sizes are 1 and m = 0: the first must not be larger; "
        "m = 0 from axis 1 of 'x'",
    ),
    "instance normalisation": Case(
        """g (float[2,c,4] x, float[d] s, float[e] b) => (float[2,c,4] y)
        { y = InstanceNormalization(x, s, b) }""",
        ones(x=(2, 3, 4), s=(3,), b=(3,)), ones(x=(2, 3, 4), s=(3,), b=(5,)),
        "node 'y': its sizes are e = 5 and c = 3: they must be equal; "
        "c = 3 from axis 1 of 'x', e = 5 from axis 0 of 'b'",
    ),
    "layer normalisation": Case(
        "g (float[2,c] x, float[d] s) => (float[2,c] y) { y = LayerNormalization(x, s) }",
        ones(x=(2, 3), s=(3,)), ones(x=(2, 3), s=(5,)),
        "node 'y': its sizes are d = 5 and c = 3: they must be equal, or the first 1; "
        "c = 3 from axis 1 of 'x', d = 5 from axis 0 of 's'",
    ),
    "batch normalisation": Case(
        """g (float[2,c,4] x, float[d] s, float[c] b, float[c] m, float[c] v) => (float[2,c,4] y)
        { y = BatchNormalization(x, s, b, m, v) }""",
        ones(x=(2, 3, 4), s=(3,), b=(3,), m=(3,), v=(3,)),
        ones(x=(2, 3, 4), s=(4,), b=(3,), m=(3,), v=(3,)),
        "node 'y': its sizes are d = 4 and c = 3: they must be equal; "
        "c = 3 from axis 1 of 'x', d = 4 from axis 0 of 's'",
    ),
    "slope": Case(
        "g (float[2,c] x, float[d] s) => (float[2,c] y) { y = PRelu(x, s) }",
        ones(x=(2, 3), s=(3,)), ones(x=(2, 3), s=(2,)),
        "node 'y': its sizes are d = 2 and c = 3: they must be equal, or the first 1; "
        "c = 3 from axis 1 of 'x', d = 2 from axis 0 of 's'",
    ),
    "concatenation": Case(
        "g (float[a,b] x, float[c,d] z) => (float[a,e] y) { y = Concat<axis=1>(x, z) }",
        ones(x=(2, 3), z=(2, 4)), ones(x=(2, 3), z=(3, 4)),
        "node 'y': its sizes are c = 3 and a = 2: they must be equal; "
        "a = 2 from axis 0 of 'x', c = 3 from axis 0 of 'z'",
    ),
    "split": Case(
        """g (float[n] x) => (float[2] y, float[3] z) <int64[2] s = {2,3}>
        { y, z = Split<axis=0>(x, s) }""",
        ones(x=(5,)), ones(x=(6,)),
        "node 'y': its sizes are 5 and n = 6: they must be equal; n = 6 from axis 0 of 'x'",
    ),
    "squeeze": Case(
        "g (float[n,3] x) => (float[3] y) <int64[1] a = {0}> { y = Squeeze(x, a) }",
        ones(x=(1, 3)), ones(x=(2, 3)),
        "node 'y': its sizes are n = 2 and 1: they must be equal; n = 2 from axis 0 of 'x'",
    ),
    "depth to space": Case(
        "g (float[1,c,2,2] x) => (float[1,d,4,4] y) { y = DepthToSpace<blocksize=2>(x) }",
        ones(x=(1, 8, 2, 2)), ones(x=(1, 6, 2, 2)),
        "node 'y': its sizes are c % 4 = 2 and 0: they must be equal; c = 6 from axis 1 of 'x'",
    ),
    "recurrence": Case(
        """g (float[t,b,2] x, float[1,d,2] w, float[1,12,3] r) => (float[t,1,b,3] y)
        { y = LSTM<hidden_size=3>(x, w, r) }""",
        ones(x=(2, 1, 2), w=(1, 12, 2), r=(1, 12, 3)),
        ones(x=(2, 1, 2), w=(1, 16, 2), r=(1, 12, 3)),
        "node 'y': its sizes are d = 16 and 12: they must be equal; d = 16 from axis 1 of 'w'",
    ),
}  # fmt: skip


def plain(message: str) -> str:
    """A message without what the hosts' languages spell differently."""
    return message.replace('"', "'").replace("T.", "").translate({ord(c): None for c in "()"})


def model_of(case: Case) -> onnx.ModelProto:
    return parser.parse_model(HEAD + case.text)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every case's package, for both devices."""
    folders = {name: tmp_path_factory.mktemp("requirements") for name in CASES}
    for name, folder in folders.items():
        webmlc.build(model_of(CASES[name]), folder)
    return folders


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
@pytest.mark.parametrize("name", CASES)
def test_sizes_that_do_not_fit_are_refused(
    packages: dict[str, Path], name: str, device: Literal["wasm", "webgpu"]
) -> None:
    case = CASES[name]
    model = webmlc.load(packages[name], device=device)
    with pytest.raises(InputError) as error:
        model.run(case.fails)
    assert plain(str(error.value)) == plain(case.error)
    outputs = model.run(case.fits)
    session = onnxruntime.InferenceSession(model_of(case).SerializeToString())
    for name, want in zip(outputs, session.run(list(outputs), case.fits), strict=True):
        np.testing.assert_allclose(outputs[name], want, rtol=1e-5, atol=1e-6)
    if case.refused_by_onnxruntime:
        with pytest.raises(Exception, match=r"ONNXRuntimeError"):
            session.run(None, case.fails)


@pytest.mark.parametrize("name", CASES)
def test_the_javascript_runtime_says_the_same(packages: dict[str, Path], name: str) -> None:
    case = CASES[name]

    refused, outputs = in_node(packages[name], [as_tensors(case.fails), as_tensors(case.fits)])
    assert refused["code"] == "input"
    assert "error" not in outputs
    assert plain(refused["error"]) == plain(case.error)


def build(text: str, folder: Path) -> Manifest:
    return webmlc.build(parser.parse_model(HEAD + text), folder, target="wasm")


def test_what_is_certain_is_not_checked(tmp_path: Path) -> None:
    text = "g (float[n,4] x, float[n,1] z) => (float[n,4] y) { a = Add(x, z) y = Mul(a, x) }"
    assert build(text, tmp_path).requirements == ()


def test_what_one_bound_implies_is_checked_once(tmp_path: Path) -> None:
    """The first window needs six elements, so the second has enough."""
    text = """g (float[1,1,h,8] x) => (float[1,1,k,1] y) {
        a = MaxPool<kernel_shape=[7,7]>(x)
        y = MaxPool<kernel_shape=[1,2]>(a)
    }"""
    requirements = build(text, tmp_path).requirements
    bounds = [(r.rule, size_text(r.left), size_text(r.right), r.node) for r in requirements]
    # The pool of the second node must not be empty, either.
    assert bounds == [("at most", "7", "h + 1", "a"), ("at most", "1", "h - 6", "y")]


def test_what_no_output_depends_on_is_not_checked(tmp_path: Path) -> None:
    text = "g (float[n] x, float[m] z) => (float[n] y) { unused = Add(x, z) y = Neg(x) }"
    assert build(text, tmp_path).requirements == ()
