# %% [markdown]
# # 5. PyTorch in
#
# Most models are written in PyTorch. A PyTorch model is a Python program: each line computes at once, and nobody sees the whole. A
# compiler wants the whole. This lesson gets it in three steps: **trace** the program to a graph, **translate** the graph, and **optimise**
# it.
#
# This lesson needs PyTorch. `make test-doors` creates the environment `.venv-doors`, which has it.

# %%
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import webmlc
from webmlc import te, tir
from show import draw_bars, draw_loops

# %% [markdown]
# ## A model in PyTorch
#
# The classifier of digits again, with a residual connection: the hidden values are added to what a second layer makes of them.


# %%
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 32)
        self.second = nn.Linear(32, 32)
        self.last = nn.Linear(32, 10)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        hidden = hidden + torch.relu(self.second(hidden))
        return self.last(hidden)


torch.manual_seed(0)
torch.set_num_threads(1)
model = Classifier()

pictures, labels = load_digits(return_X_y=True)
pictures = (pictures / 16).astype(np.float32)
x, y = torch.from_numpy(pictures[:1400]), torch.from_numpy(labels[:1400])
optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):
    optimiser.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimiser.step()

held_out = pictures[1400:]
with torch.no_grad():
    expected = model(torch.from_numpy(held_out)).numpy()
print(f"{(expected.argmax(axis=1) == labels[1400:]).mean():.0%} of the held-out digits are right")

# %% [markdown]
# ## Trace
#
# `torch.export` runs `forward` once, with values that have a type and a shape but no numbers, and writes down every operator that is
# called. Python is gone from the result: no classes, no loops of Python, only a list of nodes.
#
# `Dim("n")` says that the number of pictures may differ.

# %%
exported = torch.export.export(
    model.eval(), (torch.zeros(2, 64),), dynamic_shapes={"x": {0: torch.export.Dim("n")}}
)
for node in exported.graph.nodes:
    operands = ", ".join(str(argument) for argument in node.args)
    print(f"{node.op:14} {node.name:22} {node.target}({operands})")

# %% [markdown]
# `placeholder` nodes are the weights and the input. Each `call_function` names an operator of PyTorch's own basic set, which is called ATen.
#
# ## Translate
#
# Now go through the nodes in order. Each operator becomes a tensor expression, as in [lesson 1](01_tensor_programs.py). Three operators are
# enough for this model, so the whole translator is a table of three functions:


# %%
def linear(name, x, weight, bias):
    """PyTorch stores the weight of a linear layer with a row for each result."""
    k = te.reduce_axis((0, weight.shape[1]), "k")
    shape = (x.shape[0], weight.shape[0])
    product = te.compute(
        shape, lambda i, j: te.sum(x[i, k] * weight[j, k], axis=k), name=f"{name}_product"
    )
    return te.compute(shape, lambda i, j: product[i, j] + bias[j], name=name)


def relu(name, x):
    return te.compute(x.shape, lambda i, j: te.max(x[i, j], 0.0), name=name)


def add(name, a, b):
    return te.compute(a.shape, lambda i, j: a[i, j] + b[i, j], name=name)


TABLE = {"aten.linear.default": linear, "aten.relu.default": relu, "aten.add.Tensor": add}


def translate(exported, n):
    """The tensor program of an exported model for `n` rows, and the names of its weights."""
    signature = exported.graph_signature
    tensors, parameters, weights = {}, [], []
    for node in exported.graph.nodes:
        if node.op == "placeholder":
            shape = tuple(s if isinstance(s, int) else n for s in node.meta["val"].shape)
            tensors[node] = te.placeholder(shape, "float32", name=node.name)
            parameters.append(tensors[node])
            weights += [signature.inputs_to_parameters.get(node.name)]
        elif node.op == "call_function":
            operands = [tensors[argument] for argument in node.args]
            tensors[node] = TABLE[str(node.target)](node.name, *operands)
        elif node.op == "output":
            results = [tensors[result] for result in node.args[0]]
    return te.create_prim_func([*parameters, *results], "classifier"), weights


program, weights = translate(exported, n=len(held_out))
draw_loops(program)

# %% [markdown]
# Each layer became blocks, in the order of the model. The number of pictures is fixed here, so that memory between the blocks can be planned.
#  The program takes the weights, the pictures, and an array for the scores:

# %%
state = {name: value.detach().numpy() for name, value in model.named_parameters()}
arrays = [held_out if name is None else state[name] for name in weights]
scores = np.empty((len(held_out), 10), np.float32)

as_written = webmlc.compile(tir.Schedule(program))
as_written(*arrays, scores)
np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)
print("the translated program agrees with PyTorch")

# %% [markdown]
# ## Optimise
#
# The program is right, and slow: it writes every step into memory, and computes one element at a time. Two changes by hand:
#
# - A block that only moves or changes single elements is inlined into the block that reads it.
# - The columns of the products are computed 8 at a time.

# %%
schedule = tir.Schedule(program)
for block in [name for name in schedule.blocks() if not name.endswith("_product")]:
    if schedule.allows("compute_inline", block):
        schedule.compute_inline(block)
print("blocks left:", ", ".join(schedule.blocks()))

# %% [markdown]
# An inlined block is computed again by everyone who reads it. For a cheap step such as ReLU that is right. In a product, 32 columns read
# each hidden value, so the step runs 32 times as often; it still costs less than a trip through memory, or does it? Measure.


# %%
def widen(schedule, lanes=8):
    """Compute the columns of each product `lanes` at a time, with the sum in the innermost loops."""
    for block in [name for name in schedule.blocks() if name.endswith("_product")]:
        i, j, k = schedule.get_loops(block)
        if schedule.get(j) % lanes == 0:
            j0, j1 = schedule.split(j, factors=[None, lanes])
            schedule.reorder(i, j0, k, j1)
            schedule.decompose_reduction(block, k)
            schedule.vectorize(j1)


inlined = schedule.copy()
widened = tir.Schedule(program)
widen(widened)

milliseconds = {}
for name, candidate in {
    "as written": tir.Schedule(program),
    "inlined": inlined,
    "8 columns": widened,
    "by the rules": program,
}.items():
    kernel = webmlc.compile(candidate)
    kernel(*arrays, scores)
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)
    milliseconds[name] = 1e3 * kernel.time(*arrays, scores).seconds
draw_bars(milliseconds, "milliseconds")

# %% [markdown]
# A guess is not a measurement. [Lesson 4](04_search.py) lets the computer try.
#
# ## All three in one call
#
# `webmlc.build` takes the PyTorch model itself. It knows some two hundred operators instead of three, and optimises on both levels: it packs
# the weights, fuses the steps, and schedules each kernel.

# %%
package = Path(tempfile.mkdtemp()) / "classifier"
stages = {}
webmlc.build(
    model,
    package,
    target="wasm",
    example_inputs=(torch.zeros(2, 64),),
    dynamic_shapes={"x": {0: "n"}},
    on_stage=lambda stage: stages.setdefault((stage.title, stage.kernel), stage.text()),
    cache=False,
)
print(stages["infer shapes", None])
print(stages["wasm: fuse", None])

# %%
loaded = webmlc.load(package, device="wasm")
(scores,) = loaded.run({"x": held_out}).values()
np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)


def median(function, runs=20):
    """The median time of a run in milliseconds."""
    times = []
    function()
    for _ in range(runs):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return 1e3 * float(np.median(times))


def in_pytorch():
    with torch.no_grad():
        model(torch.from_numpy(held_out))


steps = loaded.profile({"x": held_out})
milliseconds["webmlc.build"] = 1e3 * float(
    np.median([sum(s.seconds for s in loaded.profile({"x": held_out})) for _ in range(20)])
)
milliseconds["PyTorch, 1 thread"] = median(in_pytorch)
draw_bars(milliseconds, "milliseconds")

# %% [markdown]
# The package is a folder that a page loads, as in [lesson 3](03_end_to_end.py). `docs/doors/pytorch.md` has everything else that
# the door of PyTorch does.
#
# ## Exercises
#
# ### Exercise 1
#
# Teach the translator `aten.sigmoid.default` and `aten.mul.Tensor`, and translate a model that computes `x * sigmoid(x)` after its first
# layer.
#
# ### Exercise 2
#
# Which operators does `torch.export` list for `nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16))`? Build it with
# `webmlc.build`, and compare it with PyTorch for 1 and for 7 rows.
#
# ### Exercise 3
#
# A model with `if x.sum() > 0:` cannot be traced. Why? Write it with `torch.where` instead, and build it.
