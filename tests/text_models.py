"""Small models of texts, with inputs, and what onnxruntime computes for them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
from numpy.typing import NDArray

Array = NDArray[Any]
HEAD = '<ir_version: 9, opset_import: ["":21, "ai.onnx.ml":3, "com.microsoft":1]>\n'
SHORT = {
    "NORMALISE<": 'StringNormalizer<locale="C.UTF-8",',  # a locale that every machine has
    "TOKENISE<": 'com.microsoft.Tokenizer<pad_value="#",',
    "ENCODE<": "ai.onnx.ml.LabelEncoder<",
    "GRAMS<": 'TfIdfVectorizer<pool_strings=["good","dog","good","dog","dog","good"],'
    "max_gram_length=2,ngram_counts=[0,2],ngram_indexes=[0,1,3,2],",
}
"""What short names in the graphs stand for."""


def texts(*items: Any) -> Array:
    """An array of texts."""
    return np.array(items, object)


TEXT_MODELS: dict[str, tuple[str, dict[str, Array]]] = {
    "pipeline": (
        """g (string[n,1] x, float[n,1] z) => (string[n] label, float[n,2] scores) {
          s = Constant<value_ints=[-1]>()
          flat = Reshape(x, s)
          low = NORMALISE<case_change_action="LOWER">(flat)
          tokens = TOKENISE<mark=0,mincharnum=1,tokenexp="[a-z]+">(low)
          counts = GRAMS<mode="TF",min_gram_length=1,max_skip_count=0>(tokens)
          all = Concat<axis=1>(counts, z)
          label, scores = ai.onnx.ml.LinearClassifier<classlabels_strings=["pet","none"],
            coefficients=[1.0,1.0,1.0,1.0,0.5,-1.0,-1.0,0.0,0.0,0.5],intercepts=[-1.0,0.5]>(all)
        }""",
        {"x": texts(["Good dog, good DOG"], ["bad cat"], [""]), "z": np.ones((3, 1), np.float32)},
    ),
    "lookups": (
        """g (string[n] x) => (int64[n] a, string[n] b, string[n] c, int64[n] d, float[n,2] e) {
          a = ENCODE<keys_strings=["a","b"],values_int64s=[7,9],default_int64=-3>(x)
          b = ENCODE<keys_int64s=[7,9],values_strings=["A","B"],default_string="?">(a)
          c = ENCODE<keys_strings=["a","c"],values_strings=["c","d"]>(x)
          d = ai.onnx.ml.CategoryMapper<cats_strings=["b","a"],cats_int64s=[5,6]>(x)
          e = ai.onnx.ml.OneHotEncoder<cats_strings=["b","a"]>(x)
        }""",
        {"x": texts("b", "zz", "a", "")},
    ),
    "moves": (
        """g (string[n,2] x, string[n,2] y, bool[n,1] c) =>
            (string[n,2] a, string[2,n] b, string[n,4] d, bool[n,2] e, string[n,2] f) {
          a = Where(c, x, y)
          b = Transpose(x)
          d = Concat<axis=1>(x, y)
          e = Equal(x, y)
          f = Identity(x)
        }""",
        {
            "x": texts(["q", "w"], ["é", "😀"]),
            "y": texts(["q", "r"], ["t", "😀"]),
            "c": np.array([[True], [False]]),
        },
    ),
    "tokens": (
        """g (string[n] x) =>
            (string[n,a] chars, string[n,b] parts, string[n,c] words, string[n,d] any) {
          chars = TOKENISE<mark=1,mincharnum=1,separators=[""]>(x)
          parts = TOKENISE<mark=0,mincharnum=2,separators=["[ ,]+","-"]>(x)
          words = TOKENISE<mark=0,mincharnum=2,tokenexp="\\\\w+">(x)
          any = TOKENISE<mark=1,mincharnum=1,tokenexp="(?i)[a-c]+|[^a-z\\\\s]">(x)
        }""",
        {"x": texts("a bb,ccc-d é", "", "xy zz--y, AB9 😀")},
    ),
    "stop words": (
        """g (string[n] x) => (string[a] folded, string[b] exact, string[c] none) {
          folded = NORMALISE<case_change_action="UPPER",stopwords=["The","a"]>(x)
          exact = NORMALISE<case_change_action="LOWER",is_case_sensitive=1,stopwords=["The"]>(x)
          none = NORMALISE<stopwords=["the","a","cat","é"]>(x)
        }""",
        {"x": texts("the", "The", "A", "É", "cat")},
    ),
    "parts": (
        """g (string[n] x) => (string[n,a] y, int64[n] c, string[n,b] z, int64[n] d, string[n] w) {
          y, c = StringSplit<delimiter=",">(x)
          z, d = StringSplit<maxsplit=1>(x)
          end = Constant<value_strings=["!"]>()
          w = StringConcat(x, end)
        }""",
        {"x": texts("a,b,,c", "", "x y z", " q ")},
    ),
    "patterns": (
        """g (string[n] x) => (bool[n] a, bool[n] b, bool[n] c, bool[n] d) {
          a = RegexFullMatch<pattern="(?P<user>[\\\\w.-]+)@\\\\w+\\\\.com">(x)
          b = RegexFullMatch<pattern="(?i)[[:alpha:]]+\\\\d*$">(x)
          c = RegexFullMatch<pattern="(?s).{2}">(x)
          d = RegexFullMatch<pattern="[^]\\\\s]*|é\\\\'?">(x)
        }""",
        {"x": texts("a.b@c.com", "é@c.com", "aBc12", "é", "\n😀", "a]", "", "é'", "a b")},
    ),
    "numbers": (
        """g (string[n] x, float[m] y, int32[k] z) => (float[n] a, int64[n] b, string[m] c,
            string[m] d, string[k] e, string[k] f) {
          a = Cast<to=1>(x)
          b = Cast<to=7>(x)
          c = Cast<to=8>(y)
          whole = Floor(y)
          d = Cast<to=8>(whole)
          e = Cast<to=8>(z)
          e64 = Cast<to=11>(z)
          half = Constant<value=double {-0.000244140625}>()
          product = Mul(e64, half)
          f = Cast<to=8>(product)
        }""",
        {
            "x": texts("15", "-3", "+4", "0"),
            "y": np.array(
                [1, 1.5, 1e-7, 10 / 3, 1e20, 123456.789, 99999999, 0.1, -2e-5, 0.0, -0.0, 1e-4, 1e8]
            ).astype("f4"),
            "z": np.array([123456789, -(2**31), 0, 7, 1, 3], "i4"),
        },
    ),
    "n-grams": (
        """g (string[n,m] x) => (float[n,4] a, float[n,4] b) {
          a = GRAMS<mode="TFIDF",min_gram_length=1,max_skip_count=1,weights=[0.5,2.,3.,0.25]>(x)
          b = GRAMS<mode="IDF",min_gram_length=2,max_skip_count=1,weights=[0.5,2.,3.,0.25]>(x)
        }""",
        {"x": texts(["good", "dog", "good", "dog"], ["dog", "x", "good", "y"])},
    ),
    "results": (
        """g (float[n,3] x, string[1] name) => (string[n] y, string[n] z) {
          best = ArgMax<axis=1,keepdims=0>(x)
          y = ENCODE<keys_int64s=[0,1,2],values_strings=["a","b","c"]>(best)
          z = StringConcat(name, y)
        }""",
        {"x": np.eye(3, dtype=np.float32)[[2, 0]], "name": texts("class ")},
    ),
    "branch": (
        """g (string[n] x, bool c) => (string[n] y) {
          y = If(c) <
            then_branch = t () => (string[n] a) { a = Identity(x) },
            else_branch = e () => (string[n] b) {
              k = Constant<value_strings=["none"]>()
              s = Shape(x)
              b = Expand(k, s)
            }>
        }""",
        {"x": texts("a", "b", "z"), "c": np.array(False)},
    ),
    "no rows": (
        """g (string[n,1,m] x) => (string[n,m] y, string[n,k] z, int64[n] c, int64[n,1,m] d) {
          axis = Constant<value_ints=[1]>()
          flat = Squeeze(x, axis)
          end = Constant<value_strings=["!"]>()
          y = StringConcat(flat, end)
          first = Constant<value_int=0>()
          column = Gather<axis=1>(flat, first)
          z, c = StringSplit(column)
          d = ENCODE<keys_strings=["a"],values_int64s=[4]>(x)
        }""",
        {"x": np.empty((0, 1, 3), object)},
    ),
    "rows that a run counts": (
        """g (string[n] x, int64 t, seq(string[n]) q) => (string[n] y, string[k,n] s, string[m] z) {
          c = Constant<value=bool {1}>()
          y, s = Loop(t, c, x) <body = b (int64 i, bool c, string[n] a) =>
              (bool d, string[n] o, string[n] p) {
            d = Identity(c)
            word = Constant<value_strings=["zz"]>()
            size = Shape(a)
            words = Expand(word, size)
            last = Constant<value_int=1>()
            is_last = Equal(i, last)
            o = Where(is_last, words, a)
            p = Identity(a)
          }>
          first = Constant<value_int=0>()
          element = SequenceAt(q, first)
          is_a = Equal(x, element)
          z = Compress<axis=0>(x, is_a)
        }""",
        {"x": texts("a", "b"), "t": np.array(3), "q": texts(["a", "c"], ["d", "e"])},
    ),
    "columns": (
        """g (string[1,3] x) => (float[1,2] y, string[1,1] z, string[1,2] w) {
          i = Constant<value_ints=[2]>()
          a = Gather<axis=1>(x, i)
          b, c = Split<axis=1,num_outputs=2>(x)
          low = NORMALISE<case_change_action="LOWER">(a)
          s = Constant<value_ints=[-1,2]>()
          hot = ai.onnx.ml.OneHotEncoder<cats_strings=["b","a"]>(low)
          y = Reshape(hot, s)
          z = NORMALISE<case_change_action="UPPER">(c)
          first = Constant<value_ints=[-1]>()
          last = Constant<value_ints=[-3]>()
          axis = Constant<value_ints=[1]>()
          part = Slice(x, first, last, axis, first)
          w = NORMALISE<case_change_action="UPPER">(part)
        }""",
        {"x": texts(["Q", "b", "A"])},
    ),
}
"""By name, a graph in ONNX's text format, and its inputs."""
PATTERNS = [
    r"\x{41}\x62", r"a{b}|a{,2}|}|{", r"[[:^alpha:]]+", r"[\S]", r"[^\W]", r"\a|\101|\07",
    r"(?i)k|É|\x{e9}b", r"[[:word:]-z]", r"[a&&b~~c]", r"[[]|[[^]", r"[^[:punct:]\s]", r"\Bb|b\b",
    r"a\b.*", r"[\x{41}-\x{43}\-]", "#-, ?", r"[{2}(?:]+", r"[:alpha:]",
]  # fmt: skip
"""Patterns that Python or JavaScript would read otherwise than RE2 does."""
_CALLS = "".join(
    f"\n y{i} = RegexFullMatch<pattern={json.dumps(p, ensure_ascii=False)}>(x)"
    for i, p in enumerate(PATTERNS)
)
_OUTPUTS = ", ".join(f"bool[n] y{i}" for i in range(len(PATTERNS)))
TEXT_MODELS["escapes"] = (
    f"g (string[n] x) => ({_OUTPUTS}) {{{_CALLS} }}",
    {"x": texts("Ab", "a{b}", "a{,2}", "aa", "a", "}", "{", "12", "[:^", "\xa0", " ", "\v", "é",
                "\a", "A", "k", "K", "\u212a", "É", "Éb", "éB", "z", "-", "&", "~", "[", "^", "b",
                "a b", "ab", "aé", "#-, ", "#-,", "{2(", ":", "p", "_", "")},
)  # fmt: skip


def model_of(graph: str) -> onnx.ModelProto:
    """The model of a graph in ONNX's text format, in which names of `SHORT` stand for more."""
    for name, text in SHORT.items():
        graph = graph.replace(name, text)
    return onnx.parser.parse_model(HEAD + graph)


def expected(model: onnx.ModelProto, inputs: dict[str, Array]) -> dict[str, Array]:
    """The outputs that onnxruntime computes."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    sequences = {i.name for i in session.get_inputs() if i.type.startswith("seq")}
    feeds = {name: list(x) if name in sequences else x for name, x in inputs.items()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))
