"""The digits page, used as a person would: mouse, finger, keyboard, on the CPU and on the GPU."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from demos.digits.build import build
from tests.browser.firefox import visit_twice
from tests.browser.pages import Page, PageReport, open_pages

DRIVER = str(Path(__file__).parent / "draw_digits.mjs")
DESKTOP = {"viewport": {"width": 1200, "height": 850}}
PHONE = {"viewport": {"width": 360, "height": 740}, "hasTouch": True, "isMobile": True}
DARK_PHONE = {**PHONE, "colorScheme": "dark", "reducedMotion": "reduce"}
BY_DEVICE = {"wasm": [0, 1, 2, 3, 4], "webgpu": [5, 6, 7, 8, 9]}
"""The digits that a mouse draws: each of the ten on one of the devices."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    build(folder)
    return folder


def page(context: dict[str, Any], **arg: Any) -> Page:
    return Page("/", script=DRIVER, arg={"by": "mouse", **arg}, context=context)


def quiet(report: PageReport) -> bool:
    """Nothing on the console: no error, no warning, no breach of the page's security policy."""
    return report.errors == [] and [c for c in report.console if not c.startswith("log:")] == []


@pytest.mark.parametrize(
    ("device", "name"), [("wasm", "CPU (WebAssembly)"), ("webgpu", "GPU (WebGPU)")]
)
def test_reads_what_a_mouse_draws(site: Path, device: str, name: str) -> None:
    digits = BY_DEVICE[device]
    [report] = open_pages({"/": site}, page(DESKTOP, device=device, digits=digits))
    shown = report.value
    assert shown["answers"] == digits
    assert shown["device"].startswith(name)
    assert shown["time"].endswith(" ms")
    assert shown["problem"] == ""
    assert quiet(report)


def test_the_bytes_shown_are_the_bytes_sent(site: Path) -> None:
    [report] = open_pages({"/": site}, page(DESKTOP, device="auto", digits=[4]))
    # A worker asks again for modules that the page has: from the browser's cache, were it allowed.
    files = {request["path"]: request["bytes"] for request in report.requests}
    del files["/offline.js"]  # the service worker's script comes when the page is complete
    sent = sum(files.values()) / 1000
    shown = float(report.value["bytes"].removesuffix(" KB"))
    assert shown == pytest.approx(sent, abs=2)


def test_a_finger_draws_on_a_narrow_dark_page(site: Path) -> None:
    [report] = open_pages({"/": site}, page(DARK_PHONE, device="auto", by="touch", digits=[2, 7]))
    assert report.value["answers"] == [2, 7]
    assert report.value["overflow"] <= 0
    assert quiet(report)


def test_the_keyboard_draws_and_is_told_the_result(site: Path) -> None:
    [report] = open_pages({"/": site}, page(DESKTOP, device="auto", by="keyboard", digits=[1]))
    assert report.value["answers"] == [1]
    assert report.value["announcement"].startswith("Reads 1, ")


def test_without_isolation_it_runs_on_one_thread(site: Path) -> None:
    [report] = open_pages({"/": site}, page(DESKTOP, device="wasm", digits=[3]), isolated=False)
    assert report.value["answers"] == [3]
    assert report.value["device"] == "CPU (WebAssembly), 1 thread"


def test_a_corrupted_download_is_told_to_the_person(site: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(site, broken)
    weights = broken / "model" / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    [report] = open_pages({"/": broken}, page(DESKTOP, device="wasm", digits=[]))
    assert "weights.safetensors" in report.value["problem"]
    assert report.value["device"] == "none"


def test_every_control_has_a_name(site: Path) -> None:
    names = """() => [...document.querySelectorAll("[tabindex], button, select, progress, canvas")]
        .map((e) => e.ariaLabel || e.labels?.[0]?.textContent?.trim() || e.textContent.trim())"""
    [report] = open_pages({"/": site}, Page("/", names))
    assert all(report.value)
    assert len(report.value) >= 5


def test_firefox_reads_a_digit_without_a_server(site: Path) -> None:
    [visit] = visit_twice({"/": site}, ("/", "digits"))
    assert visit.online == visit.offline == "1"
