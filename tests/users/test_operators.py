"""An installed package offers operators to all commands, and the cache sees a change of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.users.installed import Installed

SOURCE = """
from smear_ops.parts import scaled
from webmlc import operator, te


@operator("com.example", "Smear")
def smear(x: te.Tensor, *, width: int = 3, scale: float) -> te.Tensor:
    n, m = x.shape
    k = te.reduce_axis((0, width), name="k")
    near = te.compute((n, m), lambda i, j: te.sum(x[i, te.min(j + k, m - 1)], axis=k), name="near")
    return te.compute((n, m), lambda i, j: scaled(near[i, j], scale), name="smear")
"""
PARTS = "def scaled(x, scale):\n    return x * scale\n"
ENTRY_POINTS = "[webmlc.operators]\nsmear = smear_ops:smear\n"
METADATA = "Metadata-Version: 2.1\nName: smear-ops\nVersion: 1.5\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder in which a package with an operator is installed."""
    folder = tmp_path / "site"
    files = {
        "smear_ops/__init__.py": SOURCE,
        "smear_ops/parts.py": PARTS,
        "smear_ops-1.5.dist-info/METADATA": METADATA,
        "smear_ops-1.5.dist-info/entry_points.txt": ENTRY_POINTS,
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, "utf-8")
    return folder


@pytest.fixture
def user(webmlc: Installed, site: Path) -> Installed:
    """A user who has installed webmlc and the package."""
    return replace(webmlc, target=Path(f"{webmlc.target}{os.pathsep}{site}"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 8]) for n in "xy")
    nodes = [
        helper.make_node("Smear", ["x"], ["s"], domain="com.example", scale=0.5),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.example", 1)]
    graph = helper.make_graph(nodes, "custom", [x], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "model.onnx"
    )
    return tmp_path / "model.onnx"


def test_all_commands_see_installed_operators(user: Installed, model: Path) -> None:
    folder = model.parent
    rows = user.json("ops", cwd=folder)
    assert rows[-1] == {
        "domain": "com.example",
        "operator": "Smear",
        "since opset": 1,
        "kind": "opaque",
        "inputs": ["x"],
        "attributes": {"width": 3, "scale": None},
        "from": "smear-ops 1.5",
    }
    assert "width=3, scale" in user.run("ops", cwd=folder).out
    report = user.json("build", model, "-o", "package", cwd=folder)
    assert report["operators"] == [
        {"operator": "com.example.Smear", "nodes": 1, "from": "smear-ops 1.5"}
    ]
    assert "smear-ops 1.5" in user.run("build", model, "-o", "package", cwd=folder).out
    result = user.json("check", model, cwd=folder)
    assert result["verdict"] == "passed"
    assert result["reference"] == "onnx.reference and the definition of com.example.Smear"
    assert user.json("run", model, cwd=folder)
    search = ("--budget", "1s", "--engine", "wasmtime", "--no-algorithms")
    assert user.json("tune", model, *search, cwd=folder)["kernels"]


def first_element(user: Installed, model: Path, *options: str) -> float:
    """Build a package of the model, and run it on ones; returns its first result."""
    folder = model.parent
    np.savez(folder / "x.npz", x=np.ones((1, 8), np.float32))
    user.json("build", model, "-o", "package", "--target", "wasm", *options, cwd=folder)
    user.run("run", "package", "--inputs", "x.npz", "-o", "y.npz", cwd=folder)
    return float(np.load(folder / "y.npz")["y"][0, 0])


def test_a_changed_function_is_built_again(user: Installed, model: Path, site: Path) -> None:
    """The version of the package stays, and so does the file that the entry point names."""
    assert first_element(user, model) == 1.5
    assert first_element(user, model) == 1.5
    (site / "smear_ops" / "parts.py").write_text(PARTS.replace("x * scale", "x * scale * 4.0"))
    assert first_element(user, model) == 6.0
    mine = model.parent / "mine.py"
    for factor in (2.0, 40.0):
        parts = PARTS.replace("x * scale", f"x * scale * {factor}")
        mine.write_text(SOURCE.replace("from smear_ops.parts import scaled", parts), "utf-8")
        assert first_element(user, model, "--operators", "mine.py") == 1.5 * factor
    assert first_element(user, model) == 6.0


def test_a_package_that_cannot_be_loaded_is_one_error(
    user: Installed, model: Path, site: Path
) -> None:
    (site / "smear_ops" / "parts.py").write_text("def scaled(x, scale):\n    return x +\n")
    error = user.run("build", model, cwd=model.parent, code=2).err
    assert "installed package smear-ops 1.5 cannot be loaded: SyntaxError" in " ".join(
        error.split()
    )


def test_a_file_of_operators(webmlc: Installed, model: Path) -> None:
    """The file is no package: its operators are named for each command."""
    folder = model.parent
    (folder / "mine.py").write_text(SOURCE.replace("from smear_ops.parts", "from parts"), "utf-8")
    (folder / "parts.py").write_text(PARTS, "utf-8")
    error = webmlc.run("build", model, cwd=folder, code=2).err
    assert "docs/programs.md" in error
    for operators in ("mine", "mine:smear"):
        report = webmlc.json("build", model, "--operators", operators, cwd=folder)
        assert report["operators"][0]["from"] == "mine:smear"
    error = webmlc.run("build", model, "--operators", "mine:spread", cwd=folder, code=2).err
    assert "the module has no operator spread" in " ".join(error.split())
    error = webmlc.run("build", model, "--operators", "absent.py", cwd=folder, code=2).err
    assert "absent.py cannot be loaded" in " ".join(error.split())
    (folder / "single.py").write_text(
        SOURCE.replace("from smear_ops.parts import scaled", PARTS), "utf-8"
    )
    assert (
        webmlc.json("check", model, "--operators", "single.py", cwd=folder)["verdict"] == "passed"
    )
    assert webmlc.json("run", model, "--operators", "single.py:smear", cwd=folder)
    rows = webmlc.json("ops", "--operators", "single.py", cwd=folder)
    assert rows[-1]["from"] == "single:smear"
