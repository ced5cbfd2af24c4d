"""Names that a model may give to its values, nodes, functions and dimensions, and that mean
something in a language that the compiler writes or reads.
"""

from __future__ import annotations

import keyword

RESERVED: dict[str, tuple[str, ...]] = {
    "Python and the text of the loop IR": (
        *("T", "range", "T.grid", "int", "float32", "self", "eval", "min", "select", "inf"),
        *keyword.kwlist,
        *keyword.softkwlist,
    ),
    "WebAssembly text": (
        *("func", "local", "param", "memory", "i32.add", "module", "global", "import", "block"),
        *("br_if", "nop", "$x", ";;", "(;", "end"),
    ),
    "WGSL": (
        *("fn", "var", "let", "loop", "array", "vec4", "f32", "i32", "main", "struct", "uniform"),
        *("workgroup", "_", "__x", "ptr", "select", "override", "sampler", "atomic", "u32", "bool"),
    ),
    "JavaScript": (
        *("__proto__", "constructor", "toString", "hasOwnProperty", "prototype", "then", "length"),
        *("valueOf", "function", "new", "this", "undefined", "NaN", "0", "1", "toJSON"),
    ),
    "TypeScript and HTML": ("any", "string", "readonly", "<script>", "</script>", "&amp;", "-->"),
    "JSON, the manifest and safetensors": (
        *("__metadata__", "symbols", "inputs", "outputs", "name", "shape", "dtype", "states"),
        *("steps", "state", "length", "capacity", "position", "null", "true"),
    ),
    "generated names": (
        *("in0", "out0", "in1", "x_0", "x0_0", "x/bound", "x_2", "dim_x", "n_x", "y/0", "n"),
        *("relu", "relu_0", "v_relu_0", "add", "matmul", "acc", "Y", "C", "i", "j", "k", "v0"),
        *("s", "s_0", "n_0", "n_T", "main", "main_2", "body", "then_branch", "webmlc", "arena"),
        *("symbol", "size", "tid", "lane", "row", "column", "t0", "p0", "w", "b", "end_0", "bound"),
    ),
    "text that something else reads": (
        *("[red]", "[/bold]", "\\[x", "%s", "{0}", "{x}", "a b", " ", "\t", "\n", "'", '"', "\\"),
        *("a/b", "../x", "/x", "a.b", "a::b", "x=1", "a,b", "#", "--x", "ä", "日本", "🙂"),
        *("x\u0301", "e\u0301", "\u202e", "\ufeff", "\x00", "\x1b[31m", "\u2028", "Å", "nan"),
        *("None", "-1", "?", "*", "1e9", "CON", "x" * 300, "𝐱", "ﬁ"),
    ),
}  # fmt: skip
"""The names, by the language that they mean something in."""

NAMES: tuple[str, ...] = tuple(dict.fromkeys(n for names in RESERVED.values() for n in names))
