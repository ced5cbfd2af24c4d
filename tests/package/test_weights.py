"""Weights files: any reader of the format reads them; tensors are aligned; shards keep limits."""

import hashlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from webmlc.core.errors import PackageError
from webmlc.package import weights
from webmlc.package.weights import read_file, read_weights, write_weights

RNG = np.random.default_rng(7)
TENSORS: dict[str, Any] = {
    "a": RNG.standard_normal((3, 5)).astype(np.float32),
    "b/weird name": RNG.integers(-5, 5, (7,)),
    "flag": np.array([True, False, True]),
    "scalar": np.array(2.5, np.float64),
    "none": np.zeros((0, 4), np.float32),
    "transposed": np.arange(12, dtype=np.int8).reshape(3, 4).T,
    "half": np.ones((300,), np.float16),
    "brain": np.ones((5,), ml_dtypes.bfloat16),
}


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    [file] = write_weights(tmp_path, "weights", TENSORS)
    read = load_file(tmp_path / file.path)
    for name, array in TENSORS.items():
        if name != "brain":  # numpy has no bfloat16 of its own
            np.testing.assert_array_equal(read[name], array)
            assert read[name].dtype == array.dtype
    extra = {name for name in read if name not in TENSORS}
    assert all(name.startswith("__pad_") for name in extra)


def test_spans_are_aligned_and_hold_the_bytes(tmp_path: Path) -> None:
    files = write_weights(tmp_path, "weights", TENSORS)
    data = (tmp_path / "weights.safetensors").read_bytes()
    read = read_weights(tmp_path, files)
    for name, array in TENSORS.items():
        begin, end = files[0].tensors[name]
        assert begin % 256 == 0
        assert data[begin:end] == bytes(read[name]) == np.ascontiguousarray(array).tobytes()


def test_hashes_are_of_the_whole_and_of_the_list_of_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "CHUNK_BYTES", 1000)
    [file] = write_weights(tmp_path, "weights", {"x": np.arange(600, dtype=np.int64)})
    data = (tmp_path / file.path).read_bytes()
    assert file.bytes == len(data)
    assert file.sha256 == hashlib.sha256(data).hexdigest()
    assert len(data) % 1000
    hashes = [hashlib.sha256(data[i : i + 1000]).digest() for i in range(0, len(data), 1000)]
    assert file.chunks_sha256 == hashlib.sha256(b"".join(hashes)).hexdigest()


def test_shards_obey_the_limit(tmp_path: Path) -> None:
    tensors = {f"t{i}": np.full((100,), i, np.float32) for i in range(7)}
    tensors["large"] = np.zeros((1000,), np.float32)
    files = write_weights(tmp_path, "weights", tensors, limit=1100)
    assert [f.path for f in files] == [f"weights-0000{i}-of-00005.safetensors" for i in range(1, 6)]
    assert [len(f.tensors) for f in files] == [2, 2, 2, 1, 1]
    read = read_weights(tmp_path, files)
    for name, array in tensors.items():
        assert bytes(read[name]) == array.tobytes()


def test_no_tensors_no_files(tmp_path: Path) -> None:
    assert write_weights(tmp_path, "weights", {}) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_file_outside_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "package").mkdir()
    with pytest.raises(PackageError, match="outside the package's folder"):
        read_file(tmp_path / "package", "../secret", 1, "")
