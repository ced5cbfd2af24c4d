"""Packages are complete and reproducible."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tests.packages import parts, scaled
from webmlc.core.dtypes import DType
from webmlc.core.errors import InternalError
from webmlc.package.manifest import Buffer, Launch, Port
from webmlc.package.write import write_package


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_the_same_parts_give_the_same_bytes(tmp_path: Path) -> None:
    scaled(tmp_path / "a")
    scaled(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_manifest_lists_every_other_file(tmp_path: Path) -> None:
    manifest = scaled(tmp_path)
    files = contents(tmp_path)
    del files["manifest.json"]
    assert manifest.files.keys() == files.keys()
    for path, data in files.items():
        assert manifest.files[path].bytes == len(data)
        assert manifest.files[path].sha256 == hashlib.sha256(data).hexdigest()
    assert {"webmlc.js", "webmlc.d.ts", "index.html", "model.simd128.wasm.deflate"} <= files.keys()


def test_a_build_that_fails_leaves_the_older_package(tmp_path: Path) -> None:
    scaled(tmp_path)
    before = contents(tmp_path)
    with pytest.raises(InternalError):
        write_package(tmp_path, replace(parts(), constants={}))
    assert contents(tmp_path) == before
    with pytest.raises(InternalError):
        write_package(tmp_path / "new" / "deeper", replace(parts(), constants={}))
    assert not (tmp_path / "new").exists()


def test_static_resources_are_exact(tmp_path: Path) -> None:
    given = parts()
    buffers = [
        structs.replace(b, shape=tuple(100 if size == "n" else size for size in b.shape))
        for b in given.programs["wasm"].buffers
    ]
    port = Port("x", DType.float32, (100, 4), "x")
    manifest = structs.replace(
        given.manifest,
        symbols=(),
        inputs=(port,),
        outputs=(structs.replace(port, name="y", buffer="y"),),
    )
    launches = {"gpu": Launch((13, 1, 1))}
    static = replace(
        given,
        manifest=manifest,
        programs={
            d: replace(
                p,
                buffers=buffers,
                body=[
                    structs.replace(s, symbols=(), launches=s.launches and launches)
                    for s in p.steps
                ],
            )
            for d, p in given.programs.items()
        },
    )
    manifest = write_package(tmp_path, static)
    wasm, webgpu = manifest.programs["wasm"].resources, manifest.programs["webgpu"].resources
    assert (wasm.weights, wasm.arena, wasm.memory) == (16, {"wasm": 3200}, 1280 + 256 + 3200)
    assert (webgpu.weights, webgpu.arena) == (16, {"webgpu": 2 * 1792})
    assert webgpu.largest_binding == 1600


def test_weights_are_grouped_by_who_needs_them(tmp_path: Path) -> None:
    given = parts()
    own = Buffer("u", (2,), kind="constant", tensor="only_wasm")
    wasm = given.programs["wasm"]
    more = replace(wasm, buffers=(*wasm.buffers, own))
    both = replace(
        given,
        programs={**given.programs, "wasm": more},
        constants={**given.constants, "only_wasm": np.ones(2, np.float32)},
    )
    manifest = write_package(tmp_path, both)
    assert {f.path: list(f.tensors) for f in manifest.weights} == {
        "weights.safetensors": ["weight"],
        "weights.wasm.safetensors": ["only_wasm"],
    }


def test_constants_with_the_same_bytes_share_a_tensor(tmp_path: Path) -> None:
    """In any order in memory and of any type, and only if all bytes are the same."""
    packed = np.arange(60, dtype=np.float32).reshape(6, 10)
    other = packed.copy()
    other[5, 9] = 0
    constants: dict[str, Any] = {
        "packed": packed,
        "in_columns": np.asfortranarray(packed),
        "as_integers": packed.view(np.int64),
        "other": other,
        "short": packed[:5],
    }
    buffers = [
        Buffer(f"b_{name}", array.shape, DType.of(array.dtype), "constant", name)
        for name, array in constants.items()
    ]
    package = parts()
    wasm = package.programs["wasm"]
    more = replace(wasm, buffers=(*wasm.buffers, *buffers))
    programs = {**package.programs, "wasm": more}
    both = replace(package, programs=programs, constants={**package.constants, **constants})
    manifest = write_package(tmp_path, both)
    [file] = [f for f in manifest.weights if f.path == "weights.wasm.safetensors"]
    assert list(file.tensors) == ["packed", "other", "short"]


def test_a_package_that_no_host_loads_is_our_error_and_is_not_written(tmp_path: Path) -> None:
    package = parts()
    unknown = structs.replace(package.manifest.outputs[0], buffer="renamed")
    manifest = structs.replace(package.manifest, outputs=(unknown,))
    with pytest.raises(InternalError, match=r"(?s)no host can load .* unknown buffers .*renamed"):
        write_package(tmp_path / "package", replace(package, manifest=manifest))
    last = package.programs["wasm"].buffers[-1]
    unbound = structs.replace(last, name="b", shape=("nowhere",))
    wasm = replace(package.programs["wasm"], buffers=[*package.programs["wasm"].buffers, unbound])
    programs = {**package.programs, "wasm": wasm}
    with pytest.raises(InternalError, match=r"programs.wasm binds no symbols \['nowhere'\]"):
        write_package(tmp_path / "package", replace(package, programs=programs))
    assert not (tmp_path / "package").exists()


def test_a_missing_constant_is_our_error(tmp_path: Path) -> None:
    with pytest.raises(InternalError, match="no constant 'weight' for w"):
        write_package(tmp_path, replace(parts(), constants={}))
