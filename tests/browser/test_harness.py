"""The harness of the browser tests works."""

from pathlib import Path

import pytest

from tests.browser.pages import Page, open_pages

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text(BLANK)
    return tmp_path


def test_one_browser_opens_several_pages(site: Path) -> None:
    adapter = """async () => {
        const adapter = await navigator.gpu.requestAdapter();
        return [...adapter.features];
    }"""
    isolated, doubled, features = open_pages(
        {"/": site},
        Page("/", "() => crossOriginIsolated"),
        Page("/", "({ n }) => 2 * n", arg={"n": 21}),
        Page("/", adapter),
    )
    assert isolated.value is True
    assert doubled.value == 42
    assert "subgroups" in features.value
    assert [(r["path"], r["bytes"]) for r in doubled.requests] == [("/", len(BLANK))]


def test_isolation_can_be_left_out(site: Path) -> None:
    [report] = open_pages({"/": site}, Page("/", "() => crossOriginIsolated"), isolated=False)
    assert report.value is False


def test_a_script_drives_the_page(site: Path) -> None:
    script = site / "drive.mjs"
    script.write_text("export default async ({ page, arg }) => [await page.title(), arg];")
    [report] = open_pages({"/": site}, Page("/", script=str(script), arg=7))
    assert report.value == ["blank", 7]


def test_an_error_in_the_page_is_raised(site: Path) -> None:
    fails = "() => { console.log('so far'); throw new TypeError('no such tensor'); }"
    with pytest.raises(AssertionError, match=r"(?s)no such tensor.*so far"):
        open_pages({"/": site}, Page("/", fails))


def test_a_page_that_hangs_is_stopped(site: Path) -> None:
    with pytest.raises(AssertionError, match="longer than 500 ms"):
        open_pages({"/": site}, Page("/", "() => new Promise(() => {})", timeout=500))


def test_files_outside_a_mount_are_not_served(site: Path) -> None:
    inner = site / "inner"
    inner.mkdir()
    (inner / "page.html").write_text(BLANK)
    (site / "secret.txt").write_text("secret")
    fetch_status = "async () => (await fetch('/..%2fsecret.txt')).status"
    [report] = open_pages({"/": inner}, Page("/page.html", fetch_status))
    assert report.value == 404
