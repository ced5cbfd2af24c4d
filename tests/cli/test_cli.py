"""The command line, as a user meets it: what works, and one clear message for what does not."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from tests.command_line import run
from tests.small_models import vision_transformer
from webmlc.frontend import protos
from webmlc.version import VERSION

pytestmark = pytest.mark.xdist_group("cli")  # one worker builds what the tests share

DIGITS = Path(__file__).parents[2] / "demos" / "digits" / "digits.onnx"


@pytest.fixture
def webmlc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """A function that runs the command line in this process."""
    return partial(run, monkeypatch, capsys)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits package for wasm."""
    import webmlc

    folder = tmp_path_factory.mktemp("cli") / "digits"
    webmlc.build(DIGITS, folder, target="wasm")
    return folder


def test_build_reports_what_it_wrote(webmlc, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = webmlc("build", DIGITS, "-o", tmp_path / "p", "--target", "wasm", "--json")
    assert result.code == 0
    report = json.loads(result.out)
    assert report["programs"]["wasm"]["steps on the cpu"] == report["programs"]["wasm"]["steps"]
    files = {p.name for p in (tmp_path / "p").iterdir()}
    assert {
        "manifest.json",
        "model.relaxed.wasm.deflate",
        "model.simd128.wasm.deflate",
        "webmlc.js",
    } <= files
    assert not any(name.endswith(".wat") for name in files)


def test_build_quantises_and_reports_the_loss(webmlc, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model, feeds = vision_transformer()
    onnx.save(model, tmp_path / "vit.onnx")
    np.savez(tmp_path / "in.npz", **feeds)
    arguments = ("build", tmp_path / "vit.onnx", "-o", tmp_path / "p", "--target", "wasm")
    options = ("--quantise", "int8", "--inputs", tmp_path / "in.npz")
    report = json.loads(webmlc(*arguments, *options, "--json").out)
    (row,) = report["quantisation"]
    assert 1e-4 < row["relative error"] < 0.03
    assert row["same argmax"] == 1
    after = report["programs"]["wasm"]["weights bytes"]
    assert after < report["weights bytes before"] / 2
    result = webmlc(*arguments, "--inputs", tmp_path / "in.npz", "--force")
    assert result.code == 2
    assert "--inputs needs --quantise" in result.err


def test_build_writes_text_when_asked(webmlc, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = webmlc("build", DIGITS, "-o", tmp_path / "p", "--target", "wasm", "--emit-text")
    assert result.code == 0
    assert "webmlc serve" in result.out
    assert (tmp_path / "p" / "model.relaxed.wat").read_text().startswith("(module")


def test_run_reads_and_writes_arrays(webmlc, package: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (name,) = json.loads((package / "manifest.json").read_text())["inputs"]
    np.savez(tmp_path / "in.npz", **{name["name"]: np.zeros((2, 1, 8, 8), np.float32)})
    out = tmp_path / "out.npz"
    result = webmlc("run", package, "--inputs", tmp_path / "in.npz", "-o", out, "--json")
    assert result.code == 0
    (row,) = json.loads(result.out)
    assert row["type"] == "float32[2, 10]"
    with np.load(out) as stored:
        assert stored[row["output"]].shape == (2, 10)


def test_check_passes_and_says_against_what(webmlc) -> None:  # type: ignore[no-untyped-def]
    result = webmlc("check", DIGITS, "--dim", "batch=3", "--threads", "2", "--json")
    assert result.code == 0
    found = json.loads(result.out)
    assert found["verdict"] == "passed" and found["reference"] == "onnxruntime"
    assert found["outputs"][0]["relative"] < 1e-4


def test_check_takes_inputs(webmlc, package: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (port,) = json.loads((package / "manifest.json").read_text())["inputs"]
    np.savez(tmp_path / "in.npz", **{port["name"]: np.ones((2, 1, 8, 8), np.float32)})
    found = json.loads(webmlc("check", DIGITS, "--inputs", tmp_path / "in.npz", "--json").out)
    assert found["verdict"] == "passed" and found["outputs"][0]["shape"] == [2, 10]


def test_inputs_that_a_file_lacks_have_its_sizes(webmlc, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> m (float[n,3] a, float[n,3] b) => (float[n,3] c)'
        "{ c = Add (a, b) }"
    )
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "in.npz", a=np.ones((5, 3), np.float32))
    arguments = ("check", tmp_path / "m.onnx", "--inputs", tmp_path / "in.npz", "--json")
    report = json.loads(webmlc(*arguments).out)
    assert report["verdict"] == "passed" and report["outputs"][0]["shape"] == [5, 3]


def test_check_names_the_first_node_that_differs(webmlc, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from webmlc.core.scalar_operators import SCALAR_OPERATORS
    from webmlc.graph.table import OPS

    assert "max" in SCALAR_OPERATORS
    monkeypatch.setitem(OPS, ("", "Relu"), OPS["", "Identity"])  # a compiler with a wrong Relu
    result = webmlc("check", DIGITS, "--json")
    assert result.code == 1
    found = json.loads(result.out)
    assert found["verdict"] == "failed" and found["first difference"].startswith("Relu")


def test_bench_times_runs_and_kernels(webmlc, package: Path) -> None:  # type: ignore[no-untyped-def]
    (row,) = json.loads(webmlc("bench", package, "--runs", "2", "--json").out)
    assert row["median ms"] > 0
    kernels = json.loads(webmlc("bench", package, "--runs", "2", "--kernels", "--json").out)
    assert any("Conv" in k["nodes"] or "conv" in k["kernel"] for k in kernels)


def test_inspect_shows_every_stage_in_order(webmlc) -> None:  # type: ignore[no-untyped-def]
    result = webmlc("inspect", DIGITS, "--target", "wasm")
    assert result.code == 0
    stages = ["frontend", "infer shapes", "choose layouts", "wasm: fuse", "relaxed: lowered"]
    positions = [result.out.index(f" {stage}") for stage in stages]
    assert positions == sorted(positions)
    assert "T.block" in result.out and "f32x4.relaxed_madd" in result.out


def test_inspect_says_what_each_step_moves(webmlc) -> None:  # type: ignore[no-untyped-def]
    arguments = ("inspect", DIGITS, "--stage", "work", "--dim", "batch=3")
    both = webmlc(*arguments).out
    assert "wasm: work" in both and "webgpu: work" in both
    rows = [line.split() for line in both.splitlines() if ": " in line and line[0] == " "]
    figures = [[int(text.replace(",", "")) for text in row[:3]] for row in rows]
    assert len(rows) > 4
    assert all(0 < least <= moved for _, moved, least in figures)
    once = webmlc(*arguments[:-1], "batch=1").out
    assert both != once


def test_inspect_prints_the_shaders_for_each_adapter(webmlc) -> None:  # type: ignore[no-untyped-def]
    arguments = ("inspect", DIGITS, "--target", "webgpu", "--stage", "wgsl", "--adapter")
    software, both = (webmlc(*arguments, adapter).out for adapter in ("software", "all"))
    assert " software: wgsl" in software and " gpu: wgsl" not in software
    assert " software: wgsl" in both and " gpu: wgsl" in both
    assert " software-subgroups: wgsl" in software and " software-subgroups: wgsl" in both
    assert 2 * both.count("@compute") == 3 * software.count("@compute") > 0


def test_ops_lists_operators(webmlc) -> None:  # type: ignore[no-untyped-def]
    rows = json.loads(webmlc("ops", "--json").out)
    since = {(row["domain"], row["operator"]): row["since opset"] for row in rows}
    newer = {("ai.onnx", "Gelu"): 20, ("ai.onnx", "Einsum"): 12, ("com.microsoft", "FastGelu"): 1}
    assert since[("ai.onnx", "Conv")] == 1
    assert {key: since[key] for key in newer} == newer


def test_version(webmlc) -> None:  # type: ignore[no-untyped-def]
    result = webmlc("--version")
    assert (result.code, result.out) == (0, f"webmlc {VERSION}\n")


def test_help_says_where_a_package_goes(webmlc) -> None:  # type: ignore[no-untyped-def]
    assert "build/<model>" in webmlc("build", "--help").out


def test_inspect_names_the_nodes_of_lines(webmlc) -> None:  # type: ignore[no-untyped-def]
    arguments = ("--target", "wasm", "--stage", "relaxed: code", "--kernel", "conv_add_relu")
    lines = webmlc("inspect", DIGITS, *arguments).out.splitlines()
    (madd, *_) = (number for number, line in enumerate(lines) if "relaxed_madd" in line)
    (store, *_) = (number for number, line in enumerate(lines) if "(v128.store" in line)
    for number, nodes in ((madd, "conv1"), (store, "conv1, relu1")):
        comments = [line.partition("  ;; ")[2] for line in lines[: number + 1] if "  ;; " in line]
        assert comments[-1] == nodes


def test_inspect_lists_the_stages_first_and_shows_what_changed(webmlc) -> None:  # type: ignore[no-untyped-def]
    lines = webmlc("inspect", DIGITS, "--target", "wasm").out.splitlines()
    listed = [line for line in lines if line[:2].isdigit()]
    assert lines[: len(listed)] == listed and listed[0] == "01 frontend"
    shown = [line.strip("─ ").partition(" ·")[0] for line in lines if line.startswith("──")]
    assert set(shown) < set(listed)
    assert not any("widen halves" in title for title in shown)  # it had nothing to do


@pytest.mark.parametrize(
    ("option", "text", "kind", "name"),
    [
        ("--stage", "nope", "stage", "frontend"),
        ("--kernel", "nope", "kernel", "matmul_add"),
        ("--dim", "nope=3", "dimension", "batch"),
    ],
)
def test_inspect_says_what_there_is(webmlc, option: str, text: str, kind: str, name: str) -> None:  # type: ignore[no-untyped-def]
    result = webmlc("inspect", DIGITS, option, text)
    assert result.code == 2
    assert f"no {kind} is named 'nope'" in result.err and name in result.err


def test_what_no_build_wrote_is_kept_unless_forced(webmlc, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "index.html").write_text("mine")
    arguments = ("build", DIGITS, "-o", tmp_path, "--target", "wasm")
    result = webmlc(*arguments)
    assert result.code == 2 and "(index.html)" in result.err and "--force" in result.err
    assert (tmp_path / "index.html").read_text() == "mine"
    assert webmlc(*arguments, "--force").code == 0
    assert (tmp_path / "index.html").read_text() != "mine"


def test_errors_of_the_system_are_one_line(webmlc, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "file").write_text("")
    result = webmlc("build", DIGITS, "-o", tmp_path / "file" / "package", "--target", "wasm")
    assert result.code == 2
    folder = tmp_path / "file" / "package"
    assert result.err.startswith(f"error: {folder}: cannot write a package here (Not a directory)")
    assert result.err.count("\n") == 1


TRAINING = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[256] x) => (float[256] y) <float r = {0.5}, bool t = {1}>
    { a = Dropout(x, r, t) b = Neg(a) y = Mul(a, b) }"""


def test_training_mode_is_warned_of_and_checks_inconclusively(webmlc, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    onnx.save(onnx.parser.parse_model(TRAINING), tmp_path / "m.onnx")
    result = webmlc("build", tmp_path / "m.onnx", "-o", tmp_path / "p", "--target", "wasm")
    assert result.code == 0
    assert "warning: 'a' drops elements at random: was the model exported" in result.err
    checked = webmlc("check", tmp_path / "m.onnx")
    assert checked.code == 2
    assert "y: onnxruntime with and without its optimisations differs from itself by" in checked.out
    assert checked.out.strip().endswith("inconclusive")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x08\x08hello", "not an ONNX model"),
        (b"", "this is an empty file. Download or export"),
        (None, "truncated"),
    ],
)
def test_bad_files(webmlc, tmp_path: Path, content: bytes | None, message: str) -> None:  # type: ignore[no-untyped-def]
    data = DIGITS.read_bytes()[:5000] if content is None else content
    (tmp_path / "bad.onnx").write_bytes(data)
    result = webmlc("build", tmp_path / "bad.onnx", "-o", tmp_path / "p")
    assert result.code == 2
    assert result.err.startswith("error: ") and message in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_missing_file(webmlc, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    result = webmlc("build", tmp_path / "none.onnx")
    assert result.code == 2 and "no such file" in result.err


def test_a_package_is_not_built_again(webmlc, package: Path) -> None:  # type: ignore[no-untyped-def]
    result = webmlc("build", package)
    assert result.code == 2 and "this is a package already" in result.err


def test_unknown_operator(webmlc, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    graph = helper.make_graph(
        [helper.make_node("Mystery", ["x"], ["y"], name="node7", domain="org.example")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    result = webmlc("build", tmp_path / "m.onnx")
    assert result.code == 2
    assert "Mystery" in result.err and "node7" in result.err and "CONTRIBUTING" in result.err


def test_errors_are_json_of_one_shape(webmlc, package: Path, tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    model = onnx.load(DIGITS)
    model.graph.node[-1].op_type = "Mystery"
    onnx.save(model, "mystery.onnx")
    Path("file").touch()
    for arguments, type_, text in (
        (("build", "gone.onnx"), "ModelError", "gone.onnx: no such file"),
        (("build", "mystery.onnx"), "UnsupportedError", "Mystery"),
        (("run", package, "--dim", "colour=3"), "InputError", "colour"),
        (("run", package, "--dim", "batch"), "UserError", "NAME=SIZE"),
        (("build", DIGITS, "-o", "file/package"), "PackageError", "Not a directory"),
        (("bench", "file"), "ModelError", "an empty file"),
        (("build",), "UsageError", "Missing argument 'model'"),
        (("build", DIGITS, "--target", "gpu"), "UsageError", "--target"),
        (("serve", "file"), "UsageError", "--json"),
    ):
        result = webmlc(*arguments, "--json")
        assert result.code == 2 and result.err == ""
        error = json.loads(result.out)["error"]
        assert error.keys() == {"type", "message", "nodes"}
        assert error["type"] == type_ and text in error["message"]
        assert [node["operator"] for node in error["nodes"]] == ["Mystery"] * (text == "Mystery")


def test_a_bug_is_json_too_and_shows_where_it_is(webmlc, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def break_down(*_: object) -> None:
        raise KeyError("opset")

    monkeypatch.setattr(protos, "first_opset", break_down)
    result = webmlc("ops", "--json")
    assert result.code == 3 and "break_down" in result.err
    error = json.loads(result.out)["error"]
    assert error == {"type": "InternalError", "message": "KeyError: 'opset'", "nodes": []}
    result = webmlc("ops")
    assert result.code == 3 and not result.out
    assert "(a bug of webmlc, please report it): KeyError: 'opset'" in result.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(webmlc, monkeypatch, shell: str) -> None:  # type: ignore[no-untyped-def]
    assert "webmlc" in webmlc("--show-completion", shell).out
    variables = {"COMP_WORDS": "webmlc tu", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "webmlc tu"}
    variables |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for name, value in (variables | {"_WEBMLC_COMPLETE": f"complete_{shell}"}).items():
        monkeypatch.setenv(name, value)
    assert "tune-worker" in webmlc().out


def test_the_options_of_a_build_are_in_groups(webmlc, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("COLUMNS", "100")
    text = webmlc("build", "--help").out
    groups = ("The package", "The model", "What the page has and shows", "Precision", "Speed")
    positions = [text.index(f"─ {group} ─") for group in groups]
    assert positions == sorted(positions)
    assert positions[0] < text.index("--single-file") < positions[1] < text.index("--constant")


def test_external_data_outside_the_folder(webmlc, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    model = onnx.load(DIGITS)
    folder = tmp_path / "inside"
    folder.mkdir()
    onnx.save(
        model, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    (folder / "w.bin").rename(tmp_path / "w.bin")
    stored = onnx.load(folder / "m.onnx", load_external_data=False)
    for tensor in stored.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../w.bin"
    onnx.save(stored, folder / "m.onnx")
    result = webmlc("build", folder / "m.onnx", "-o", tmp_path / "p")
    assert result.code == 2
    assert "w.bin" in result.err and result.err.startswith("error: ")


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("wrong", np.zeros((1, 1, 8, 8), np.float32), "no input is named 'wrong'"),
        (None, np.zeros((1, 1, 8, 8), np.float64), "float64"),
        (None, np.zeros((1, 1, 8, 9), np.float32), "shape"),
    ],
)
def test_wrong_inputs(webmlc, package: Path, tmp_path: Path, name, array, message) -> None:  # type: ignore[no-untyped-def]
    (port,) = json.loads((package / "manifest.json").read_text())["inputs"]
    np.savez(tmp_path / "in.npz", **{name or port["name"]: array})
    result = webmlc("run", package, "--inputs", tmp_path / "in.npz")
    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "not a readable .npz file"),
        (b"PK\x03\x04 and no more", "not a readable .npz file"),
        (np.ones(3), "write np.savez(path, NAME=array)"),
    ],
    ids=["missing", "empty", "truncated", "one array"],
)
def test_bad_files_of_inputs(webmlc, package: Path, tmp_path: Path, content, message) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "in.npz"
    match content:
        case bytes():
            path.write_bytes(content)
        case np.ndarray():
            with path.open("wb") as file:
                np.save(file, content)
    result = webmlc("run", package, "--inputs", path)
    assert result.code == 2 and result.err.count("\n") <= 2
    assert str(path) in result.err.replace("\n", "") and message in result.err.replace("\n", " ")


def test_corrupted_and_missing_weights(webmlc, package: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for file in package.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.write_bytes(bytes(data))
    result = webmlc("run", tmp_path)
    assert result.code == 2 and "weights.safetensors" in result.err
    weights.unlink()
    result = webmlc("run", tmp_path)
    assert result.code == 2 and "weights.safetensors" in result.err


def test_bad_dimension(webmlc, package: Path) -> None:  # type: ignore[no-untyped-def]
    result = webmlc("run", package, "--dim", "batch=many")
    assert result.code == 2 and "NAME=SIZE" in result.err
    result = webmlc("run", package, "--dim", "colour=3")
    assert result.code == 2 and "'colour'" in result.err and "batch" in result.err


@pytest.fixture
def pooling(tmp_path: Path) -> Path:
    """A model that takes no picture of one pixel, and whose second input is an index."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 3, h, w] x, int64[k] picture_lengths) => (float[k, 3, a, b] y) {
            p = MaxPool<kernel_shape = [5, 5], strides = [2, 2]>(x)
            y = Gather(p, picture_lengths) }""")
    onnx.save(model, tmp_path / "pooling.onnx")
    return tmp_path / "pooling.onnx"


def test_examples_have_sizes_that_a_model_accepts(webmlc, pooling: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A length is the largest size, which is no index here."""
    result = webmlc("run", pooling)
    error = " ".join(result.err.split())
    assert result.code == 2 and "1 of its indices or sizes is out of range" in error
    assert "h = 8 from axis 2 of 'x'" in error and "n = 1 from axis 0" in error
    assert "choose others with --dim or --inputs" in error
    np.savez(tmp_path / "in.npz", picture_lengths=np.zeros(2, np.int64))
    rows = json.loads(webmlc("run", pooling, "--inputs", tmp_path / "in.npz", "--json").out)
    assert rows[0]["type"] == "float32[2, 3, 2, 2]"
    result = webmlc("check", pooling, "--inputs", tmp_path / "in.npz", "--dim", "h=5")
    assert result.code == 0 and "passed" in result.out
    result = webmlc("run", pooling, "--dim", "n=3")
    assert result.code == 2 and "--inputs" not in result.err  # they know the options


@pytest.fixture
def reduction(tmp_path: Path) -> Path:
    """A model whose axes are an input."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x, int64[1] axes) => (float[a] y) {
            r = Relu(x)  y = ReduceSum<keepdims = 0>(r, axes) }""")
    onnx.save(model, tmp_path / "reduction.onnx")
    return tmp_path / "reduction.onnx"


def test_constants_are_built_in(webmlc, reduction: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "p"
    result = webmlc("build", reduction, "-o", out, "--target", "wasm", "--constant", "axes=[1]")
    assert result.code == 0
    inputs = json.loads((out / "manifest.json").read_text())["inputs"]
    assert [port["name"] for port in inputs] == ["x"]
    result = webmlc("run", out, "--constant", "axes=[1]")
    assert result.code == 2 and "is a package" in result.err


def test_constants_of_every_command(webmlc, reduction: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    np.save(tmp_path / "axes.npy", np.array([0]))
    constant = ("--constant", f"axes={tmp_path / 'axes.npy'}")
    found = json.loads(webmlc("check", reduction, *constant, "--json").out)
    assert found["verdict"] == "passed" and found["outputs"][0]["shape"] == [3]
    (row,) = json.loads(webmlc("run", reduction, *constant, "--json").out)
    assert row["type"] == "float32[3]"
    (row,) = json.loads(webmlc("bench", reduction, *constant, "--runs", "1", "--json").out)
    assert row["runs"] == 1
    text = webmlc("inspect", reduction, *constant, "--stage", "infer shapes").out
    assert "float32[3] = ReduceSum" in text


def test_check_with_constants_names_the_first_node_that_differs(  # type: ignore[no-untyped-def]
    webmlc, reduction: Path, monkeypatch
) -> None:
    from webmlc.graph.table import OPS

    monkeypatch.setitem(OPS, ("", "Relu"), OPS["", "Identity"])  # a compiler with a wrong Relu
    result = webmlc("check", reduction, "--constant", "axes=[1]", "--json")
    assert result.code == 1
    assert json.loads(result.out)["first difference"].startswith("Relu")


def test_bad_constants(webmlc, reduction: Path) -> None:  # type: ignore[no-untyped-def]
    for text, message in (
        ("axis=1", "no such input; its inputs: 'x', 'axes'"),
        ("axes=1", "has shape [], expected [1]"),
        ("axes=[0.5]", "int64 cannot hold [0.5] exactly"),
        ("axes=gone.npy", "no such file"),
        ("axes", "NAME=VALUE"),
    ):
        result = webmlc("build", reduction, "--constant", text)
        assert result.code == 2 and message in result.err, result.err
        assert len(result.err.strip().splitlines()) == 1
