"""Scripts that are no kernels, by what is wrong with each. `wrong_scripts.txt` has their messages.

A script that begins with `:` is the body of a function of `A`, `M` (8 × 8), `I` (int32) and `B`.
"""

from __future__ import annotations

HEAD = """@T.prim_func
def f(
    A: T.Buffer((8,), "float32"),
    M: T.Buffer((8, 8), "float32"),
    I: T.Buffer((8,), "int32"),
    B: T.Buffer((8,), "float32"),
):
"""

WRONG: dict[str, str] = {
    # names
    "an unknown buffer": ":for i in range(8):\n    B[i] = Q[i]",
    "an unknown variable": ":for i in range(8):\n    B[i] = A[k]",
    "a variable of another nest": ":for i in range(8):\n    B[i] = A[i]\nB[i] = 1.0",
    "an unknown function": ":for i in range(8):\n    B[i] = foo(A[i])",
    "an unknown function of T": ":for i in range(8):\n    B[i] = T.gelu(A[i])",
    "an unknown loop": ":for i in T.forever(8):\n    B[i] = A[i]",
    "an object from outside": ":for i in range(8):\n    B[i] = OBJECT",
    "a buffer without indices": ":for i in range(8):\n    B[i] = A",
    "a loop variable bound twice": (
        ":for i in range(8):\n    for i in range(8):\n        B[i] = 1.0"
    ),
    "a block name bound twice": (
        ":for i in range(8):\n    with T.block('x'):\n        v = T.axis.spatial(8, i)\n"
        "        B[v] = A[v]\nfor j in range(8):\n    with T.block('x'):\n"
        "        w = T.axis.spatial(8, j)\n        B[w] = A[w]"
    ),
    # writes
    "a write to an input": ":for i in range(8):\n    A[i] = 1.0\n    B[i] = 2.0",
    "no output": ":for i in range(8):\n    pass",
    "a write to a symbol": ":n = T.int32()\nn[0] = 1.0",
    "a reduction without init": (
        ":for i, k in T.grid(8, 8):\n    with T.block('B'):\n"
        "        v, r = T.axis.remap('SR', [i, k])\n        B[v] = B[v] + M[v, r]"
    ),
    "a temporary read before it is written": (
        ":Y = T.alloc_buffer((8,), 'float32')\nfor i in range(8):\n    B[i] = Y[i]"
    ),
    # ranks and dtypes
    "too few indices": ":for i in range(8):\n    B[i] = M[i]",
    "too many indices": ":for i in range(8):\n    B[i, 0] = A[i]",
    "a slice": ":for i in range(8):\n    B[i] = M[i, 0:4]",
    "a float stored to integers": (
        '@T.prim_func\ndef f(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "int32")):\n'
        "    for i in range(8):\n        B[i] = A[i]"
    ),
    "a sum of two dtypes": ":for i in range(8):\n    B[i] = A[i] + I[i]",
    "an index that is a float": ":for i in range(8):\n    B[i] = A[A[i]]",
    "a fraction among integers": ":for i in range(8):\n    B[i] = T.cast(I[i] + 0.5, 'float32')",
    "a condition that is a number": ":for i in range(8):\n    if i:\n        B[i] = A[i]",
    "a cast to no dtype": ":for i in range(8):\n    B[i] = T.cast(A[i], 'float12')",
    "a cast of three": ":for i in range(8):\n    B[i] = T.cast(A[i], A[i], 'float32')",
    "an operator of one operand": ":for i in range(8):\n    B[i] = T.max(A[i])",
    "a text among numbers": ":for i in range(8):\n    B[i] = A[i] + 'x'",
    # ranges
    "an index above the last": ":for i in range(8):\n    B[i] = A[i + 1]",
    "an index below the first": ":for i in range(8):\n    B[i] = A[i - 1]",
    "a longer loop": ":for i in range(9):\n    B[i] = 1.0",
    "a condition that does not bound": (":for i in range(16):\n    if i < 12:\n        B[i] = 1.0"),
    "an index beyond its condition": (
        ":for i in range(16):\n    if i < 8:\n        B[T.min(i, 7)] = A[i + 1]"
    ),
    "an index below its condition": ":for i in range(8):\n    if i >= 1:\n        B[i] = A[i - 2]",
    "an index beyond an else": (
        ":for i in range(16):\n    if i >= 9:\n        B[0] = 1.0\n    else:\n        B[i] = 1.0"
    ),
    "an index of a loop that shrinks": (
        ":for i in range(16):\n    for j in range(16 - i):\n        B[0] = A[j]"
    ),
    "a remainder by too much": ":for i in range(16):\n    B[i % 9] = 1.0",
    "an index from data": ":for i in range(8):\n    B[i] = A[I[i]]",
    "an axis below its loop": (
        ":for i in range(16):\n    with T.block('B'):\n        v = T.axis.spatial(8, i)\n"
        "        B[v] = A[v]"
    ),
    "a symbol that is too large": (
        '@T.prim_func\ndef f(A: T.Buffer((n,), "float32"), B: T.Buffer((n,), "float32")):\n'
        "    for i in range(n):\n        B[i] = A[i + 1]"
    ),
    # races
    "a parallel loop into one element": ":for i in T.parallel(8):\n    B[0] = A[i]",
    "a vector into one element": ":for i in T.vectorized(8):\n    B[0] = A[i]",
    "threads into one element": (
        ":for i in T.thread_binding(8, thread='threadIdx.x'):\n    B[0] = A[i]"
    ),
    "a reduction over a parallel loop": (
        ":for i in range(8):\n    for k in T.parallel(8):\n        with T.block('B'):\n"
        "            v, r = T.axis.remap('SR', [i, k])\n            with T.init():\n"
        "                B[v] = 0.0\n            B[v] = B[v] + M[v, r]"
    ),
    "a spatial axis that writes nothing of its own": (
        ":for i, k in T.grid(8, 8):\n    with T.block('B'):\n"
        "        v, r = T.axis.remap('SS', [i, k])\n        B[v] = M[v, r]"
    ),
    # loops
    "a while": ":while True:\n    B[0] = 1.0",
    "a loop of a number from data": ":for i in range(I[0]):\n    B[0] = 1.0",
    "a step of two": ":for i in range(0, 8, 2):\n    B[i] = A[i]",
    "two variables over one extent": ":for i, j in range(8):\n    B[i] = A[i]",
    "a loop over a list": ":for i in [1, 2]:\n    B[i] = A[i]",
    "an else of a loop": ":for i in range(8):\n    B[i] = A[i]\nelse:\n    B[0] = 1.0",
    "no axis of a GPU": ":for i in T.thread_binding(8, thread='warp'):\n    B[i] = A[i]",
    "a break": ":for i in range(8):\n    B[i] = A[i]\n    break",
    # blocks
    "a remap of an expression": (
        ":for i in range(7):\n    with T.block('B'):\n        v = T.axis.remap('S', [i + 1])\n"
        "        B[v] = A[v]"
    ),
    "a remap of an unknown kind": (
        ":for i in range(8):\n    with T.block('B'):\n        v = T.axis.remap('X', [i])\n"
        "        B[v] = A[v]"
    ),
    "a loop variable inside a block": (
        ":for i in range(8):\n    with T.block('B'):\n        v = T.axis.spatial(8, i)\n"
        "        B[v] = A[i]"
    ),
    "a with of something else": ":with open('x'):\n    B[0] = 1.0",
    # statements
    "a return": ":for i in range(8):\n    B[i] = A[i]\nreturn B",
    "a call as a statement": ":print(A)\nB[0] = 1.0",
    "an import": ":import os\nB[0] = 1.0",
    "a nested function": ":def g():\n    pass\nB[0] = 1.0",
    "a matrix product": ":for i in range(8):\n    B[i] = A[i] @ A[i]",
    "a lambda": ":for i in range(8):\n    B[i] = (lambda x: x)(A[i])",
    "a comprehension": ":for i in range(8):\n    B[i] = sum([A[k] for k in range(8)])",
    # the head
    "a parameter without a type": "@T.prim_func\ndef f(A, B):\n    B[0] = A[0]",
    "a parameter of another type": "@T.prim_func\ndef f(A: int):\n    A[0] = 1.0",
    "a default": ('@T.prim_func\ndef f(A: T.Buffer((8,), "float32") = None):\n    A[0] = 1.0'),
    "an unknown dtype": '@T.prim_func\ndef f(A: T.Buffer((8,), "float31")):\n    A[0] = 1.0',
    "an unknown scope": (":Y = T.alloc_buffer((8,), 'float32', scope='magic')\nB[0] = 1.0"),
    "a buffer with strides": (":Y = T.alloc_buffer((8,), 'float32', strides=(2,))\nB[0] = 1.0"),
    "a loop with annotations": ":for i in T.serial(8, annotations={'pragma': 1}):\n    B[i] = 1.0",
    "two functions": "def f():\n    pass\ndef g():\n    pass",
    "no Python": "@T.prim_func\ndef f(:\n    pass",
}
