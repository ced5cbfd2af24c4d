# %% [markdown]
# # 1. Tensor programs
#
# A trained model is a list of steps. Each step computes arrays of numbers from other arrays. Somebody has to say how: which element
# first, with which instructions. A **compiler for models** decides that, and this course shows how it decides.
#
# This lesson writes two small steps in four ways: with numpy, as an expression, as a program with loops, and as the WebAssembly text
# that a browser runs.
#
# `webmlc` is the compiler. `T` is its language of programs, `te` has expressions, and `tir` has schedules, which lesson 2 explains.
# `show` is the file `docs/course/show.py`, which draws the pictures. [The course](README.md) says how to run a lesson.

# %%
import time

import numpy as np

import webmlc
from webmlc import T, te, tir
from show import draw_bars, draw_loops, print_code

# %% [markdown]
# ## Add two vectors
#
# With numpy, this is one line. It does not say in which order the elements are added.

# %%
n = 1_000_000
rng = np.random.default_rng(0)
a = rng.standard_normal(n).astype(np.float32)
b = rng.standard_normal(n).astype(np.float32)

expected = a + b
expected[:4]

# %% [markdown]
# numpy hides a loop. Here is the loop, in plain Python. It is right, and slow: Python looks at the type of every element again.


# %%
def add_in_python(a, b, c):
    for i in range(len(a)):
        c[i] = a[i] + b[i]


def seconds(function):
    """The fastest of three runs."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


c = np.empty(n, np.float32)
milliseconds = {
    "Python loop": 1e3 * seconds(lambda: add_in_python(a, b, c)),
    "numpy": 1e3 * seconds(lambda: np.add(a, b, out=c)),
}
for name, ms in milliseconds.items():
    print(f"{name}: {ms:.2f} ms")

# %% [markdown]
# ## The same as a tensor expression
#
# A **tensor expression** says what each element of the result is. `te.placeholder` is an input. `te.compute` takes a shape, and a
# function from the position of an element to its value.

# %%
A = te.placeholder((n,), "float32", name="A")
B = te.placeholder((n,), "float32", name="B")
C = te.compute((n,), lambda i: A[i] + B[i], name="C")

program = te.create_prim_func([A, B, C], "vector_add")
print(program)

# %% [markdown]
# `create_prim_func` made a **tensor program**: a function with loops. Read it from the top:
#
# - `T.Buffer` is an array of the caller. The caller also brings the array for the result (`T.Output`).
# - `for i in range(...)` is the loop that numpy hides.
# - `T.block` is the unit that a compiler moves around. Its axis `v_i` says which element the block computes.
# - `T.axis.remap("S", [i])` makes the axis from the loop `i`. `S` means **spatial**: each value of the axis writes another element. So all
#   of them may run at the same time.

# %%
draw_loops(program)

# %% [markdown]
# ## The same as a script
#
# You can write the program yourself. A program for one step is also called a **kernel**. It looks like Python, but Python never executes
# it. webmlc reads its source. It sees which arrays the kernel writes, so `T.Buffer` is enough for the result, too.
# `T.axis.spatial(n, i)` is the long form of `T.axis.remap("S", [i])`: it also says how many values the axis has.


# %%
@webmlc.kernel
def vector_add(
    A: T.Buffer((n,), "float32"),
    B: T.Buffer((n,), "float32"),
    C: T.Buffer((n,), "float32"),
):
    for i in range(n):
        with T.block("C"):
            vi = T.axis.spatial(n, i)
            C[vi] = A[vi] + B[vi]


draw_loops(vector_add)

# %% [markdown]
# ## The same as WebAssembly
#
# A browser runs **WebAssembly**: a small instruction set that each browser translates to the instructions of the processor.
# `webmlc.compile` writes it as text. A **schedule** is a list of steps that change loops, before they become WebAssembly. A `Schedule`
# without steps asks for the loops as they stand. `print_code` prints the part of `as_written.text` that belongs to the kernel.

# %%
as_written = webmlc.compile(tir.Schedule(vector_add), target="wasm")
print_code(as_written, "vector_add")

# %% [markdown]
# The text is short enough to read:
#
# - A function of WebAssembly has parameters and local variables. The arrays arrive as three addresses in memory.
# - `$A_p`, `$B_p` and `$C_p` are the addresses of the next elements. An element of `float32` has 4 bytes, so each address grows by 4.
# - `f32.load` reads an element, `f32.add` adds two, and `f32.store` writes one.
# - `br_if` jumps back to the start of the loop until the address of `C` reaches its end, which `$i` holds.
#
# Without a schedule, the compiler chooses one by its own rules. Look for `f32x4.add`: one instruction adds four elements. The loop is now
# a function of its own, `$vector_add.0`. Several threads may call it, each for a part of the iterations; `$parallel` hands the parts
# out. Threads share memory, so the addresses of the arrays wait at fixed places there, such as 320.

# %%
by_rules = webmlc.compile(vector_add, target="wasm")
print_code(by_rules, "vector_add")

# %% [markdown]
# A compiled kernel takes arrays, and writes the last one. `time` runs it again and again, on one thread unless you ask for more, and
# returns the median.

# %%
by_rules(a, b, c)
np.testing.assert_array_equal(c, expected)

milliseconds["as written"] = 1e3 * as_written.time(a, b, c).seconds
milliseconds["by the rules"] = 1e3 * by_rules.time(a, b, c).seconds
draw_bars({k: v for k, v in milliseconds.items() if k != "Python loop"}, "milliseconds")

# %% [markdown]
# The Python loop is left out: its bar would not fit the page. The other times are much closer together. For each addition, this step reads
# two numbers and writes one, so memory has more to do than the processor. Such a step is **memory-bound**. Here are the bytes that each
# way moved in a second:

# %%
bytes_moved = 3 * a.nbytes
for name, ms in milliseconds.items():
    print(f"{name}: {bytes_moved / ms / 1e6:.3g} GB/s")

# %% [markdown]
# ## A layer: linear + ReLU
#
# The second step is a layer of a neural network: a product of matrices, and then `max(x, 0)`, which is called **ReLU**. In numpy:

# %%
size = 256
x = rng.standard_normal((size, size)).astype(np.float32)
w = rng.standard_normal((size, size)).astype(np.float32)

expected = np.maximum(x @ w, 0)
expected[:2, :4]

# %% [markdown]
# One element of a product is a sum over `k`. A sum runs along an axis of its own: the **reduce axis**.

# %%
A = te.placeholder((size, size), "float32", name="A")
B = te.placeholder((size, size), "float32", name="B")
k = te.reduce_axis((0, size), name="k")
Y = te.compute((size, size), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="Y")
C = te.compute((size, size), lambda i, j: te.max(Y[i, j], 0.0), name="C")

print(te.create_prim_func([A, B, C], "mm_relu"))

# %% [markdown]
# The script says the same. Three things are new:
#
# - `T.alloc_buffer` is a temporary array. The caller does not see it.
# - `"SSR"` names the kinds of the three axes: spatial, spatial, reduce. Values along a reduce axis are added up, so they cannot simply
#   run at the same time.
# - `T.init` is what an element starts from.
#
# `T.max` and `te.max` are the functions for kernels and expressions. Python's `max` and numpy's `maximum` need numbers, and an expression
# has none yet.


# %%
@webmlc.kernel
def mm_relu(
    A: T.Buffer((size, size), "float32"),
    B: T.Buffer((size, size), "float32"),
    C: T.Buffer((size, size), "float32"),
):
    Y = T.alloc_buffer((size, size), "float32")
    for i, j, k in T.grid(size, size, size):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(size, size):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.max(Y[vi, vj], T.float32(0))


draw_loops(mm_relu)

# %% [markdown]
# Compiled as written, the three loops of the product are three `loop`s of WebAssembly. `(if (i32.eqz (local.get $k))` is `T.init`. `Y` is
# temporary memory, and each thread has its own: `$tid` is the number of the thread.

# %%
as_written = webmlc.compile(tir.Schedule(mm_relu), target="wasm")
print_code(as_written, "mm_relu", lines=48)

# %% [markdown]
# Every addition of `float32` rounds its result, so another order of additions gives slightly other sums. One instruction may also
# multiply and add with one rounding. The comparison with numpy therefore allows a small difference: `rtol` relative to a value, and
# `atol` for values near zero.

# %%
by_rules = webmlc.compile(mm_relu, target="wasm")
result = np.empty_like(expected)
gflops = {}
for name, kernel in {"as written": as_written, "by the rules": by_rules}.items():
    kernel(x, w, result)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    gflops[name] = kernel.time(x, w, result, runs=5).gflops

draw_bars(gflops, "GFLOPS (a billion additions or multiplications a second)")

# %% [markdown]
# Both programs compute the same. Only the order of the work differs, and the speed differs by far. The next lesson takes the steps from
# the first bar to the second by hand.
#
# ## When a program is wrong
#
# Calling a program runs it in an **interpreter**. It is slow, and it checks every index. It says what a program means, and the
# compiler must agree with it.

# %%
small = te.placeholder((4,), "float32", name="small")
double = te.compute((4,), lambda i: small[i] * 2.0, name="double")
four = np.array([1, 2, 3, 4], np.float32)
doubled = np.empty(4, np.float32)
te.create_prim_func([small, double])(four, doubled)
doubled

# %% [markdown]
# A mistake in a script is one message, which underlines the place. `webmlc.from_source` reads a kernel from a text, as `webmlc.kernel`
# reads it from a file. Here a loop runs too far:

# %%
try:
    webmlc.from_source("""
    def shift(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = A[vi + 1]
    """)
except Exception as error:
    print(error)

# %% [markdown]
# ## Exercises
#
# ### Exercise 1
#
# Write `y = 3 * x + 1` for a vector of 1000 elements with `te`. Compile it, and compare with numpy.
#
# ### Exercise 2
#
# Write the sum of each row of a matrix (64, 100) as a script. Which axis is spatial, and which is reduce?
#
# ### Exercise 3
#
# Write a linear layer with a bias as a script: `y = max(x @ w + b, 0)`, where `b` has one value for each column. How many blocks does
# it need? Let `x` have any number of rows: write `n = T.symbol("n")` above the kernel, and `n` in its shapes and loops.
