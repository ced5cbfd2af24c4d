"""The manifest round-trips, and what is wrong with one is named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.packages import mixed
from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError, PackageError
from webmlc.core.expr import Expr, Var, call, const, maximum, minimum
from webmlc.core.rewrite import evaluate
from webmlc.package.manifest import Buffer
from webmlc.package.manifest_from_json import from_json
from webmlc.package.manifest_to_json import to_json
from webmlc.package.size_json import from_size, from_sizes, name_sizes, to_size

N = Var("n")


def test_a_manifest_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    manifest = mixed(tmp_path)
    text = (tmp_path / "manifest.json").read_text()
    assert from_json(text) == manifest
    assert to_json(from_json(text)) == text


def test_sizes_that_buffers_share_are_said_once(tmp_path: Path) -> None:
    manifest = mixed(tmp_path)
    program = manifest.programs["wasm"]
    half = (N + 1) // 2
    buffers = tuple(
        replace(b, shape=(half, const(4)) if b.kind == "scratch" else b.shape)
        for b in (*program.buffers, *(replace(b, name=f"{b.name}.2") for b in program.buffers))
    )
    shared = replace(manifest, programs={"wasm": replace(program, buffers=buffers)})
    text = to_json(shared)
    sizes = {"#0": "n", "#1": ["floordiv", ["add", "#0", 1], 2]}
    assert json.loads(text)["programs"]["wasm"]["sizes"] == sizes
    assert text.count('["floordiv"') == 1
    assert from_json(text) == shared


def test_parts_that_sizes_share_are_said_once() -> None:
    blocks = (N + 63) // 64
    names = name_sizes([blocks % 7, blocks + 1, N])
    sizes = {name: to_size(size, names) for size, name in names.items()}
    assert sizes == {"#0": "n", "#1": ["floordiv", ["add", "#0", 63], 64]}
    again = from_size(to_size(blocks % 7, names), from_sizes(sizes))
    assert str(again) == str(blocks % 7)


def test_arguments_of_equal_layers_are_equal(tmp_path: Path) -> None:
    """Each layer reads the result of the one before, and a weight."""
    manifest = mixed(tmp_path)
    program = manifest.programs["wasm"]
    layers = [(f"y{i}", f"w{i}", f"y{i + 1}") for i in range(5)]
    names = dict.fromkeys(name for layer in layers for name in layer)
    buffers = tuple(Buffer(name, DType.float32, (const(2), const(4))) for name in names)
    steps = tuple(replace(program.steps[0], arguments=layer) for layer in layers)
    run = replace(program.runs[0], first=0, last=5)
    chain = replace(program, buffers=buffers, steps=steps, segments=(run,))
    text = to_json(replace(manifest, programs={"wasm": chain}, inputs=(), outputs=(), symbols=()))
    (layer,) = json.loads(text)["programs"]["wasm"]["steps"]
    arguments = ["{#0,-1,-1,-1,-1}", 0, 0]
    step = {"kernel": "scale", "arguments": arguments, "origin": ["/scale"]}
    assert layer == {"count": 5, "items": [step]}
    assert from_json(text).programs["wasm"] == chain


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


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("format",), None, "not a webmlc package"),
        (("version",), 99, "package version 99, this webmlc reads 8: rebuild it"),
        (("name",), 3, "name is 3, expected str"),
        (("inputs", 0, "dtype"), "float13", r"inputs\[0\].dtype is 'float13'"),
        (("inputs", 0, "shape"), [["pow", 1, 2]], r"\['pow', 1, 2\] is not a size"),
        (("inputs", 0, "shape"), [True], "True is not a size"),
        (("symbols", 0, "axis"), 5, "symbol n has no axis to be bound from"),
        (
            ("programs", "wasm", "steps", 1, "kernel"),
            None,
            r"programs.wasm.steps\[1\].kernel is missing",
        ),
        (
            ("programs", "wasm", "steps", 0, "arguments"),
            [0, 99],
            r"programs.wasm.steps\[0\].arguments are not all buffers",
        ),
        (("programs", "wasm", "segments"), [], "the segments of programs.wasm miss steps"),
        (
            ("programs", "webgpu", "steps", 0, "workgroups"),
            [1],
            "workgroups does not have three sizes",
        ),
        (
            ("weights", "files", 0, "tensors"),
            [["weight"]],
            r"weights.files\[0\].tensors\[0\] is not a pair \[name, length\]",
        ),
        (
            ("weights", "files"),
            [],
            r"wasm.buffers\[1\].tensor is 0, but the weights files hold 0 tensors",
        ),
    ],
)
def test_a_wrong_field_is_named(
    tmp_path: Path, path: tuple[Any, ...], value: Any, message: str
) -> None:
    mixed(tmp_path)
    text = (tmp_path / "manifest.json").read_text()
    with pytest.raises(PackageError, match=message):
        from_json(edit(text, *path, value=value))


def test_text_that_is_no_json_is_a_package_error() -> None:
    with pytest.raises(PackageError, match="is not JSON"):
        from_json("{")
