# %% [markdown]
# # 7. Tensorization and quantised products
#
# Two ideas make products several times as fast. The first is to compute with **bytes** instead of floats: a register holds four times as
# many. The second is to use instructions that compute a whole tile at once. A schedule puts such an instruction in the place of loops. This
# is called **tensorization**.

# %%
import tempfile
from pathlib import Path

import numpy as np
import onnx.parser
from onnx import numpy_helper
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import webmlc
from webmlc import T, te, tir
from show import draw_bars, draw_curves, draw_loops, print_code

# %% [markdown]
# ## A float as a byte
#
# A byte holds the whole numbers from −128 to 127. To store floats in bytes, divide them by a **scale**, and round. To read them, multiply by
# the scale again. This is **quantisation**. What is lost is at most half a scale.


# %%
def quantise(values):
    """Bytes, and their scale: the largest value becomes 127."""
    scale = np.abs(values).max() / 127
    return np.round(values / scale).astype(np.int8), np.float32(scale)


wave = np.sin(np.linspace(0, 6, 60)).astype(np.float32)
coarse_scale = 0.25
coarse = np.round(wave / coarse_scale) * coarse_scale
bytes_of_wave, scale = quantise(wave)
print("error in bytes:", np.abs(bytes_of_wave * scale - wave).max())
draw_curves({"floats": wave, "nine steps": coarse, "bytes": bytes_of_wave * scale}, "", "value")

# %% [markdown]
# The curve in bytes covers the curve in floats. With nine steps, you see the rounding.
#
# A product needs the scales once for each result, and not once for each multiplication:
#
# `sum(a * b) ≈ sum((qa * sa) * (qb * sb)) = sa * sb * sum(qa * qb)`
#
# The inner sum is in whole numbers. It is exact.

# %%
n = 256
rng = np.random.default_rng(0)
a = rng.standard_normal((n, n)).astype(np.float32)
b = rng.standard_normal((n, n)).astype(np.float32)
qa, scale_a = quantise(a)
qb, scale_b = quantise(b)

sums = qa.astype(np.int32) @ qb.astype(np.int32)
error = np.abs(sums * scale_a * scale_b - a @ b).max() / np.abs(a @ b).max()
print(f"largest error: {error:.2%} of the largest result")

# %% [markdown]
# ## A product of bytes
#
# The program reads bytes, and adds in `int32`: a product of two bytes does not fit into a byte. `B` is stored in small tiles of 4 columns by
# 4 values. Why, you see below.


# %%
@webmlc.kernel
def product(
    A: T.Buffer((n, n), "int8"),
    B: T.Buffer((n // 4, n // 4, 4, 4), "int8"),
    C: T.Buffer((n, n), "int32"),
):
    for i, j, k in T.grid(n, n, n):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] += T.cast(A[vi, vk], "int32") * T.cast(
                B[vj // 4, vk // 4, vj % 4, vk % 4], "int32"
            )


def in_tiles(matrix):
    """(rows, columns) → (columns / 4, rows / 4, 4 columns, 4 rows)."""
    return matrix.T.reshape(n // 4, 4, n // 4, 4).swapaxes(1, 2).copy()


tiles_of_b = in_tiles(qb)
c = np.empty((n, n), np.int32)
giga = {}  # billions of operations a second


def measure(name, program):
    """Compile, compare with numpy, and time."""
    kernel = webmlc.compile(program)
    kernel(qa, tiles_of_b, c)
    np.testing.assert_array_equal(c, sums)
    giga[name] = kernel.time(qa, tiles_of_b, c, runs=5).gflops
    return kernel


measure("bytes, as written", tir.Schedule(product))

X = te.placeholder((n, n), "float32", name="X")
W = te.placeholder((n, n), "float32", name="W")
r = te.reduce_axis((0, n), name="r")
Y = te.compute((n, n), lambda i, j: te.sum(X[i, r] * W[r, j], axis=r), name="Y")
floats = webmlc.compile(te.create_prim_func([X, W, Y], "floats"))
y = np.empty((n, n), np.float32)
floats(a, b, y)
np.testing.assert_allclose(y, a @ b, rtol=1e-3, atol=1e-3)
giga["floats, by the rules"] = floats.time(a, b, y, runs=5).gflops
draw_bars(giga, "billions of operations a second")

# %% [markdown]
# Bytes alone are no gain. The loop still loads one byte, multiplies once, and adds once.
#
# ## An instruction for a tile
#
# WebAssembly has instructions for sixteen bytes at once. An **intrinsic** describes what such an instruction, or a short sequence of them,
# computes. The intrinsic `i8x16.dot_s` does this for sixteen pairs of bytes:
#
# ```
# for j in 4:          # four columns
#     for k in 4:      # four bytes of each
#         C[j] += A[j, k] * B[j, k]
# ```
#
# So the schedule makes loops of exactly this form: 4 columns, and inside them 4 steps of the sum.

# %%
schedule = tir.Schedule(product)
i, j, k = schedule.get_loops("C")
j0, j1 = schedule.split(j, factors=[None, 4])
k0, k1 = schedule.split(k, factors=[None, 4])
schedule.reorder(i, j0, k0, j1, k1)
draw_loops(schedule)

# %% [markdown]
# `tensorize` compares the loops below `j1` with the description. If they agree, it puts the instruction in their place.

# %%
block = schedule.tensorize(j1, "i8x16.dot_s")
schedule.decompose_reduction(block, k0)
kernel = measure("tensorized", schedule)
print_code(kernel, "product")

# %% [markdown]
# In the innermost loop, two `i32x4.dot_i16x8_s` multiply sixteen pairs, and add them. Four bytes of `A` are one word, which `splat` copies
# into all four lanes. The four columns of `B` are 16 bytes in a row: that is why `B` is
# stored in tiles. If the loops compute anything else, the step is refused. Here the inner loop has eight steps:

# %%
wrong = tir.Schedule(product)
i, j, k = wrong.get_loops("C")
j0, j1 = wrong.split(j, factors=[None, 4])
k0, k1 = wrong.split(k, factors=[None, 8])
wrong.reorder(i, j0, k0, j1, k1)
try:
    wrong.tensorize(j1, "i8x16.dot_s")
except tir.ScheduleError as refusal:
    print(str(refusal).splitlines()[0])

# %% [markdown]
# ## Keep the sums in registers
#
# The tensorized loop loads its sums and stores them again in every step. With a tile of rows and columns in registers, a loaded value serves
# several instructions.


# %%
def tiled(rows, vectors, intrinsic="i8x16.dot_s", program=product):
    """A tile of `rows` rows and `vectors` × 4 columns in registers."""
    schedule = tir.Schedule(program)
    i, j, k = schedule.get_loops("C")
    i0, i1 = schedule.split(i, factors=[None, rows])
    j0, j1, j2 = schedule.split(j, factors=[None, vectors, 4])
    k0, k1 = schedule.split(k, factors=[None, 4])
    schedule.reorder(j0, i0, k0, i1, j1, j2, k1)
    write = schedule.cache_write("C", "local")
    schedule.reverse_compute_at(write, i0)
    block = schedule.tensorize(j2, intrinsic)
    schedule.decompose_reduction(block, k0)
    schedule.unroll(i1)
    schedule.unroll(j1)
    schedule.vectorize(schedule.get_loops(write)[-1])
    return schedule


measure("4 × 8 in registers", tiled(4, 2))
draw_bars(giga, "billions of operations a second")

# %% [markdown]
# ## An instruction with a condition
#
# Some processors have a still faster instruction, if one operand is an unsigned number of 7 bits, from 0 to 127. Activations after a ReLU
# are not negative, so this costs one bit of precision and nothing else. In the program, `& 127` is the promise.


# %%
@webmlc.kernel
def product_of_7_bits(
    A: T.Buffer((n, n), "uint8"),
    B: T.Buffer((n // 4, n // 4, 4, 4), "int8"),
    C: T.Buffer((n, n), "int32"),
):
    for i, j, k in T.grid(n, n, n):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] += T.cast(A[vi, vk] & T.uint8(127), "int32") * T.cast(
                B[vj // 4, vk // 4, vj % 4, vk % 4], "int32"
            )


positive = np.abs(qa).astype(np.uint8)
kernel = webmlc.compile(tiled(4, 2, "i32x4.relaxed_dot_i8x16_i7x16_add_s", product_of_7_bits))
kernel(positive, tiles_of_b, c)
np.testing.assert_array_equal(c, positive.astype(np.int32) @ qb.astype(np.int32))
giga["7 bits"] = kernel.time(positive, tiles_of_b, c, runs=5).gflops
draw_bars(giga, "billions of operations a second")

# %% [markdown]
# ## An intrinsic of your own
#
# An intrinsic is a row of data: a description, and the text of the instruction. You can add one. Here is `a * b + c` of four floats, which
# WebAssembly calls `relaxed_madd`.


# %%
@webmlc.kernel
def multiply_add(A: T.Buffer((4,)), B: T.Buffer((4,)), C: T.Buffer((4,))):
    for j in range(4):
        with T.block("C"):
            vj = T.axis.spatial(4, j)
            with T.init():
                C[vj] = T.float32(0)
            C[vj] = C[vj] + A[vj] * B[vj]


tir.TensorIntrin.register(
    "course.multiply_add",
    multiply_add,
    wasm="(f32x4.relaxed_madd {A} {B} {C})",
    feature="relaxed",
)

schedule = tir.Schedule(te.create_prim_func([X, W, Y], "by_rows"))
i, j, r = schedule.get_loops("Y")
j0, j1 = schedule.split(j, factors=[None, 4])
schedule.reorder(i, j0, r, j1)
block = schedule.tensorize(j1, "course.multiply_add")
schedule.decompose_reduction(block, r)
kernel = webmlc.compile(schedule)
kernel(a, b, y)
np.testing.assert_allclose(y, a @ b, rtol=1e-3, atol=1e-3)
print("relaxed_madd" in kernel.texts["model.relaxed.wat"])

# %% [markdown]
# ## A whole model in bytes
#
# `webmlc.build(..., quantise="int8")` does all of this for a model: it stores the weights in bytes, quantises the activations while the
# model runs, and its rules tensorize the products. The digits once more:

# %%
pictures, labels = load_digits(return_X_y=True)
pictures = pictures.astype(np.float32) / 16
classifier = MLPClassifier(
    (256, 128), learning_rate_init=0.003, max_iter=40, tol=1e-2, random_state=0
)
classifier.fit(pictures[:1400], labels[:1400])

model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
digits (float[n, 64] x) => (float[n, 10] scores) {
  p1 = MatMul(x, w1)
  s1 = Add(p1, b1)
  h1 = Relu(s1)
  p2 = MatMul(h1, w2)
  s2 = Add(p2, b2)
  h2 = Relu(s2)
  p3 = MatMul(h2, w3)
  scores = Add(p3, b3)
}""")
for kind, layers in {"w": classifier.coefs_, "b": classifier.intercepts_}.items():
    for number, values in enumerate(layers, start=1):
        weight = numpy_helper.from_array(values.astype(np.float32), f"{kind}{number}")
        model.graph.initializer.append(weight)

folder = Path(tempfile.mkdtemp())
kilobytes, answers = {}, {}
for name, mode in {"floats": None, "bytes": "int8", "4 bits": "int4"}.items():
    package = folder / name
    webmlc.build(model, package, target="wasm", quantise=mode, cache=False)
    kilobytes[name] = (package / "weights.safetensors").stat().st_size / 1000
    scores = webmlc.load(package, device="wasm").run({"x": pictures[1400:]})["scores"]
    answers[name] = scores.argmax(axis=1)
    right = (answers[name] == labels[1400:]).mean()
    same = (answers[name] == answers["floats"]).mean()
    print(f"{name}: {right:.1%} right, {same:.1%} as with floats")
assert (answers["bytes"] == answers["floats"]).mean() > 0.95

draw_bars(kilobytes, "kilobytes of weights")

# %% [markdown]
# `docs/quantise.md` says how to measure the loss of your own model.
#
# ## Exercises
#
# ### Exercise 1
#
# Tensorize a product of floats, 64 × 64, with `matmul_4x4_f32`: an intrinsic of 4 × 4 × 4. Which three loops must be inside?
#
# ### Exercise 2
#
# Values between 10 and 12 waste most of a byte, if 0 must be a byte, too. Quantise with a scale **and** a zero point, so that 10 becomes
# −128 and 12 becomes 127. Write the kernel that turns the bytes back into floats, and measure the error against both ways.
#
# ### Exercise 3
#
# Write a tensor program for the exact sum of `int8` values in each row of a matrix, in `int32`. What would go wrong in `int8`?
