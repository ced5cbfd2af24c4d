# %% [markdown]
# # 8. Gradients and training
#
# Training changes the weights of a model until its results are good. In each step it asks one question for each weight: if this weight
# grows a little, does the error grow or shrink? The answer is a number, the **derivative**. All derivatives together are the **gradient**.
#
# This lesson computes a gradient by hand, lets the compiler derive one, and trains the classifier of [lesson 3](03_end_to_end.py) in a
# compiled package. A web page can run the same package, so it can train on the data of its reader.

# %%
import tempfile
from pathlib import Path

import numpy as np
import onnx.parser
from sklearn.datasets import load_digits

import webmlc
from webmlc import te
from show import draw_bars, draw_curves, draw_images

# %% [markdown]
# ## A gradient by hand
#
# Take a product `y = x @ w`, and let the error be the sum of all squares of `y`. To learn the derivative by one weight, change that weight
# a little, and look at the error.

# %%
rng = np.random.default_rng(0)
x = rng.standard_normal((20, 6))
w = rng.standard_normal((6, 4))


def error(w):
    return float(((x @ w) ** 2).sum())


by_differences = np.zeros_like(w)
for position in np.ndindex(w.shape):
    step = np.zeros_like(w)
    step[position] = 1e-5
    by_differences[position] = (error(w + step) - error(w - step)) / 2e-5
by_differences.round(1)

# %% [markdown]
# That took two products for each of 24 weights. A model has millions of weights, so nobody trains like this. The **chain rule** needs two
# products in all:
#
# 1. The derivative of a square `y²` is `2y`. Call it `dy`: it says how the error changes with each element of `y`.
# 2. `w[k, j]` is multiplied by `x[i, k]` and added to `y[i, j]`, for every `i`. So its derivative is the sum over `i` of
#    `x[i, k] * dy[i, j]`.
#
# The second step is itself a tensor program:

# %%
X = te.placeholder((20, 6), "float32", name="X")
DY = te.placeholder((20, 4), "float32", name="DY")
i = te.reduce_axis((0, 20), name="i")
DW = te.compute((6, 4), lambda k, j: te.sum(X[i, k] * DY[i, j], axis=i), name="DW")
backward = te.create_prim_func([X, DY, DW], "backward")
print(backward)

# %%
dw = np.empty((6, 4), np.float32)
dy = 2 * (x @ w)
webmlc.compile(backward)(x.astype(np.float32), dy.astype(np.float32), dw)
np.testing.assert_allclose(dw, by_differences, rtol=1e-3, atol=1e-3)
dw.round(1)

# %% [markdown]
# ## The compiler derives it
#
# Every operator has such a rule. The rules run through the graph from the end to the start, each fed by the one after it. This is
# **reverse mode**, also called backpropagation.
#
# ONNX has a node for it, `Gradient`: the derivatives of `y` by `xs`. Here is the classifier with its error. `LogSoftmax` turns scores into
# logarithms of probabilities, and `target` is 1 at the right digit. So `loss` is small if the right digits are probable.

# %%
HEAD = '<ir_version: 9, opset_import: ["" : 18, "ai.onnx.preview.training" : 1, "my.course" : 1]>'
WEIGHTS = "float[64, 32] w1, float[32] b1, float[32, 10] w2, float[10] b2"
FORWARD = """
  product = MatMul(x, w1)
  sums = Add(product, b1)
  hidden = Relu(sums)
  product_2 = MatMul(hidden, w2)
  scores = Add(product_2, b2)"""
LOSS = """
  logarithms = LogSoftmax(scores)
  chosen = Mul(logarithms, target)
  total = ReduceSum <keepdims = 0> (chosen)
  count = ReduceSum <keepdims = 0> (target)
  mean = Div(total, count)
  loss = Neg(mean)"""
GRADIENT = """
  d_w1, d_b1, d_w2, d_b2 = ai.onnx.preview.training.Gradient
    <xs = ["w1", "b1", "w2", "b2"], y = "loss"> (w1, b1, w2, b2)"""

gradient = onnx.parser.parse_model(f"""{HEAD}
gradient (float[n, 64] x, float[n, 10] target, {WEIGHTS})
  => (float loss, float[64, 32] d_w1, float[32] d_b1, float[32, 10] d_w2, float[10] d_b2)
{{{FORWARD}{LOSS}{GRADIENT}
}}""")

folder = Path(tempfile.mkdtemp())


def compile_model(model, name, **options):
    """Build a model, and load it; returns it with the text of each graph pass."""
    stages = {}
    webmlc.build(
        model,
        folder / name,
        target="wasm",
        on_stage=lambda stage: stages.setdefault(stage.title, stage.text()),
        cache=False,
        **options,
    )
    return webmlc.load(folder / name, device="wasm"), stages


compiled, stages = compile_model(gradient, "gradient")
lines = stages["simplify"].splitlines()
start = next(number for number, line in enumerate(lines) if "%loss: " in line)
print("\n".join(lines[start:]))

# %% [markdown]
# The node `Gradient` is gone. After `loss`, the graph runs backwards: from `Neg` and `Div` at the end to the first product. A node
# `webmlc.Derivative` applies the rule of an elementwise operator. The rule of a `MatMul` has two products with transposed operands. A
# bias is added to every row, so its derivative is a sum over the rows.
#
# Compare with the same rules in numpy:

# %%
pictures, labels = load_digits(return_X_y=True)
pictures = pictures.astype(np.float32) / 16
targets = np.eye(10, dtype=np.float32)[labels]
training, held_out = slice(0, 1400), slice(1400, None)


def first_weights():
    rng = np.random.default_rng(1)
    return {
        "w1": rng.normal(0, 0.15, (64, 32)).astype(np.float32),
        "b1": np.zeros(32, np.float32),
        "w2": rng.normal(0, 0.15, (32, 10)).astype(np.float32),
        "b2": np.zeros(10, np.float32),
    }


def scores_in_numpy(x, weights):
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0)
    return hidden @ weights["w2"] + weights["b2"]


def gradient_in_numpy(x, target, weights):
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0)
    scores = hidden @ weights["w2"] + weights["b2"]
    probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    d_scores = (probabilities - target) / len(x)
    d_sums = d_scores @ weights["w2"].T * (hidden > 0)
    return {
        "d_w1": x.T @ d_sums,
        "d_b1": d_sums.sum(axis=0),
        "d_w2": hidden.T @ d_scores,
        "d_b2": d_scores.sum(axis=0),
    }


weights = first_weights()
batch = {"x": pictures[:50], "target": targets[:50]}
result = compiled.run(batch | weights)
for name, expected in gradient_in_numpy(*batch.values(), weights).items():
    np.testing.assert_allclose(result[name], expected, rtol=1e-3, atol=1e-5)
print(f"loss: {result['loss']:.3f}; all derivatives agree")

# %% [markdown]
# ## Train
#
# A training step moves each weight against its derivative. How far is the **rate**. The model below returns the new weights.

# %%
NEW = "float[64, 32] new_w1, float[32] new_b1, float[32, 10] new_w2, float[10] new_b2"
UPDATE = "".join(
    f"\n  move_{w} = Mul(d_{w}, rate)\n  new_{w} = Sub({w}, move_{w})"
    for w in ("w1", "b1", "w2", "b2")
)

step = onnx.parser.parse_model(f"""{HEAD}
step (float[n, 64] x, float[n, 10] target, float rate, {WEIGHTS}) => (float loss, {NEW})
{{{FORWARD}{LOSS}{GRADIENT}{UPDATE}
}}""")
training_step, step_stages = compile_model(step, "step")

# %% [markdown]
# An **epoch** sees each picture once, 50 in a step, in another order each time.


# %%
def train(model, weights, epochs=15, rate=0.3):
    """Train, and return the weights and the mean loss of each epoch."""
    rng = np.random.default_rng(2)
    losses = []
    for _ in range(epochs):
        order = rng.permutation(1400)
        of_epoch = []
        for rows in order.reshape(-1, 50):
            batch = {"x": pictures[rows], "target": targets[rows], "rate": np.float32(rate)}
            result = model.run(batch | weights)
            weights = {name: result[f"new_{name}"] for name in weights}
            of_epoch.append(float(result["loss"]))
        losses.append(float(np.mean(of_epoch)))
    return weights, losses


def share_right(weights):
    predicted = scores_in_numpy(pictures[held_out], weights).argmax(axis=1)
    return float((predicted == labels[held_out]).mean())


before = first_weights()
trained, losses = train(training_step, before)
assert losses[-1] < losses[0] / 2
print(f"right before: {share_right(before):.0%}, right after: {share_right(trained):.0%}")
draw_curves({"Relu": losses}, "epoch", "loss")

# %% [markdown]
# Each column of `w1` is a picture, too: dark where a pixel speaks for its hidden value. Before the training it is noise:

# %%
draw_images(before["w1"].T[:6].reshape(-1, 8, 8), [f"hidden {h}" for h in range(6)])

# %%
draw_images(trained["w1"].T[:6].reshape(-1, 8, 8), [f"hidden {h}" for h in range(6)])

# %% [markdown]
# ## What a training step costs
#
# A step computes the model, then all derivatives, and then the new weights. All of them are nodes of one graph, so the compiler fuses them
# like any others:

# %%
prediction = onnx.parser.parse_model(f"""{HEAD}
predict (float[n, 64] x, {WEIGHTS}) => (float[n, 10] scores)
{{{FORWARD}
}}""")
predict, predict_stages = compile_model(prediction, "predict")
for name, texts in {"prediction": predict_stages, "training step": step_stages}.items():
    nodes, kernels = (
        sum(line.startswith("  %") for line in texts[title].splitlines())
        for title in ("simplify", "wasm: fuse")
    )
    print(f"{name}: {nodes} nodes become {kernels} kernels")

# %%
everything = {"x": pictures[:1400], "target": targets[:1400], "rate": np.float32(0.3)}


def milliseconds(model, inputs):
    """The median of ten runs of all kernels, for 1400 pictures."""
    model.run(inputs)
    times = [sum(step.seconds for step in model.profile(inputs)) for _ in range(10)]
    return 1e3 * float(np.median(times))


draw_bars(
    {
        "prediction": milliseconds(predict, {"x": everything["x"]} | trained),
        "training step": milliseconds(training_step, everything | trained),
    },
    "milliseconds for 1400 pictures",
)

# %% [markdown]
# ## An operator of your own trains, too
#
# `webmlc.operator` makes a function of tensors an operator of ONNX models. If it computes each element from the element at the same
# place, the compiler differentiates its expression. Here is a smooth relative of ReLU:


# %%
@webmlc.operator("my.course", "Smooth")
def smooth(x: te.Tensor) -> te.Tensor:
    rows, columns = x.shape
    return te.compute((rows, columns), lambda i, j: x[i, j] * te.sigmoid(2.0 * x[i, j]), name="y")


smooth_forward = FORWARD.replace("Relu(sums)", "my.course.Smooth(sums)")
smooth_step = onnx.parser.parse_model(f"""{HEAD}
step (float[n, 64] x, float[n, 10] target, float rate, {WEIGHTS}) => (float loss, {NEW})
{{{smooth_forward}{LOSS}{GRADIENT}{UPDATE}
}}""")
smooth_model, _ = compile_model(smooth_step, "smooth", operators=[smooth])
_, smooth_losses = train(smooth_model, first_weights())
assert smooth_losses[-1] < smooth_losses[0] / 2
draw_curves({"Relu": losses, "Smooth": smooth_losses}, "epoch", "loss")

# %% [markdown]
# ## Exercises
#
# ### Exercise 1
#
# For `y = x @ w`, the derivative by `x` is a product, too. Which one? Write it with `te`, and compare it with differences.
#
# ### Exercise 2
#
# `Momentum` of `ai.onnx.preview.training` remembers in which direction a weight moved. Train the model `y = x @ w` on a linear rule with
# it, and compare every step with numpy.
#
# ### Exercise 3
#
# Write an operator `Softsign`, `x / (1 + |x|)`. Build a model that returns its `Gradient`, and compare it with the derivative that you
# work out on paper.
