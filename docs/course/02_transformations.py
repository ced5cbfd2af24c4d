# %% [markdown]
# # 2. Transformations
#
# A program says what to compute. A **schedule** says in which order, and where the numbers wait meanwhile. This lesson takes one
# program, and makes it about a hundred times as fast in eight steps. The result stays the same after each step.
#
# The program is the layer of lesson 1, a product and ReLU, with 512 rows, 512 columns and 512 multiplications for each element.

# %%
import numpy as np

import webmlc
from webmlc import T, tir
from show import draw_bars, draw_loops, print_code


# %%
@webmlc.kernel
def mm_relu(
    A: T.Buffer((512, 512), "float32"),
    B: T.Buffer((512, 512), "float32"),
    C: T.Buffer((512, 512), "float32"),
):
    Y = T.alloc_buffer((512, 512), "float32")
    for i, j, k in T.grid(512, 512, 512):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(512, 512):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.max(Y[vi, vj], T.float32(0))


# %% [markdown]
# ## How fast can it be?
#
# A processor has a limit: the multiplications and additions that it starts in a second. webmlc measures this limit with a kernel that
# touches no memory at all. `kernel.time` compares with it: `share` is 1 at the limit. **GFLOPS** are a billion additions or
# multiplications a second.
#
# The dictionary `steps` collects the steps of this lesson, and `measure` runs the newest. On a machine that also does other work, a step
# may look slower than the step before it: run it again.

# %%
rng = np.random.default_rng(0)
a = rng.standard_normal((512, 512)).astype(np.float32)
b = rng.standard_normal((512, 512)).astype(np.float32)
expected = np.maximum(a @ b, 0)

steps = {}
gflops = {}


def measure(name, threads=1):
    """Compile the step, compare its result with numpy, and print its time."""
    kernel = webmlc.compile(steps[name](), target="wasm")
    c = np.empty_like(expected)
    kernel(a, b, c)
    np.testing.assert_allclose(c, expected, rtol=1e-3, atol=1e-3)
    timing = kernel.time(a, b, c, runs=3, threads=threads)
    gflops[name] = timing.gflops
    print(timing)
    return kernel


# %% [markdown]
# ## Step 1: as written
#
# The schedule has no step yet. For each element of the result, the program walks along a row of `A` and down a column of `B`.
#
# Memory arrives in **cache lines** of 64 bytes, which are 16 numbers. A walk along a row uses all 16. A walk down a column uses one of
# them, and then needs the next line. The processor mostly waits.


# %%
def as_written():
    """Run the loops in the order in which the program has them."""
    return tir.Schedule(mm_relu)


steps["as written"] = as_written
kernel = measure("as written")

# %%
draw_loops(as_written())

# %% [markdown]
# ## Step 2: the order of the loops
#
# `reorder` changes which loop runs inside which. With `j` inside, the program walks along rows of `B` and of `Y`, so it uses each cache
# line fully. The sums of a row then grow side by side, so `decompose_reduction` first sets all of them to zero in loops of their own. It
# moves `T.init` into a new block, `Y_init`.
#
# Such a function, which makes one step of a schedule, is a **primitive**. Blocks and loops are names. `get_loops` returns the names of the
# loops around a block, outermost first.


# %%
def loop_order():
    """Walk along rows: j runs inside k."""
    schedule = as_written()
    i, j, k = schedule.get_loops("Y")
    schedule.decompose_reduction("Y", i)
    schedule.reorder(i, k, j)
    return schedule


steps["loop order"] = loop_order
kernel = measure("loop order")

# %%
print(loop_order())

# %% [markdown]
# ## Step 3: tiles
#
# `B` has 1 MB. The loop over `i` reads all of it for each row, and the fastest cache holds about 32 KB. A **tile** of `B` with 32 rows
# and 64 columns takes 8 KB. `split` cuts a loop into two, and `reorder` finishes all rows of `A` with one tile before the next tile. The
# `factors` are the iterations of the new loops, outermost first; webmlc computes the factor `None`.
#
# This step alone may change little. So far the processor spends its time on instructions for single numbers, not on waiting. Tiles pay
# as soon as the arithmetic is faster.


# %%
def tiled():
    """Use a tile of B for all rows of A before the next tile."""
    schedule = as_written()
    i, j, k = schedule.get_loops("Y")
    schedule.decompose_reduction("Y", i)
    j_tile, j_inner = schedule.split(j, factors=[None, 64])
    k_tile, k_inner = schedule.split(k, factors=[None, 32])
    schedule.reorder(j_tile, k_tile, i, k_inner, j_inner)
    return schedule


steps["tiled"] = tiled
kernel = measure("tiled")

# %% [markdown]
# ## Step 4: vectors
#
# A **vector** holds four numbers, and one instruction works on all four. `vectorize` turns a loop of four iterations into such
# instructions. The elements must lie beside each other in memory, which they do along `j`.


# %%
def vectorised():
    """Compute four columns with one instruction."""
    schedule = tiled()
    for block in ("Y_init", "Y", "C"):
        innermost = schedule.get_loops(block)[-1]
        _, lane = schedule.split(innermost, factors=[None, 4])
        schedule.vectorize(lane)
    return schedule


steps["vectorised"] = vectorised
kernel = measure("vectorised")

# %% [markdown]
# ## Step 5: a register tile
#
# Each multiplication so far loads a sum from memory, and stores it again. **Registers** are the places inside the processor where
# numbers cost nothing to reach; common processors have 16 or 32 for vectors. A tile of 2 rows and 16 columns takes 8 of them. It stays in
# registers while `k` runs over all 512 multiplications, and is written once.
#
# Four primitives do this:
#
# - `cache_write("Y", "local")` lets block `Y` write into a new array, `Y_local`, in the **scope** `"local"`: registers, or memory of one
#   thread if an array is too large for them. A new block, whose name it returns, copies `Y_local` to `Y`.
# - `reverse_compute_at` moves that copy into the loop over tiles, to where a tile is ready.
# - `decompose_reduction` sets the sums of a tile to zero before the loop over `k`.
# - `unroll` writes the iterations of a short loop one after the other, because a register has no address that a loop could count.
#
# ReLU stays in its own loops for now.

# %%
ROWS, COLUMNS = 2, 16


def unroll_tile(schedule, block):
    """Write the loops of a tile out: vectors of four columns, row by row."""
    *_, row, vector, lane = schedule.get_loops(block)
    schedule.vectorize(lane)
    schedule.unroll(vector)
    schedule.unroll(row)


def tile_loops(schedule):
    """Split the loops of the product into tiles; returns the loops over tiles, and the sum's loop."""
    i, j, k = schedule.get_loops("Y")
    i_tile, i_inner = schedule.split(i, factors=[None, ROWS])
    j_tile, j_vector, j_lane = schedule.split(j, factors=[None, COLUMNS // 4, 4])
    schedule.reorder(j_tile, i_tile, k, i_inner, j_vector, j_lane)
    return j_tile, i_tile, k


def split_columns(schedule, block):
    """Split the innermost loop of a block that copies columns of a tile into vectors."""
    columns = schedule.get_loops(block)[-1]
    schedule.split(columns, factors=[None, 4])


def register_tile():
    """Keep the sums of 2 rows and 16 columns in registers."""
    schedule = as_written()
    written = schedule.cache_write("Y", "local")
    _, i_tile, k = tile_loops(schedule)
    schedule.reverse_compute_at(written, i_tile)
    split_columns(schedule, written)
    schedule.decompose_reduction("Y", k)
    for block in ("Y_init", "Y", written):
        unroll_tile(schedule, block)
    return schedule


steps["register tile"] = register_tile
kernel = measure("register tile")

# %%
draw_loops(register_tile())

# %% [markdown]
# ## Step 6: a packed panel
#
# The tile reads 16 columns of `B`: 64 bytes of each row, and then a jump of 2 KB to the next row. Processors do not like such jumps:
# the lines end up in the same few places of the cache, and push each other out. `cache_read` copies the 16 columns into a **panel**
# without gaps, and `compute_at` moves the copy into the loop over columns: once for all rows of `A`. Copying is cheap, because each
# panel is used 256 times.


# %%
def pack_panel(schedule, j_tile):
    """Copy the columns of B that a tile reads into a panel without gaps."""
    panel = schedule.cache_read("Y", "B", "local")
    schedule.compute_at(panel, j_tile)
    split_columns(schedule, panel)
    *_, vector, lane = schedule.get_loops(panel)
    schedule.vectorize(lane)
    schedule.unroll(vector)


def packed_panel():
    """Copy 16 columns of B beside each other before all rows of A use them."""
    schedule = as_written()
    written = schedule.cache_write("Y", "local")
    j_tile, i_tile, k = tile_loops(schedule)
    pack_panel(schedule, j_tile)
    schedule.reverse_compute_at(written, i_tile)
    split_columns(schedule, written)
    schedule.decompose_reduction("Y", k)
    for block in ("Y_init", "Y", written):
        unroll_tile(schedule, block)
    return schedule


steps["packed panel"] = packed_panel
kernel = measure("packed panel")

# %% [markdown]
# ## Step 7: ReLU fused
#
# The product still writes `Y` to memory, and ReLU reads it again: 2 MB that nobody asked for. `set_scope` keeps `Y` in registers, and
# `reverse_compute_at` moves block `C`, which is ReLU, to where a tile is ready. Two steps of the model share their loops now, which is
# called **fusion**. The temporary array is gone.


# %%
def fused():
    """Apply ReLU to a tile while it is in registers."""
    schedule = as_written()
    schedule.set_scope("Y", "local")
    j_tile, i_tile, k = tile_loops(schedule)
    pack_panel(schedule, j_tile)
    schedule.reverse_compute_at("C", i_tile)
    split_columns(schedule, "C")
    schedule.decompose_reduction("Y", k)
    for block in ("Y_init", "Y", "C"):
        unroll_tile(schedule, block)
    return schedule


steps["fused"] = fused
kernel = measure("fused")

# %%
print(fused())

# %% [markdown]
# The inner loop of the code is worth reading. Each iteration loads four vectors of the panel and two numbers of `A`, and then has eight
# `f32x4.relaxed_madd`: a multiplication and an addition of four numbers in one instruction. There is nothing else to remove.

# %%
print_code(kernel, "mm_relu", lines=90)

# %% [markdown]
# ## Step 8: threads
#
# The panels do not depend on each other, so each thread may take some of them. `parallel` says so; the primitive refuses a loop whose
# iterations would write the same elements. The limit is now the limit of two threads.


# %%
def threads():
    """Share the panels among threads."""
    schedule = fused()
    j_tile = schedule.get_loops("C")[0]
    schedule.parallel(j_tile)
    return schedule


steps["threads"] = threads
kernel = measure("threads", threads=2)

# %% [markdown]
# ## All steps
#
# The dashed line is the limit of one thread. The engine here is wasmtime, because this lesson runs in Python. A browser translates the
# same WebAssembly into other machine code, and its steps reach other shares. The page `demos/kernels/` measures all of them in your
# browser (`make demos ARGS=kernels`).

# %%
limit = kernel.time(a, b, np.empty_like(expected), runs=1).limit
draw_bars(gflops, "GFLOPS", limit=limit)

# %% [markdown]
# ## When a step would be wrong
#
# A primitive refuses a step that would change the result. Here, ReLU would run before the sum is complete:

# %%
schedule = as_written()
i, j, k = schedule.get_loops("Y")
try:
    schedule.reverse_compute_at("C", k)
except tir.ScheduleError as error:
    print(error)

# %% [markdown]
# The first line is the reason. Carets underline the block and the loop that it names.
#
# ## A schedule is data
#
# A schedule records its steps in `trace`, a list that grows with each step. `tir.replay` applies a trace to a program, and returns the
# new program. Lesson 4 shows the trace of the fastest schedule that a search finds.

# %%
trace = loop_order().trace
for step in trace:
    print(step["primitive"], step["arguments"])

assert str(tir.replay(mm_relu, trace)) == str(loop_order())

# %% [markdown]
# `schedule.program` is the program after all steps. It runs in the interpreter when you call it, as in lesson 1.
#
# ## Exercises
#
# ### Exercise 1
#
# Schedule the program of lesson 1 that adds two vectors, now of 1000 elements: four elements in one instruction. Check that the code,
# `kernel.text`, contains `f32x4.add`.
#
# ### Exercise 2
#
# Change the register tile to 4 rows and 8 columns. It also takes 8 registers. How many vectors and numbers does its inner loop load for
# eight multiply-adds? To compare both tiles in a browser, change `ROWS, COLUMNS` in this lesson's script, and run
# `make demos ARGS=kernels` once for each tile.
#
# ### Exercise 3
#
# Write `mm_relu` again, with 96 in the place of 512. Write a schedule of it whose trace has no `vectorize`, and then one with it. Replay
# the second trace on the program, and check with the interpreter that both compute the same.
