# %% [markdown]
# # 4. Search
#
# [Lesson 2](02_transformations.py) made a product fast by hand. Each step had a number in it: vectors of how many columns, tiles of how many
# rows? Nobody knows the best numbers in advance. They depend on the processor, and on each other. So a compiler **searches**: it tries
# schedules, measures them, and keeps the fastest.
#
# This lesson searches one space in three ways, and draws how fast each finds something good.

# %%
import tempfile
from pathlib import Path

import numpy as np

import webmlc
from webmlc import te, tir
from show import draw_bars, draw_curves, draw_loops

# %% [markdown]
# ## A schedule with holes
#
# The program is a product of matrices. Its schedule is a function: the parameters are the numbers that we do not know.

# %%
size = 256
A = te.placeholder((size, size), "float32", name="A")
B = te.placeholder((size, size), "float32", name="B")
k = te.reduce_axis((0, size), name="k")
C = te.compute((size, size), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
program = te.create_prim_func([A, B, C], "product")


def tiled(rows, columns, depth, packs):
    """The product in tiles of `rows` × `columns`, whose sums take `depth` steps in a row."""
    schedule = tir.Schedule(program)
    i, j, k = schedule.get_loops("C")
    i0, i1 = schedule.split(i, factors=[None, rows])
    j0, j1 = schedule.split(j, factors=[None, columns])
    k0, k1 = schedule.split(k, factors=[None, depth])
    schedule.reorder(j0, i0, k0, k1, i1, j1)
    if packs:  # copy the columns of a tile to adjacent addresses first
        schedule.compute_at(schedule.cache_read("C", "B", "global"), j0)
    write = schedule.cache_write("C", "local")  # sums stay in registers
    schedule.reverse_compute_at(write, i0)
    initial = schedule.decompose_reduction("C", k0)
    for block in (initial, "C", write):
        *_, row, column = schedule.get_loops(block)
        schedule.vectorize(column)
        schedule.unroll(row)
    schedule.unroll(k1)
    return schedule


draw_loops(tiled(rows=4, columns=8, depth=2, packs=True))

# %% [markdown]
# Tiles share what they read: a tile of 4 × 8 reads 4 values of `A` and 8 of `B`, and multiplies 32 times. Larger tiles share more, until the
# sums of a tile no longer fit into the processor's registers. Where is that point? Here are four guesses.

# %%
rng = np.random.default_rng(0)
a = rng.standard_normal((size, size)).astype(np.float32)
b = rng.standard_normal((size, size)).astype(np.float32)
c = np.empty((size, size), np.float32)

gflops = {}
for guess in [(2, 4, 1, False), (4, 8, 1, False), (4, 8, 4, True), (16, 32, 1, True)]:
    kernel = webmlc.compile(tiled(*guess))
    kernel(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
    gflops[str(guess)] = kernel.time(a, b, c, runs=5).gflops
draw_bars(gflops, "GFLOPS", title="(rows, columns, depth, packs)")

# %% [markdown]
# ## The space
#
# A **space** lists the candidate values of each parameter. Its members are all combinations.

# %%
space = {
    "rows": [2, 4, 8, 16],
    "columns": [4, 8, 16, 32],
    "depth": [1, 2, 4, 8],
    "packs": [False, True],
}
print(np.prod([len(values) for values in space.values()]), "members")

# %% [markdown]
# This space is small enough to try everything. Spaces of real kernels have thousands of members or more, and a measurement takes time. So
# the question of this lesson is: which member do you try next?
#
# ## Three strategies
#
# - **random** draws members at random. It knows nothing, and is never fooled.
# - **genetic** keeps the fastest members as parents. A new member differs from a parent in one or two parameters, mostly by the next smaller
#   or larger value. Some new members take each parameter from one of two parents.
# - **cost model** learns from all measurements. It guesses the time of members that nobody has measured, and tries the most promising.
#
# `webmlc.tune` takes the schedule function and the space. Every member is compiled, checked to run, and measured beside the default in
# turns, so that a disturbance of the machine meets both. It starts processes which first read this script, hence the `if` on the first
# line.

# %%
STRATEGIES = {"random": "random", "genetic": "evolve", "cost model": "model"}
folder = Path(tempfile.mkdtemp())
results = {}
if __name__ == "__main__":
    for name, strategy in STRATEGIES.items():
        results[name] = webmlc.tune(
            tiled,
            space,
            strategy=strategy,
            engine="wasmtime",
            measurements=24,
            seed=1,
            default={"rows": 2, "columns": 4, "depth": 1, "packs": False},
            database=folder / f"{strategy}.db",
        )

for name, result in results.items():
    print(f"{name}: {result.parameters}, {result.gain:.1f} times as fast as the default")

# %% [markdown]
# A row of `measurements` is a member that was tried. Sorted by their speed, the random draws show what the space is like:


# %%
def speeds(result, best=False):
    """How many times as fast as the default the members are, in the order of their measurement; or
    the best member so far.
    """
    rows = [row for row in result.measurements if row.milliseconds is not None]
    times = [row.best_milliseconds if best else row.milliseconds for row in rows]
    return [result.default_milliseconds / ms for ms in times]


draw_curves(
    {name: sorted(speeds(r)) for name, r in results.items() if name == "random"},
    "members, sorted",
    "times as fast as the default",
)

# %% [markdown]
# Most members are mediocre, few are good. Here is the best member so far after each measurement:

# %%
draw_curves(
    {name: speeds(result, best=True) for name, result in results.items()},
    "measurements",
    "times as fast as the default",
)

# %% [markdown]
# Run the lesson again with another `seed`, and the order may change: on a small space, luck is a good strategy. On a large one, a strategy
# that learns needs fewer measurements. `webmlc.tune` without a strategy begins with a model that was learned from other kernels.
#
# ## What a search leaves
#
# The result holds the fastest schedule, compiled. Its trace is plain data, which can be stored and replayed.

# %%
for name, result in results.items():
    if name == "cost model":
        result.kernel(a, b, c)
        np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3)
        for step in result.schedule.trace:
            print(step["primitive"], *step["arguments"])

# %% [markdown]
# The measurements are in a database. A second search resumes them, and measures only what is new. `webmlc tune model.onnx` does all of
# this for every kernel of a model (`docs/tune.md`).
#
# ## Exercises
#
# ### Exercise 1
#
# A member may be impossible: 48 rows cannot be split into tiles of 7. Search a space with such members, and look at `result.refusals`.
#
# ### Exercise 2
#
# Write the random strategy yourself: draw ten members of the space of the lesson, compile and time each, and return the fastest. Check that its
# kernel computes the product.
#
# ### Exercise 3
#
# Search the loop order of `y[i] = sum(x[i, j])` for 512 × 512 values: a parameter `by_columns` says whether the loop over `j` is outside. Is
# the faster order the one that you expected?
