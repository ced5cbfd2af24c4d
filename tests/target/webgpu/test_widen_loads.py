"""Loads of whole vectors, in kernels of one nest of threads and of two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.against_onnxruntime import check, parse


@pytest.mark.parametrize("sizes", [(3, 4, 5), (2, 3, 6), (3, 4, 7), (1, 8, 9), (4, 4, 4)])
@pytest.mark.parametrize("last", ["Identity", "Relu"])
def test_a_tile_and_its_tail_read_the_same_vectors(
    last: str, sizes: tuple[int, int, int], tmp_path: Path
) -> None:
    # The bias of size 1 or n is a value of its own in both nests: the tile's, and the tail's.
    m, k, n = sizes
    model = parse(
        f"g (float[{m},{k}] a, float[{k},{n}] b, float[q] c) => (float[{m},{n}] y)"
        f"{{ p = MatMul(a, b) s = Add(p, c) y = {last}(s) }}"
    )
    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    runs = [{"a": a, "b": b, "c": rng.standard_normal(q).astype(np.float32)} for q in (1, n)]
    check(model, tmp_path / "package", *runs)
