"""The manifest round-trips, and what is wrong with one is named."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.node import answer_once
from tests.packages import mixed
from webmlc.core.errors import InternalError, PackageError
from webmlc.core.expr import Expr, Var, call, const, maximum, minimum
from webmlc.core.rewrite import evaluate
from webmlc.package.manifest import Buffer, Run
from webmlc.package.manifest_json import from_json, to_json
from webmlc.package.manifest_schema import ROOT, generated_files
from webmlc.package.sizes import from_size, name_sizes, to_size, with_names, without_names
from webmlc.package.write import with_named_sizes

N = Var("n")


def test_a_manifest_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    manifest = mixed(tmp_path)
    text = (tmp_path / "manifest.json").read_text()
    assert from_json(text) == manifest
    assert to_json(from_json(text)) == text


def test_sizes_that_buffers_share_are_said_once(tmp_path: Path) -> None:
    program = mixed(tmp_path).programs["wasm"]
    half = ["floordiv", ["add", "n", 1], 2]
    buffers = [
        structs.replace(b, shape=(half, 4) if b.kind == "scratch" else b.shape)
        for b in program.buffers
    ]
    shared = with_named_sizes(structs.replace(program, buffers=tuple(buffers)))
    assert shared.sizes == {"#0": half}
    assert [b.shape for b in shared.buffers] == [("n", 4), (4,), ("#0", 4), ("#0", 4)]
    assert shared.shape(shared.buffers[2]) == (half, 4)
    assert shared.values({"n": 9}) == {"n": 9, "#0": 5}
    assert shared.symbols_of(shared.buffers[2]) == {"n"}
    assert shared.values({}) == {}


def test_parts_that_sizes_share_are_said_once() -> None:
    blocks = ["floordiv", ["add", "n", 63], 64]
    sizes = name_sizes([["floormod", blocks, 7], ["add", blocks, 1], "n"])
    assert sizes == {"#0": blocks}
    names = {str(size): name for name, size in sizes.items()}
    assert with_names(["floormod", blocks, 7], names) == ["floormod", "#0", 7]
    assert without_names(["floormod", "#0", 7], sizes) == ["floormod", blocks, 7]


def test_equal_layers_are_said_once(tmp_path: Path) -> None:
    """Each layer reads the result of the one before, and a weight."""
    manifest = mixed(tmp_path)
    program = manifest.programs["wasm"]
    layers = [(f"y{i}", f"w{i}", f"y{i + 1}") for i in range(5)]
    names = dict.fromkeys(name for layer in layers for name in layer)
    buffers = tuple(Buffer(name, (2, 4)) for name in names)
    steps = tuple(structs.replace(program.steps[0], arguments=layer) for layer in layers)
    run = Run("wasm", 0, 5)
    chain = structs.replace(program, buffers=buffers, steps=steps, segments=(run,), memory={})
    alone = structs.replace(manifest, programs={"wasm": chain}, inputs=(), outputs=(), symbols=())
    text = to_json(alone)
    (layer,) = json.loads(text)["programs"]["wasm"]["steps"]
    arguments = ["{#0,-1,-1,-1,-1}", 0, 0]
    step = {"device": "wasm", "kernel": "scale", "arguments": arguments, "origin": ["/scale"]}
    assert layer == {"count": 5, "items": [step]}
    assert from_json(text) == alone


@pytest.mark.parametrize(
    "size",
    [
        const(7),
        N,
        N * 2 + 1,
        (N + 7) // 8,
        N % 4 - 1,
        minimum(N, const(3)),
        maximum(N, const(3)),
    ],
    ids=str,
)
def test_sizes_keep_their_value(size: Expr) -> None:
    again = from_size(json.loads(json.dumps(to_size(size))))
    assert [evaluate(again, {"n": n}) for n in range(20)] == [
        evaluate(size, {"n": n}) for n in range(20)
    ]


def test_a_size_that_json_cannot_say_is_our_error() -> None:
    with pytest.raises(InternalError, match="a size may use add, sub"):
        to_size(call("shift_left", N, 2))


def test_generated_files_are_those_of_the_records() -> None:
    """Run `python -m webmlc.package.manifest_schema` after a change of a record."""
    for path, text in generated_files().items():
        assert (ROOT / path).read_text("utf-8") == text, path


def edit(text: str, *path: Any, value: Any = None) -> str:
    """The manifest with one field replaced, or deleted where `value` is None."""
    data = json.loads(text)
    place = data
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(data)


WASM, WEBGPU = ("programs", "wasm"), ("programs", "webgpu")
DAMAGED: list[tuple[tuple[Any, ...], Any, str, str | None]] = [
    (("format",), None, "not a webmlc package", "not a webmlc package"),
    (("version",), 8, "package version 8, this webmlc reads 10: rebuild it", "Build the package"),
    (("name",), 3, "name: Expected `str`, got `int`", "name is 3, not string"),
    (("title",), "x", "unknown field `title`", "title is no field"),
    (
        ("inputs", 0, "dtype"),
        "float13",
        r"inputs\[0\].dtype: Invalid enum value 'float13'",
        r"inputs\[0\].dtype is \"float13\", not bfloat16 or",
    ),
    (("inputs", 0, "shape"), [["pow", 1, 2]], r"\['pow', 1, 2\] is not a size", "not Size"),
    (("inputs", 0, "shape"), [True], r"inputs\[0\].shape\[0\]: Expected", "true, not Size"),
    (("symbols", 0, "axis"), 5, "symbol n has no axis to be bound from", None),
    (("symbols", 0, "axis"), "0", r"symbols\[0\].axis: Expected `int`", 'is "0", not integer'),
    (
        (*WASM, "steps", 1, "kernel"),
        None,
        r"programs.wasm.steps\[1\]: Object missing required field `kernel`",
        r"programs.wasm.steps\[1\].kernel is missing",
    ),
    (
        (*WASM, "steps", 0, "arguments"),
        [0, 99],
        r"programs.wasm.steps\[0\].arguments\[1\]: Expected `str`, got `int`",
        r"programs.wasm.steps\[0\].arguments\[1\] is 100, not string",
    ),
    ((*WASM, "segments"), [], "the segments of programs.wasm miss steps", "wasm.segments miss"),
    (
        (*WASM, "segments", 0, "type"),
        "loop",
        r"programs.wasm.segments\[0\].type: Invalid value 'loop'",
        'type is "loop", not run or bind',
    ),
    (
        (*WEBGPU, "steps", 0, "launches", "gpu", "workgroups"),
        [1],
        r"launches\[...\].workgroups: Expected `array` of length 3, got 1",
        r"launches.gpu.workgroups is \[1\], not 3 items",
    ),
    ((*WEBGPU, "steps", 0, "launches"), None, r"steps\[0\].launches is missing", "are missing"),
    (
        (*WASM, "memory", "wasm", "arena", 0),
        [99, []],
        "memory.wasm places a buffer that does not exist",
        "memory.wasm places a buffer that does not exist",
    ),
    (
        (*WASM, "memory", "wasm", "arena", 0),
        [0, [1]],
        "memory.wasm.arena places a buffer on a later buffer",
        None,
    ),
    (
        ("weights", 0, "tensors"),
        [["weight"]],
        "is damaged: ValueError",
        "tensors.weight.1. is null",
    ),
    (("weights",), [], r"programs.wasm uses tensors \['weight'\] that are in no weights", None),
    (("weights", 0, "path"), "../secret", r"weights\[0\].path: Expected", "not a name of a file"),
    ((*WASM, "modules", "relaxed"), "/etc/passwd", "programs.wasm", "not a name of a file"),
    (("programs",), [], "is damaged", "programs is"),
    (("shapes",), {"y": "z"}, "output y has no shape 'z'", 'output "y" has no shape "z"'),
    (("shapes",), {"y": "y"}, "shapes names an output twice", "shapes names an output twice"),
    (("carried",), [{"input": "x", "output": "z"}], "carried names no ports", "carried passes"),
    ((*WASM, "buffers"), [{"count": 10**9, "items": [{}]}], "malformed|damaged", "is damaged"),
    ((*WASM, "steps"), [{"count": 10**5, "items": [{}]}] * 20, "malformed", "is damaged"),
]
"""A field, its value (None: without it), and the errors of Python and of the runtime. A name or a
number of something that does not exist may show only when a run needs it there.
"""


@pytest.mark.parametrize(("path", "value", "message", "_"), DAMAGED)
def test_a_wrong_field_is_named(
    tmp_path: Path, path: tuple[Any, ...], value: Any, message: str, _: str | None
) -> None:
    mixed(tmp_path)
    text = (tmp_path / "manifest.json").read_text()
    with pytest.raises(PackageError, match=message):
        from_json(edit(text, *path, value=value))


def test_the_runtime_names_wrong_fields_too(tmp_path: Path) -> None:
    mixed(tmp_path)
    text = (tmp_path / "manifest.json").read_text()
    cases = [case for case in DAMAGED if case[3] is not None]
    texts = [edit(text, *path, value=value) for path, value, _, _ in cases]
    answers = answer_once(Path(__file__).parents[1] / "js" / "faults.mjs", [text, *texts])
    assert answers[0] == ["", "", ""]
    for (path, _, _, message), (name, code, actual) in zip(cases, answers[1:], strict=True):
        assert (name, code) == ("PackageError", "package"), path
        assert message is not None and re.search(message, actual), (path, actual)
        assert "manifest.json" in actual and len(actual) < 700


MOVE = {"type": "move", "sources": ["x"], "targets": ["t"], "shapes": [["n", 4]]}
BEGIN = {"type": "begin_list", "target": "t"}
COLLECT = {"type": "collect", "source": "x", "shape": ["n", 4]}
FAULTY_SEGMENTS: list[tuple[list[dict[str, Any]], str]] = [
    ([{"type": "jump", "target": 3}], r"segments\[1\] jumps to no segment"),
    ([{"type": "jump", "target": -1}], r"segments\[1\] jumps to no segment"),
    ([{"type": "jump_unless", "target": 0, "unless": "nope"}], "uses .*nope"),
    ([{"type": "jump_unless", "target": 0, "unless": "t"}], r"\[1\] uses .*t.*host does not have"),
    (
        [{"type": "jump_unless", "target": 0, "unless": "y"}],
        r"\[1\] decides by .y., which is no boolean",
    ),
    ([MOVE | {"sources": ["t"], "targets": ["y"]}], "host does not have"),
    ([MOVE | {"targets": ["nope"]}], "nope.*host does not have"),
    ([MOVE | {"targets": []}], "does not have one target and shape per source"),
    ([MOVE | {"shapes": []}], "does not have one target and shape per source"),
    ([MOVE | {"shapes": [["zzz"]]}], "binds no symbols .*zzz"),
    ([MOVE, {"type": "measure", "buffer": "t", "symbols": ["k"], "axes": [2]}], "one element or"),
    ([MOVE, {"type": "measure", "buffer": "t", "symbols": ["k"], "axes": [-1]}], "one element or"),
    ([MOVE, {"type": "measure", "buffer": "t", "symbols": [], "axes": []}], "one element or axis"),
    ([{"type": "measure", "buffer": "x", "symbols": ["k"], "axes": [0]}], "one element or axis"),
    ([{"type": "bind", "buffer": "y", "symbols": ["k"], "elements": []}], "one element or axis"),
    (
        [BEGIN, {"type": "stack", "target": "y", "axis": 0, "shape": []}],
        "which is no list with",
    ),
    ([BEGIN, {"type": "stack", "target": "t", "axis": 2, "shape": [4]}], "no list with axis 2"),
    ([BEGIN, {**COLLECT, "target": "y"}], "appends to .y., which is no list|uses"),
]
"""Segments that no host can execute after the run of the program, and the error."""


def test_faulty_segments_are_named_by_both_hosts(tmp_path: Path) -> None:
    mixed(tmp_path)
    text = (tmp_path / "manifest.json").read_text()
    (run,) = json.loads(text)["programs"]["wasm"]["segments"]
    path = (*WASM, "segments")
    valid = edit(text, *path, value=[run, MOVE, BEGIN | {"target": "w"}])
    texts = [edit(text, *path, value=[run, *segments]) for segments, _ in FAULTY_SEGMENTS]
    from_json(valid)
    script = Path(__file__).parents[1] / "js" / "faults.mjs"
    first, *answers = answer_once(script, [valid, *texts])
    assert first == ["", "", ""]
    cases = zip(FAULTY_SEGMENTS, texts, answers, strict=True)
    for (segments, message), faulty, (_, code, actual) in cases:
        with pytest.raises(PackageError, match=message):
            from_json(faulty)
        assert code == "package" and re.search(message, actual), (segments, actual)


def test_text_that_is_no_json_is_a_package_error() -> None:
    with pytest.raises(PackageError, match="is not JSON"):
        from_json("{")
