"""The option `keepFiles`: packages in the Cache API of a real Chromium."""

from __future__ import annotations

import json
from pathlib import Path

from tests.browser.pages import Page, open_pages
from tests.packages import scaled

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'
ROW = [1, 0, 1.5, 12]

COMMON = """
  const { load } = await import("/scaled/webmlc.js");
  const { fetch } = globalThis;
  let fetched = [];
  const online = (url, ...args) => {
    fetched.push(new URL(url).pathname.split("/").at(-1));
    return fetch(url, ...args);
  };
  globalThis.fetch = online;
  const pause = () => new Promise((resolve) => setTimeout(resolve, 50));
  const use = async (reason = "", options = { keepFiles: true }) => {
    fetched = [];
    const model = await load("/scaled/", { device: "wasm", ...options });
    const x = { dtype: "float32", shape: [1, 4], data: new Float32Array([1, 2, 3, 4]) };
    const y = Array.from((await model.run({ x })).y.data);
    for (let i = 0; i < 200 && !model.filesReason.includes(reason); i++) await pause();
    const { filesReason } = model;
    model.dispose();
    return [y, filesReason, fetched.sort()];
  };
  const keys = async () => {
    const requests = await (await caches.open("webmlc")).keys();
    return requests.map(({ url }) => new URL(url));
  };
"""

KEEP = """async () => {
  COMMON
  const plain = await use("", {});
  const first = await use("kept: 2");
  const names = (await keys()).map(({ pathname }) => pathname);
  const second = await use();
  globalThis.fetch = () => Promise.reject(new TypeError("no network"));
  const offline = await use();
  const missing = await load("/scaled/", { device: "wasm" }).catch(({ message }) => message);
  globalThis.fetch = online;
  const cache = await caches.open("webmlc");
  const weights = async () => (await keys()).find(({ pathname }) => /safetensors/.test(pathname));
  await cache.put(await weights(), new Response(new Uint8Array(4)));
  const damaged = await use("kept: 2");
  const mended = await use();
  await cache.delete(await weights());
  const evicted = await use("kept: 1");
  return { plain, first, names, second, offline, missing, damaged, mended, evicted };
}""".replace("COMMON", COMMON)

FILES = ["manifest.json", "model.relaxed.wasm.deflate", "weights.safetensors"]


def test_the_next_load_needs_no_network(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(BLANK)
    manifest = scaled(tmp_path / "scaled")
    size = sum(manifest.files[name].bytes for name in FILES[1:])
    (report,) = open_pages({"/": tmp_path}, Page("/", KEEP))
    value = report.value
    fate = "the browser may remove them when space is short"
    from_cache = [ROW, f"files from the cache: 2; {fate}"]
    kept = [ROW, f"files kept: 2, {size} bytes; {fate}", FILES]
    assert value["plain"] == [ROW, "not requested", FILES]
    assert value["first"] == kept
    assert sorted(value["names"]) == [f"/scaled/{name}" for name in FILES]
    assert value["second"] == [*from_cache, FILES[:1]]
    assert value["offline"] == [*from_cache, []]
    assert "no network" in value["missing"]
    assert value["damaged"] == [ROW, kept[1], sorted([FILES[0], *FILES])]
    assert value["mended"] == [*from_cache, FILES[:1]]
    weights = manifest.files[FILES[2]].bytes
    one = f"files from the cache: 1; files kept: 1, {weights} bytes; {fate}"
    assert value["evicted"] == [ROW, one, [FILES[0], FILES[2]]]
    assert report.errors == []


LIMITED = """async () => {
  COMMON
  const { estimate } = navigator.storage;
  navigator.storage.estimate = async () => ({ quota: 150, usage: 50 });
  const full = await use("not kept");
  navigator.storage.estimate = estimate;
  const { put } = Cache.prototype;
  Cache.prototype.put = () => Promise.reject(new DOMException("no space", "QuotaExceededError"));
  const refused = await use("not kept");
  Cache.prototype.put = put;
  const { open } = CacheStorage.prototype;
  const error = new DOMException("not allowed", "SecurityError");
  CacheStorage.prototype.open = () => Promise.reject(error);
  const forbidden = await use();
  CacheStorage.prototype.open = open;
  Object.defineProperty(globalThis, "caches", { value: undefined });
  return { full, refused, forbidden, missing: await use() };
}""".replace("COMMON", COMMON)


def test_a_model_loads_without_the_cache_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(BLANK)
    scaled(tmp_path / "scaled")
    (report,) = open_pages({"/": tmp_path}, Page("/", LIMITED))
    for y, _, fetched in report.value.values():
        assert y == ROW and fetched == FILES
    reasons = {name: reason for name, (_, reason, _) in report.value.items()}
    assert "bytes, and the browser's quota leaves 100" in reasons["full"]
    assert reasons["refused"] == "not kept: QuotaExceededError: no space"
    assert reasons["forbidden"] == "not kept: the browser opens no cache (not allowed)"
    assert reasons["missing"].startswith("not kept: this host has no Cache API")


REBUILT = """async () => {
  COMMON
  await use("kept: 2");
  const hashes = async () => (await keys()).map(({ searchParams }) => searchParams.get("sha256"));
  const before = await hashes();
  globalThis.fetch = (url) => online(`${url}`.replace("/scaled/", "/rebuilt/"));
  const rebuilt = await use("kept: 1");
  return { before, after: await hashes(), rebuilt };
}""".replace("COMMON", COMMON)


def test_a_new_build_replaces_the_kept_files(tmp_path: Path) -> None:
    """The other build has the hash of another module."""
    (tmp_path / "index.html").write_text(BLANK)
    scaled(tmp_path / "scaled")
    scaled(tmp_path / "rebuilt")
    module = tmp_path / "rebuilt" / "model.relaxed.wasm.deflate"
    module.write_bytes((tmp_path / "scaled" / "model.simd128.wasm.deflate").read_bytes())
    file = tmp_path / "rebuilt" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["files"][module.name] = manifest["files"]["model.simd128.wasm.deflate"]
    file.write_text(json.dumps(manifest))
    (report,) = open_pages({"/": tmp_path}, Page("/", REBUILT))
    before, after = (set(report.value[name]) for name in ("before", "after"))
    assert len(before) == len(after) == 3
    assert len(before & after) == 2  # of the weights, and none of the manifest
    assert report.value["rebuilt"][0] == ROW
