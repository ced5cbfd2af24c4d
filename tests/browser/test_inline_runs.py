"""The option `inlineMilliseconds` limits how long a run may block the page, in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.pages import Page, open_pages
from tests.packages import scaled

BLANK = '<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>blank</title>'

RUN = """async ({ inlineMilliseconds, runs, duration }) => {
  const { load } = await import("/scaled/webmlc.js");
  const model = await load("/scaled/", { device: "wasm", threads: 1, inlineMilliseconds });
  let rings = 0; // wake-ups of the worker
  const { notify } = Atomics;
  Atomics.notify = (...args) => {
    rings++;
    return notify(...args);
  };
  let time = 0;
  performance.now = () => (time += duration); // the measured time of each run
  const x = { dtype: "float32", shape: [1, 4], data: new Float32Array(4) };
  for (let i = 0; i < runs; i++) await model.run({ x });
  model.dispose();
  return runs - rings; // the runs in the page
}"""


@pytest.mark.parametrize(
    ("limit", "duration", "in_the_page"),
    [(None, 4, True), (None, 8, False), (20, 8, True), (3, 8, False), (0, 0.01, False)],
)
def test_the_page_executes_runs_within_the_limit(
    tmp_path: Path, limit: float | None, duration: float, in_the_page: bool
) -> None:
    (tmp_path / "index.html").write_text(BLANK)
    scaled(tmp_path / "scaled")
    arg = {"runs": 12, "duration": duration} | (
        {} if limit is None else {"inlineMilliseconds": limit}
    )
    (report,) = open_pages({"/": tmp_path}, Page("/", RUN, arg=arg))
    assert (report.value > 0) == in_the_page


REFUSED = """async (values) => {
  const { load } = await import("/scaled/webmlc.js");
  const refusal = (inlineMilliseconds) =>
    load("/scaled/", { inlineMilliseconds }).then(
      () => null,
      ({ name, message }) => `${name}: ${message}`,
    );
  return Promise.all([...values, NaN].map(refusal));
}"""


def test_an_invalid_limit_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(BLANK)
    scaled(tmp_path / "scaled")
    (report,) = open_pages({"/": tmp_path}, Page("/", REFUSED, arg=[-1, "5", None]))
    for message in report.value:
        assert message.startswith("InputError: inlineMilliseconds is "), message
