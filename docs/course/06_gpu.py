# %% [markdown]
# # 6. The GPU
#
# A GPU runs thousands of **threads** at the same time. Each is slow, and all of them together are fast. This lesson gives the loops of a
# product to threads, and then takes three steps that keep the threads from waiting for memory.
#
# A browser reaches the GPU by WebGPU. Its programs, **shaders**, are written in WGSL. Without a GPU, a software driver runs the same
# shaders on the processor. It is right, but its figures say little about a real GPU. The text below says where the two differ.

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


rng = np.random.default_rng(0)
a = rng.standard_normal((512, 512)).astype(np.float32)
b = rng.standard_normal((512, 512)).astype(np.float32)
expected = np.maximum(a @ b, 0)

steps = {}
gflops = {}


def measure(name):
    """Compile the step, compare its result with numpy, and print its time."""
    kernel = webmlc.compile(steps[name](), target="webgpu")
    c = np.empty_like(expected)
    kernel(a, b, c)
    np.testing.assert_allclose(c, expected, rtol=1e-3, atol=1e-3)
    timing = kernel.time(a, b, c, runs=3)
    gflops[name] = timing.gflops
    print(timing)
    return kernel


# %% [markdown]
# ## Step 1: a thread for each element
#
# Threads come in **workgroups**, here of 8 by 8. All workgroups together cover the result. A loop disappears when `bind` gives it to the
# threads: `blockIdx` numbers the workgroups, and `threadIdx` the threads in a workgroup. The names are those of TVM and CUDA.
#
# Each thread computes one element. Its sum is in a register (`set_scope`), and ReLU follows in the same thread.


# %%
def thread_axes(schedule, rows, columns, row, column):
    """Bind the loops over workgroups, and the loops over the threads of a workgroup."""
    schedule.bind(rows, "blockIdx.y")
    schedule.bind(columns, "blockIdx.x")
    schedule.bind(row, "threadIdx.y")
    schedule.bind(column, "threadIdx.x")


def threads():
    """Compute one element in each thread."""
    schedule = tir.Schedule(mm_relu)
    schedule.set_scope("Y", "local")
    i, j, k = schedule.get_loops("Y")
    i_group, i_thread = schedule.split(i, factors=[None, 8])
    j_group, j_thread = schedule.split(j, factors=[None, 8])
    schedule.reorder(i_group, j_group, i_thread, j_thread, k)
    schedule.reverse_compute_at("C", j_thread)
    schedule.decompose_reduction("Y", k)
    thread_axes(schedule, i_group, j_group, i_thread, j_thread)
    return schedule


steps["threads"] = threads
kernel = measure("threads")

# %%
draw_loops(threads())

# %% [markdown]
# In the shader, the four bound loops are gone. Two of the three loops of the product became numbers of the thread.

# %%
print_code(kernel, "mm_relu")

# %% [markdown]
# ## Step 2: workgroup memory
#
# The 64 threads of a workgroup read the same 8 rows of `A` and 8 columns of `B`, each element 8 times. A workgroup has a small fast
# memory that its threads share. They fetch a tile together, each thread a part, and then all of them use it. This is **cooperative
# fetching**.
#
# `cache_read(..., "shared")` makes the copy, and `compute_at` moves it under the loop over the tiles of `k`. The loops of the copy are
# bound to the same threads. webmlc inserts the **barriers**: no thread reads the tile before all have written their parts.


# %%
def fetch_together(schedule, buffer, loop, extent, lanes):
    """Let the threads of a workgroup, `extent` by `extent`, copy what an iteration of a loop reads."""
    copy = schedule.cache_read("Y", buffer, "shared")
    schedule.compute_at(copy, loop)
    elements = schedule.fuse(*schedule.get_loops(copy)[-2:])
    part, row, column, lane = schedule.split(elements, factors=[None, extent, extent, lanes])
    schedule.bind(row, "threadIdx.y")
    schedule.bind(column, "threadIdx.x")
    schedule.vectorize(lane)
    schedule.unroll(part)


def workgroup_memory():
    """Fetch tiles of 8 by 8 elements together."""
    schedule = tir.Schedule(mm_relu)
    schedule.set_scope("Y", "local")
    i, j, k = schedule.get_loops("Y")
    i_group, i_thread = schedule.split(i, factors=[None, 8])
    j_group, j_thread = schedule.split(j, factors=[None, 8])
    k_tile, k_inner = schedule.split(k, factors=[None, 32])
    schedule.reorder(i_group, j_group, i_thread, j_thread, k_tile, k_inner)
    schedule.reverse_compute_at("C", j_thread)
    thread_axes(schedule, i_group, j_group, i_thread, j_thread)
    for buffer in ("A", "B"):
        fetch_together(schedule, buffer, k_tile, extent=8, lanes=4)
    schedule.decompose_reduction("Y", k_tile)
    return schedule


steps["workgroup memory"] = workgroup_memory
kernel = measure("workgroup memory")

# %%
print(workgroup_memory())

# %% [markdown]
# A software driver gets slower by this step: its workgroup memory is ordinary memory, and its barriers are expensive. On a GPU, the step
# saves most of the reads of `A` and `B`.
#
# ## Step 3: a register tile
#
# Each multiply-add still reads two numbers from workgroup memory. As on the CPU, a tile in registers helps: 4 rows and 8 columns for
# each thread need 12 numbers for 32 multiply-adds.


# %%
def unroll_tile(schedule, block):
    """Write the loops of a thread's tile out: vectors of four columns, row by row."""
    *_, row, vector, lane = schedule.get_loops(block)
    schedule.vectorize(lane)
    schedule.unroll(vector)
    schedule.unroll(row)


def split_columns(schedule, block):
    """Split the innermost loop of a block over a tile into vectors of four columns."""
    columns = schedule.get_loops(block)[-1]
    schedule.split(columns, factors=[None, 4])


def register_tile():
    """Compute 4 by 8 elements in each thread, from tiles in workgroup memory."""
    schedule = tir.Schedule(mm_relu)
    schedule.set_scope("Y", "local")
    i, j, k = schedule.get_loops("Y")
    i_group, i_thread, i_inner = schedule.split(i, factors=[None, 8, 4])
    j_group, j_thread, j_vector, j_lane = schedule.split(j, factors=[None, 8, 2, 4])
    k_tile, k_inner = schedule.split(k, factors=[None, 16])
    schedule.reorder(
        i_group, j_group, i_thread, j_thread, k_tile, k_inner, i_inner, j_vector, j_lane
    )
    schedule.reverse_compute_at("C", j_thread)
    split_columns(schedule, "C")
    thread_axes(schedule, i_group, j_group, i_thread, j_thread)
    for buffer in ("A", "B"):
        fetch_together(schedule, buffer, k_tile, extent=8, lanes=4)
    schedule.decompose_reduction("Y", k_tile)
    schedule.unroll(k_inner)
    for block in ("Y_init", "Y", "C"):
        unroll_tile(schedule, block)
    return schedule


steps["register tile"] = register_tile
kernel = measure("register tile")

# %% [markdown]
# ## Step 4: a larger tile, without workgroup memory
#
# With 8 by 8 elements, a thread needs 16 numbers for 64 multiply-adds. Now even the caches can deliver them, so the tile can do without
# workgroup memory and its barriers. Which of the two is faster depends on the GPU: measure.


# %%
def larger_tile():
    """Compute 8 by 8 elements in each thread, and read A and B through the caches."""
    schedule = tir.Schedule(mm_relu)
    schedule.set_scope("Y", "local")
    i, j, k = schedule.get_loops("Y")
    i_group, i_thread, i_inner = schedule.split(i, factors=[None, 8, 8])
    j_group, j_thread, j_vector, j_lane = schedule.split(j, factors=[None, 8, 2, 4])
    k_outer, k_inner = schedule.split(k, factors=[None, 4])
    schedule.reorder(
        i_group, j_group, i_thread, j_thread, k_outer, k_inner, i_inner, j_vector, j_lane
    )
    schedule.reverse_compute_at("C", j_thread)
    split_columns(schedule, "C")
    thread_axes(schedule, i_group, j_group, i_thread, j_thread)
    schedule.decompose_reduction("Y", k_outer)
    schedule.unroll(k_inner)
    for block in ("Y_init", "Y", "C"):
        unroll_tile(schedule, block)
    return schedule


steps["larger tile"] = larger_tile
kernel = measure("larger tile")

# %% [markdown]
# ## Step 5: threads in squares
#
# Four threads with consecutive numbers are a **quad**. If their tiles form a square, two of them need the same rows of `A`, and two the
# same columns of `B`. So a tile of 16 by 16 elements can take half of its numbers from the neighbour's registers: webmlc emits such an
# exchange where the adapter offers it. `fuse` makes one number of thread from four loops, and the order of the loops says who is whose
# neighbour.


# %%
def squares():
    """Compute 16 by 16 elements in each thread; four neighbours compute a square."""
    schedule = tir.Schedule(mm_relu)
    schedule.set_scope("Y", "local")
    i, j, k = schedule.get_loops("Y")
    i_group, i_square, i_thread, i_inner = schedule.split(i, factors=[None, 8, 2, 16])
    j_group, j_square, j_thread, j_vector, j_lane = schedule.split(j, factors=[None, 2, 2, 4, 4])
    k_outer, k_inner = schedule.split(k, factors=[None, 4])
    threads = (i_square, j_square, i_thread, j_thread)
    schedule.reorder(i_group, j_group, *threads, k_outer, k_inner, i_inner, j_vector, j_lane)
    schedule.reverse_compute_at("C", j_thread)
    split_columns(schedule, "C")
    schedule.bind(i_group, "blockIdx.y")
    schedule.bind(j_group, "blockIdx.x")
    schedule.bind(schedule.fuse(*threads), "threadIdx.x")
    schedule.decompose_reduction("Y", k_outer)
    schedule.unroll(k_inner)
    for block in ("Y_init", "Y", "C"):
        unroll_tile(schedule, block)
    return schedule


steps["squares"] = squares
kernel = measure("squares")

# %% [markdown]
# ## All steps
#
# The last bar is the schedule that webmlc's own rules choose for this adapter. The dashed line is the limit: multiply-adds on registers
# alone, measured by a shader.

# %%
by_rules = webmlc.compile(mm_relu, target="webgpu")
c = np.empty_like(expected)
by_rules(a, b, c)
gflops["by the rules"] = by_rules.time(a, b, c, runs=3).gflops
limit = by_rules.time(a, b, c, runs=1).limit
draw_bars(gflops, "GFLOPS", limit=limit)

# %% [markdown]
# The page `demos/kernels/` measures the steps in your browser, on your GPU (`make demos ARGS=kernels`).
#
# ## Exercises
#
# ### Exercise 1
#
# Write a program that adds two vectors of 4096 elements, and bind it to workgroups of 64 threads. Compare with numpy.
#
# ### Exercise 2
#
# In the first step, swap which loop is bound to `threadIdx.x` and which to `threadIdx.y`. The result is the same. On a GPU it is much
# slower: neighbours then read elements of `B` in the same column. Check the result, and find the change in the shader.
#
# ### Exercise 3
#
# Write a product of 64 by 64 matrices whose workgroups of 8 by 8 threads fetch tiles of 8 by 8 elements. How many bytes of workgroup
# memory does a workgroup use? Compute it from the tiles, and find it in the shader: each `var<workgroup>` is an array.
