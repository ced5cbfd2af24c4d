# %% [markdown]
# # 3. End to end
#
# A model has many steps. This lesson takes a small one, a classifier of handwritten digits, from its weights to a package that a web page
# loads. On the way, it shows the two levels on which a compiler works: the **graph** of steps, and the **loops** of each step.

# %%
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import onnx.parser
from onnx import numpy_helper
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import webmlc
from webmlc import R, T, te, tir
from show import draw_bars, draw_graph, draw_images, draw_loops

# %% [markdown]
# ## The model
#
# scikit-learn has 1797 pictures of digits, of 8 × 8 pixels each. It trains a network with one hidden layer of 32 values, on the first 1400
# pictures. The held-out pictures then tell how well the network does on pictures that it has not seen.

# %%
pictures, labels = load_digits(return_X_y=True)
pictures = pictures.astype(np.float32) / 16  # from 0 to 1
training, held_out = slice(0, 1400), slice(1400, None)

classifier = MLPClassifier((32,), learning_rate_init=0.01, random_state=0)
classifier.fit(pictures[training], labels[training])

draw_images(pictures[held_out][:6].reshape(-1, 8, 8), [str(d) for d in labels[held_out][:6]])

# %% [markdown]
# Training leaves four arrays: for each layer a matrix of weights, and a **bias**, which is added to each row. With them, numpy classifies a
# digit in two lines.

# %%
w1, w2 = (w.astype(np.float32) for w in classifier.coefs_)
b1, b2 = (b.astype(np.float32) for b in classifier.intercepts_)
print("w1", w1.shape, "b1", b1.shape, "w2", w2.shape, "b2", b2.shape)


def scores_in_numpy(x):
    hidden = np.maximum(x @ w1 + b1, 0)
    return hidden @ w2 + b2


digit = pictures[held_out][:1]
expected = scores_in_numpy(digit)
print("scores:", expected.round(1), "→ the digit", expected.argmax())

# %% [markdown]
# ## Two levels in one module
#
# A **module** holds both levels, in a class:
#
# - `T.prim_func` marks a kernel with loops. Outside a module, `webmlc.kernel` does.
# - `R.function` is the graph: a list of calls, in order. `R.Tensor` is the type of a value.
# - `R.call_tir` allocates the array of a result, whose type is the last argument, and calls a kernel that fills it.
# - `R.dataflow` encloses calls that only compute, and `R.output` names the values that leave it.
#
# The number of pictures is a symbol, so one module classifies any number of them. After the class, `Digits["linear_1"]` is a kernel of
# the module.

# %%
n = T.symbol("n")


@webmlc.module
class Digits:
    @T.prim_func
    def linear_1(
        X: T.Buffer((n, 64), "float32"),
        W: T.Buffer((64, 32), "float32"),
        B: T.Buffer((32,), "float32"),
        Y: T.Buffer((n, 32), "float32"),
    ):
        for i, j, k in T.grid(n, 32, 64):
            with T.block("Y"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    Y[vi, vj] = B[vj]
                Y[vi, vj] = Y[vi, vj] + X[vi, vk] * W[vk, vj]

    @T.prim_func
    def relu(X: T.Buffer((n, 32), "float32"), Y: T.Buffer((n, 32), "float32")):
        for i, j in T.grid(n, 32):
            with T.block("Y"):
                vi, vj = T.axis.remap("SS", [i, j])
                Y[vi, vj] = T.max(X[vi, vj], T.float32(0))

    @T.prim_func
    def linear_2(
        X: T.Buffer((n, 32), "float32"),
        W: T.Buffer((32, 10), "float32"),
        B: T.Buffer((10,), "float32"),
        Y: T.Buffer((n, 10), "float32"),
    ):
        for i, j, k in T.grid(n, 10, 32):
            with T.block("Y"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    Y[vi, vj] = B[vj]
                Y[vi, vj] = Y[vi, vj] + X[vi, vk] * W[vk, vj]

    @R.function
    def main(
        x: R.Tensor((n, 64), "float32"),
        w1: R.Tensor((64, 32), "float32"),
        b1: R.Tensor((32,), "float32"),
        w2: R.Tensor((32, 10), "float32"),
        b2: R.Tensor((10,), "float32"),
    ):
        with R.dataflow():
            sums = R.call_tir(Digits.linear_1, (x, w1, b1), R.Tensor((n, 32), "float32"))
            hidden = R.call_tir(Digits.relu, (sums,), R.Tensor((n, 32), "float32"))
            scores = R.call_tir(Digits.linear_2, (hidden, w2, b2), R.Tensor((n, 10), "float32"))
            R.output(scores)
        return scores


draw_graph(Digits)

# %% [markdown]
# The module runs in the interpreter, which is slow and checks everything:

# %%
(scores,) = Digits.run(digit, w1, b1, w2, b2)
np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
print("the digit", scores.argmax())

# %% [markdown]
# `build` compiles all kernels and the list of calls. Now the module classifies all pictures that the training did not see.

# %%
compiled = Digits.build("wasm")
(scores,) = compiled(pictures[held_out], w1, b1, w2, b2)
np.testing.assert_allclose(scores, scores_in_numpy(pictures[held_out]), rtol=1e-4, atol=1e-4)
print(f"{(scores.argmax(axis=1) == labels[held_out]).mean():.0%} of the held-out digits are right")

# %% [markdown]
# ## Fusion
#
# Look at the graph again. `linear_1` writes 32 values for each picture into memory. `relu` reads them, changes them a little, and writes
# as many again. All of that is traffic. A compiler avoids it by **fusion**: several steps become one kernel, and values between them
# stay in registers.
#
# A chain of simple steps shows it best. Here are three steps on a million values, as one program with three blocks.

# %%
size = 1_000_000
X = te.placeholder((size,), "float32", name="X")
scaled = te.compute((size,), lambda i: X[i] * 3.0, name="scaled")
shifted = te.compute((size,), lambda i: scaled[i] + 1.0, name="shifted")
clipped = te.compute((size,), lambda i: te.max(shifted[i], 0.0), name="clipped")
chain = te.create_prim_func([X, clipped], "chain")
draw_loops(chain)

# %% [markdown]
# `compute_inline` removes a block, and writes its expression where its result was read. Two temporary arrays of 4 MB disappear.

# %%
separate = tir.Schedule(chain)
fused = tir.Schedule(chain)
fused.compute_inline("scaled")
fused.compute_inline("shifted")
print(fused)

# %% [markdown]
# So that only memory differs, all loops of both programs get vectors of 4 values.

# %%
for schedule in (separate, fused):
    for block in schedule.blocks():
        (loop,) = schedule.get_loops(block)
        _, inner = schedule.split(loop, factors=[None, 4])
        schedule.vectorize(inner)

x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
y = np.empty_like(x)
milliseconds = {}
for name, schedule in {"three loops": separate, "one loop": fused}.items():
    kernel = webmlc.compile(schedule)
    kernel(x, y)
    np.testing.assert_allclose(y, np.maximum(x * 3 + 1, 0), rtol=1e-6, atol=1e-6)
    milliseconds[name] = 1e3 * kernel.time(x, y).seconds

draw_bars(milliseconds, "milliseconds")

# %% [markdown]
# ## The compiler does it for a whole model
#
# A model usually comes as an **ONNX** file: a graph of operators, and the weights. Here is the same network in that form. `Softmax` at its
# end turns the scores into probabilities, whose sum is 1.

# %%
model = onnx.parser.parse_model("""
<ir_version: 8, opset_import: ["" : 17]>
digits (float[n, 64] x) => (float[n, 10] probabilities) {
  product = MatMul(x, w1)
  sums = Add(product, b1)
  hidden = Relu(sums)
  product_2 = MatMul(hidden, w2)
  scores = Add(product_2, b2)
  probabilities = Softmax(scores)
}""")
weights = {"w1": w1, "b1": b1, "w2": w2, "b2": b2}
model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in weights.items())

# %% [markdown]
# `webmlc.build` runs the whole compiler. Each of its steps is a **pass**: it takes a module, and returns a better one. `on_stage` receives
# the result of every pass: its title, and the name of the kernel if it is about one. `cache=False` compiles again what an earlier build
# has compiled.

# %%
stages = {}


def keep(stage):
    stages.setdefault((stage.title, stage.kernel), stage)


package = Path(tempfile.mkdtemp()) / "digits"
webmlc.build(model, package, target="wasm", on_stage=keep, cache=False)

graph_passes = [title for title, kernel in stages if kernel is None]
print(len(graph_passes), "passes of the graph:")
print(textwrap.fill(", ".join(graph_passes), width=80))

# %% [markdown]
# Most passes have nothing to do in so small a model. `wasm:` stands before passes for the CPU; another target has others. The last two
# results are WebAssembly text (WAT), for browsers with the newest vector instructions (`relaxed`) and for all others (`simd128`).
#
# Before fusion, the graph has six nodes. Every value has its type: `n` rows, as the model says.

# %%
print(stages["infer shapes", None].text())

# %% [markdown]
# After fusion, it has three. The first kernel multiplies, adds the bias, and clips, while a value is in a register. `packed` means
# that the compiler has laid the weights out in the order in which the kernel reads them: the packed panels of lesson 2, of 8 columns each.

# %%
print(stages["wasm: fuse", None].text())

# %% [markdown]
# Each fused node is lowered to a kernel with loops, as you wrote them by hand above:

# %%
print(stages["relaxed: loops", "matmul_add_relu"].text())

# %% [markdown]
# A schedule then changes these loops, and the result is printed as WebAssembly. You have seen both in
# [lesson 2](02_transformations.py).
#
# ## The package
#
# The build wrote a folder that a web page loads as it stands:

# %%
for file in sorted(package.rglob("*")):
    if file.is_file():
        print(f"{file.stat().st_size:8,} bytes  {file.relative_to(package)}")

# %% [markdown]
# Python loads the same folder. One digit, at last:

# %%
loaded = webmlc.load(package, device="wasm")
probabilities = loaded.run({"x": digit})["probabilities"][0]
assert probabilities.argmax() == scores_in_numpy(digit).argmax()
draw_bars({f"digit {d}": float(p) for d, p in enumerate(probabilities)}, "probability")

# %%
predicted = loaded.run({"x": pictures[held_out]})["probabilities"].argmax(axis=1)
print(f"{(predicted == labels[held_out]).mean():.0%} of the held-out digits are right")

# %% [markdown]
# ## Exercises
#
# ### Exercise 1
#
# Fuse `linear_1` and `relu` of the module by hand: write one kernel `linear_relu` with two blocks, and a module with two calls. Check
# that its scores are equal to numpy's.
#
# ### Exercise 2
#
# `Digits.with_kernel("linear_1", schedule.program)` is the module with a scheduled program in the place of a kernel. Schedule
# `Digits["linear_1"]`: split 8 columns off the loop over `j`, move them inside `k`, vectorize them, and check the scores of the new module.
#
# ### Exercise 3
#
# Write the operator `Tanh` into the ONNX model in the place of `Relu`. Build it, and compare its probabilities with those of another
# runtime: `onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": ...})`. How many kernels does the graph have after
# fusion?
