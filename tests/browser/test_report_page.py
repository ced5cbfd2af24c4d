"""The page of a report leads from a node to its code and back, and measures times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.browser.pages import Page, open_pages
from tests.small_models import model_of, random
from webmlc.build_options import BuildOptions
from webmlc.pipeline import build
from webmlc.report.write_report import write_report

LAYERS = 4
FOLLOW = """export default async ({ page, arg }) => {
  const ready = () => page.waitForFunction(() => document.documentElement.dataset.ready);
  const text = (selector) => page.locator(selector).innerText();
  await ready();
  const views = await page.locator("#view option").allInnerTexts();
  await page.keyboard.press("/");
  await page.keyboard.type("product_2");
  await page.keyboard.press("Enter");
  const found = { node: await text("#node"), kernel: await text("#kernel") };
  found.code = await text("#codename");
  // A node leads to its own lines in the kernel, and they lead back to it.
  const chip = (name) => page.locator("#selected .chips button", { hasText: name }).first();
  const computes = () => page.locator(".row.cursor").getAttribute("title");
  const own = { product: await computes() };
  await chip("sum_2").click();
  own.sum = [await text("#node"), await computes()];
  await page.locator('.row.mine[title="product_2"]').last().click();
  own.back = [await text("#node"), await computes(), await page.locator(".row.node").count()];
  await page.getByRole("button", { name: /^lines / }).click();
  found.line = await page.locator(".row.mine").filter({ hasText: "(func" }).first().innerText();
  const view = await page.locator("#view").inputValue();
  // Another node, and back to the first one by a line of its code.
  const line = await page.locator(".row.mine").first().getAttribute("data-line");
  await page.locator("#drawing").focus();
  for (let i = 0; i < 9; i++) await page.keyboard.press("ArrowDown");
  const other = await text("#node");
  const scroll = (lines, top) => { lines.scrollTop = top; };
  await page.locator("#lines").evaluate(scroll, 18 * Number(line));
  await page.locator(`.row[data-line="${Number(line) + 2}"]`).click();
  const nodes = await page.locator("#selected .chips button").allInnerTexts();
  const back = { kernel: await text("#kernel"), nodes };
  // The line that calls the kernel leads to the step, too; lines of no node say so.
  await page.getByRole("button", { name: /^called on line/ }).click();
  const call = page.locator(".row.cursor");
  const called = { line: await call.innerText() };
  const number = Number(await call.getAttribute("data-line"));
  await page.locator("#lines").evaluate((lines) => { lines.scrollTop = 0; });
  await page.locator('.row[data-line="1"]').click();
  called.note = await text("#codenote");
  await page.locator("#drawing").focus();
  await page.keyboard.press("ArrowDown");
  await page.locator("#lines").evaluate(scroll, 18 * number);
  await page.locator(`.row[data-line="${number}"]`).click();
  called.kernel = await text("#kernel");
  await page.locator("#measure").click();
  await page.waitForFunction(() => !document.querySelector("#measure").disabled);
  const status = await text("#status");
  const rows = {};
  for (const tab of ["kernels", "memory", "downloads"]) {
    await page.locator(`[data-tab=${tab}]`).click();
    rows[tab] = await page.locator(`#${tab} tbody tr, #${tab} .box`).count();
  }
  const dots = await page.locator("#roofline .dot").count();
  if (arg.picture) await page.screenshot({ path: arg.picture });
  return { views, found, own, view, other, back, called, status, rows, dots };
};"""
MEASURE = """export default async ({ page }) => {
  await page.waitForFunction(() => document.documentElement.dataset.ready);
  await page.locator("#program").selectOption("webgpu");
  const variants = {};
  await page.locator("#search").fill("product_1");
  await page.keyboard.press("Enter");
  for (const index of [0, 1]) {
    await page.locator("#variant").selectOption({ index });
    variants[index] = await page.locator(".row.mine").allInnerTexts();
  }
  const node = await page.locator("#node").innerText();
  await page.locator("#measure").click();
  await page.waitForFunction(() => !document.querySelector("#measure").disabled);
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  return { status: await page.locator("#status").innerText(), overflow, variants, node };
};"""

TOUCH = """export default async ({ page }) => {
  await page.waitForFunction(() => document.documentElement.dataset.ready);
  const text = (selector) => page.locator(selector).innerText();
  const box = (selector) => page.locator(selector).boundingBox();
  const drawing = await box("#drawing");
  const middle = drawing.x + drawing.width / 2;
  const bar = await box(".bar");
  const before = await text("#selected");
  let y = drawing.y;
  while ((await text("#selected")) === before && y < drawing.y + drawing.height) {
    await page.touchscreen.tap(middle, (y += 8));
  }
  const chosen = { node: await text("#node"), details: await box("#node") };
  // A finger drags the drawing: the same place holds another node then, or none.
  const touch = await page.context().newCDPSession(page);
  const send = (type, touchPoints) => touch.send("Input.dispatchTouchEvent", { type, touchPoints });
  const finger = (y, x = middle, id = 0) => ({ x, y, id });
  await send("touchStart", [finger(y + 60)]);
  for (let i = 1; i <= 6; i++) await send("touchMove", [finger(y + 60 - 10 * i)]);
  await send("touchEnd", []);
  await page.touchscreen.tap(middle, y);
  const dragged = await text("#node");
  // Two fingers zoom.
  const pixels = () => page.locator("#drawing").evaluate((canvas) => canvas.toDataURL());
  const small = await pixels();
  const pair = (distance) => [finger(y, middle - distance), finger(y, middle + distance, 1)];
  await send("touchStart", pair(20));
  for (let i = 1; i <= 6; i++) await send("touchMove", pair(20 + 10 * i));
  await send("touchEnd", []);
  await page.evaluate(() => new Promise(requestAnimationFrame));
  const zoomed = (await pixels()) !== small;
  const rooms = await page.evaluate(() => {
    const root = document.documentElement;
    return [root.scrollWidth - innerWidth, root.scrollHeight - innerHeight, scrollY];
  });
  return { chosen, dragged, zoomed, rooms, gap: bar.y - drawing.y - drawing.height };
};"""
ROLES = """async () => {
  await new Promise((resolve) => {
    const wait = () => (document.documentElement.dataset.ready ? resolve() : setTimeout(wait, 20));
    wait();
  });
  const search = document.querySelector("#search");
  search.value = "product";
  search.dispatchEvent(new Event("input"));
  const wrong = [];
  let options = 0;
  for (const list of document.querySelectorAll("[role=listbox]")) {
    for (const child of list.querySelectorAll("*")) {
      const role = child.getAttribute("role");
      const isIn = child.closest("[role=option]");
      if (role === "option") options += child.ariaSelected === null ? NaN : 1;
      else if (!isIn && role !== "presentation") wrong.push(child.outerHTML);
    }
  }
  for (const field of document.querySelectorAll("[aria-activedescendant]")) {
    const id = field.getAttribute("aria-activedescendant");
    if (id && !document.getElementById(id)) wrong.push(id);
  }
  const tabs = [...document.querySelectorAll("[role=tab]")];
  for (const tab of tabs) {
    tab.click();
    for (const element of document.querySelectorAll("main *")) {
      const { overflowY } = getComputedStyle(element);
      const scrolls = overflowY === "auto" && element.scrollHeight > element.clientHeight;
      const inside = "a, button, select, input, [tabindex]";
      const isReached = element.tabIndex >= 0 || element.querySelector(inside);
      if (scrolls && !isReached) wrong.push(`${element.id} cannot be scrolled by keys`);
    }
  }
  return { wrong, options };
}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of equal layers: its report, and its package with another report in it."""
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    lines, weights, value = [], {}, "x"
    for i in range(LAYERS):
        weights |= {f"w{i}": random(rng, 32, 32), f"c{i}": random(rng, 32)}
        lines.append(f"[product_{i}] a{i} = MatMul({value}, w{i})")
        lines.append(f"[sum_{i}] b{i} = Add(a{i}, c{i})")
        lines.append(f"[rest_{i}] d{i} = Softmax(b{i})")
        lines.append(f"[last_{i}] e{i} = Tanh(d{i})")
        value = f"e{i}"
    body = "\n".join(lines)
    model = model_of(
        f"layers (float[8, 32] x) => (float[8, 32] y) {{ {body} y = Neg({value}) }}", weights
    )
    path = folder / "layers.onnx"
    onnx.save(model, str(path))
    write_report(path, folder / "report.html")
    build(path, folder / "package")
    write_report(path, folder / "package" / "report.html", BuildOptions(adapter="all"))
    return folder


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "follow.mjs"
    path.write_text(FOLLOW)
    return str(path)


def test_a_node_leads_to_its_code_and_back(folder: Path, script: str, tmp_path: Path) -> None:
    """The page is a file: it needs no server, and no other file."""
    url = (folder / "report.html").as_uri()
    arg = {"picture": str(tmp_path / "report.png")}
    [report] = open_pages({"/": folder}, Page(url, script=script, arg=arg))
    assert report.errors == [] and report.requests == []
    value = report.value
    assert len(value["views"]) == 2 and "one of equal layers" in value["views"][0]
    assert value["found"]["node"].startswith("product_2 MatMul")
    assert value["found"]["kernel"].startswith(value["found"]["code"])
    assert f"${value['found']['code']}" in value["found"]["line"]
    assert value["own"]["product"] == "product_2"
    assert value["own"]["sum"] == ["sum_2 Add", "sum_2"]
    assert value["own"]["back"][:2] == ["product_2 MatMul", "product_2"]
    assert value["own"]["back"][2] > 1
    assert value["view"] == "computation"  # the folded layers were opened
    assert not value["other"].startswith("product_2")
    assert value["back"]["kernel"] == value["found"]["kernel"]
    assert any("product_" in node for node in value["back"]["nodes"])
    assert f"(call ${value['found']['code']} " in value["called"]["line"]
    assert value["called"]["note"] == "Line 2 belongs to no node of the model."
    assert value["called"]["kernel"] == value["found"]["kernel"]
    assert value["status"].startswith("A run takes")
    assert "CPU, 1 thread" in value["status"]
    assert all(count >= LAYERS for count in value["rows"].values())
    assert value["dots"] >= LAYERS


def test_in_a_package_the_page_measures_the_gpu(folder: Path, tmp_path: Path) -> None:
    drive = tmp_path / "measure.mjs"
    drive.write_text(MEASURE)
    context = {"viewport": {"width": 390, "height": 800}, "colorScheme": "dark"}
    page = Page("/report.html", script=str(drive), context=context)
    [report] = open_pages({"/": folder / "package"}, page)
    assert report.errors == []
    assert report.value["status"].startswith("A run takes")
    assert "GPU, the package beside this page" in report.value["status"]
    assert report.value["overflow"] <= 0
    gpu, software = report.value["variants"].values()
    assert gpu and software and gpu != software
    assert report.value["node"].startswith("product_1")


def test_a_phone_keeps_the_graph_and_the_selection_in_view(folder: Path, tmp_path: Path) -> None:
    """A finger moves the drawing, not the page. A tap on a node shows what belongs to it."""
    drive = tmp_path / "touch.mjs"
    drive.write_text(TOUCH)
    viewport = {"width": 390, "height": 844}
    context = {"viewport": viewport, "hasTouch": True, "isMobile": True}
    page = Page("/report.html", script=str(drive), context=context)
    [report] = open_pages({"/": folder}, page)
    assert report.errors == []
    value = report.value
    details = value["chosen"]["details"]
    assert value["chosen"]["node"].split()[0] != "layers"
    assert details["y"] + details["height"] < viewport["height"]
    assert value["dragged"] != value["chosen"]["node"]
    assert value["zoomed"] is True
    assert value["rooms"] == [0, 0, 0]
    assert value["gap"] >= 0  # the tools cover no node


def test_lists_hold_options_and_keys_scroll(folder: Path) -> None:
    """Programs that read the page aloud know its lists, and where one is in them."""
    [report] = open_pages({"/": folder}, Page("/report.html", ROLES))
    assert report.value["wrong"] == []
    assert report.value["options"] > 10
