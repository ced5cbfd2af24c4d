"""Kernels by hand in Chromium, on both devices, and the page that measures the course's steps."""

# mypy: disable-error-code="valid-type, name-defined, no-untyped-def"
# The annotations of kernels are calls, which types have no form for.

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import demos.kernels.build
import webmlc
from demos.website import write_shared
from tests.browser.gpu_models import BLANK
from tests.browser.pages import Page, open_pages
from webmlc import T, te, tir
from webmlc.core.machine import Device
from webmlc.programs.script import Program

DRIVER = Path(__file__).with_name("kernels.mjs")
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
DARK_PHONE = {
    "viewport": {"width": 390, "height": 844},
    "hasTouch": True,
    "isMobile": True,
    "colorScheme": "dark",
}
Arrays = dict[str, NDArray[np.float32]]


def random(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


# -- programs --------------------------------------------------------------------------------------


@webmlc.kernel
def mm_relu(
    A: T.Buffer((128, 128), "float32"),
    B: T.Buffer((128, 128), "float32"),
    C: T.Buffer((128, 128), "float32"),
):
    Y = T.alloc_buffer((128, 128), "float32")
    for i, j, k in T.grid(128, 128, 128):
        with T.block("Y"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                Y[vi, vj] = T.float32(0)
            Y[vi, vj] = Y[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(128, 128):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.max(Y[vi, vj], T.float32(0))


@webmlc.kernel
def vector_add(
    A: T.Buffer((1000,), "float32"),
    B: T.Buffer((1000,), "float32"),
    C: T.Buffer((1000,), "float32"),
):
    for i in range(1000):
        with T.block("C"):
            vi = T.axis.spatial(1000, i)
            C[vi] = A[vi] + B[vi]


@webmlc.kernel
def product(
    A: T.Buffer((64, 64), "float32"),
    B: T.Buffer((64, 64), "float32"),
    C: T.Buffer((64, 64), "float32"),
):
    for i, j, k in T.grid(64, 64, 64):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


def linear_relu() -> Program:
    """A layer with a bias, as tensor expressions."""
    x, w = (te.placeholder(s, name=n) for s, n in (((32, 128), "X"), ((128, 64), "W")))
    b = te.placeholder((64,), name="B")
    k = te.reduce_axis((0, 128), name="k")
    y = te.compute((32, 64), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="Y")
    z = te.compute((32, 64), lambda i, j: te.max(y[i, j] + b[j], 0.0), name="Z")
    return te.create_prim_func([x, w, b, z], "linear_relu")


def scheduled_mm_relu(device: Device) -> tir.Schedule:
    schedule = tir.Schedule(mm_relu)
    i, j, k = schedule.get_loops("Y")
    if device == "webgpu":
        schedule.set_scope("Y", "local")
    j0, j1 = schedule.split(j, factors=[None, 8])
    schedule.reorder(i, j0, *((j1, k) if device == "webgpu" else (k, j1)))
    schedule.reverse_compute_at("C", j1 if device == "webgpu" else j0)
    schedule.decompose_reduction("Y", k)
    if device == "webgpu":
        for loop, axis in ((i, "blockIdx.y"), (j0, "blockIdx.x"), (j1, "threadIdx.x")):
            schedule.bind(loop, axis)
    else:
        schedule.vectorize(j1)
    return schedule


def tensorized(device: Device) -> tir.Schedule:
    """The product in pieces of 4 by 4 by 4, each an intrinsic."""
    schedule = tir.Schedule(product)
    i, j, k = schedule.get_loops("C")
    i0, i1 = schedule.split(i, factors=[None, 4])
    j0, j1 = schedule.split(j, factors=[None, 4])
    k0, k1 = schedule.split(k, factors=[None, 4])
    schedule.reorder(i0, j0, k0, i1, j1, k1)
    schedule.decompose_reduction("C", k0)
    schedule.tensorize(i1, "matmul_4x4_f32")
    if device == "webgpu":
        schedule.bind(i0, "blockIdx.x")
        schedule.bind(j0, "threadIdx.x")
    return schedule


PROGRAMS: dict[
    str, tuple[Callable[[Device], Program | tir.Schedule], tuple[tuple[int, ...], ...], Any]
] = {
    "mm_relu": (lambda _: mm_relu, ((128, 128),) * 2, lambda a, b: np.maximum(a @ b, 0)),
    "scheduled": (scheduled_mm_relu, ((128, 128),) * 2, lambda a, b: np.maximum(a @ b, 0)),
    "vector_add": (lambda _: vector_add, ((1000,),) * 2, np.add),
    "linear_relu": (
        lambda _: linear_relu(),
        ((32, 128), (128, 64), (64,)),
        lambda x, w, b: np.maximum(x @ w + b, 0),
    ),
    "tensorized": (tensorized, ((64, 64),) * 2, np.matmul),
}
"""The programs with their schedules for a device, the shapes of inputs, and their meaning."""

RUN = """async ({ names, device, inputs }) => {
  const { load } = await import(`/${names[0]}/webmlc.js`);
  const results = [];
  for (const [index, name] of names.entries()) {
    const model = await load(`/${name}/`, { device });
    const feeds = Object.fromEntries(inputs[index].map(({ shape, data }, i) => {
      const values = new Float32Array(Uint8Array.fromBase64(data).buffer);
      return [model.inputs[i].name, { dtype: "float32", shape, data: values }];
    }));
    const [output] = Object.values(await model.run(feeds));
    results.push({ shape: output.shape, data: new Uint8Array(output.data.buffer).toBase64() });
    model.dispose();
  }
  return results;
}"""


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_saved_kernels_run_in_a_page(tmp_path: Path, device: Device) -> None:
    (tmp_path / "index.html").write_text(BLANK)
    inputs = {}
    for name, (program, shapes, _) in PROGRAMS.items():
        webmlc.compile(program(device), device).save(tmp_path / name)
        inputs[name] = [random(*shape) for shape in shapes]
    arg = {
        "names": list(PROGRAMS),
        "device": device,
        "inputs": [
            [
                {"shape": list(a.shape), "data": base64.b64encode(a.tobytes()).decode()}
                for a in arrays
            ]
            for arrays in inputs.values()
        ],
    }
    [report] = open_pages({"/": tmp_path}, Page("/", RUN, arg=arg))
    assert report.errors == [] and report.console == []
    for (name, (_, _, meaning)), result in zip(PROGRAMS.items(), report.value, strict=True):
        expected = meaning(*inputs[name])
        actual = np.frombuffer(base64.b64decode(result["data"]), np.float32)
        np.testing.assert_allclose(
            actual.reshape(result["shape"]), expected, rtol=1e-4, atol=1e-4, err_msg=name
        )


# -- the page --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    write_shared(folder)
    demos.kernels.build.build(folder)
    return folder


def use(site: Path, context: dict[str, Any], isolated: bool = True, **arg: Any) -> dict[str, Any]:
    page = Page("/kernels/", script=str(DRIVER), arg=arg, context=context, timeout=300_000)
    [report] = open_pages({"/": site}, page, isolated=isolated)
    assert report.errors == [] and report.console == []
    value: dict[str, Any] = report.value
    assert value["overflow"] <= 0
    return value


STEPS = {
    "CPU": [
        *("as written", "loop order", "tiled", "vectorised", "register tile", "packed panel"),
        *("fused", "threads"),
    ],
    "GPU": ["threads", "workgroup memory", "register tile", "larger tile", "squares"],
}


def test_the_page_measures_every_step(site: Path) -> None:
    shown = use(site, DESKTOP)
    names = [f"{device}: {step}" for device, steps in STEPS.items() for step in steps]
    assert [entry["name"] for entry in shown["details"]] == names
    assert all(0 < bar <= 1 for bar in shown["bars"])
    assert all("GFLOPS" in figure for figure in shown["figures"])
    assert all("% of the limit" in entry["result"] for entry in shown["details"])
    assert all(entry["schedule"].startswith("def ") for entry in shown["details"])
    assert [len(e["traffic"]) for e in shown["details"]] == [3] * 8 + [2] * 5
    assert "2 threads" in shown["limits"]["cpu"] and "Limit" in shown["limits"]["gpu"]
    wat, wgsl = shown["codes"]
    assert wat.startswith("(func $mm_relu ") and "@workgroup_size(64)" in wgsl


def test_a_dark_phone_measures_without_network_or_isolation(site: Path) -> None:
    shown = use(site, DARK_PHONE, isolated=False, reload=True)
    assert all(0 < bar <= 1 for bar in shown["bars"])
    assert shown["limits"]["cpu"].endswith("1 thread")


def test_without_a_gpu_the_page_says_so_and_measures_the_cpu(site: Path) -> None:
    shown = use(site, DESKTOP, withoutGpu=True)
    assert "no WebGPU adapter" in shown["limits"]["gpu"]
    assert [bar > 0 for bar in shown["bars"]] == [True] * 8 + [False] * 5
