"""The page of a search is one file that needs no other, and states the figures of the search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement

import pytest

from tests.tune.small_search import (
    CONFIRMED_RATIO,
    CONTROL_MS,
    PLATFORM,
    FixedWorker,
    small_search,
    small_tasks,
)
from webmlc.schedule.rules.space import changes, leaves_of
from webmlc.tune.measure.candidates import Candidate, Refusal
from webmlc.tune.measure.make_trials import CandidateBuilder
from webmlc.tune.measure.workers import work
from webmlc.tune.report.write_report import rows_of, write_report
from webmlc.tune.search.outcomes import limit_of, outcomes_of, work_of
from webmlc.tune.search.search import Search
from webmlc.tune.search.task_search import Options, TaskSearch
from webmlc.tune.tasks import Task

pytestmark = pytest.mark.xdist_group("tune_report")  # one worker builds what the tests share


class PageParser(HTMLParser):
    """Reads a page into a tree. Fails where an element is closed by another's end."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("root")
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        child = SubElement(self.open[-1], tag, {name: value or "" for name, value in attrs})
        if tag != "meta":
            self.open.append(child)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        SubElement(self.open[-1], "#text").text = data


def page_of(
    searches: list[TaskSearch], path: Path, limits: dict[str, float] | None = None
) -> Element:
    """The tree of the page that some searches get."""
    parser = PageParser()
    report = write_report(path / "tuned.html", searches, searches[0].options, limits)
    parser.feed(report.read_text("utf-8"))
    assert parser.open == [parser.root]
    return parser.root


def text_of(element: Element) -> str:
    """All text inside an element."""
    return "".join(element.itertext())


def of_class(page: Element, name: str) -> list[Element]:
    """The elements of a class."""
    return [e for e in page.iter() if name in e.get("class", "").split()]


@pytest.fixture(scope="module")
def search() -> Search:
    return small_search()


@pytest.fixture(scope="module")
def page(search: Search, tmp_path_factory: pytest.TempPathFactory) -> Element:
    return page_of(search.all_searches(), tmp_path_factory.mktemp("report"))


def test_the_head_states_the_time_of_the_whole_model(page: Element) -> None:
    (whole,) = of_class(page, "whole")
    assert text_of(whole).startswith("2.00×as fastbefore4.00 msafter2.00 ms")


def test_the_head_says_how_it_was_measured(page: Element, search: Search) -> None:
    (facts,) = of_class(page, "facts")
    terms = {text_of(e[0]): text_of(e[1]) for e in facts}
    assert terms.pop("Date").endswith(" UTC")
    assert terms == {
        "Model": "small <model>",
        "Device": "WebAssembly (relaxed)",
        "Engine": "an engine 1.2",
        "Machine": "A <fast> CPU, 1 thread",
        "Budget": "10 h",
        "Strategy": "random",
        "Measurements": str(sum(s.measured for s in search.all_searches())),
        "Kernels": "2 of 2 measured, 2 faster",
    }


def test_a_kernel_has_its_times_its_parameters_and_its_nodes(page: Element, search: Search) -> None:
    kernels = {text_of(e.find(".//h3")): e for e in of_class(page, "kernel")[:2]}
    outcome = next(o for o in outcomes_of(search.all_searches()) if o.search.task.name == "matmul")
    kernel = kernels["matmul"]
    assert "contraction · 1 call" in text_of(kernel)
    assert "before2.00 msafter1.00 ms" in text_of(kernel)
    assert "8 candidates: best 1.43×, confirmed 2.00×" in text_of(kernel)
    assert "<script>alert('&')</script>" in text_of(kernel)
    widths = [float(e.get("width", "")) for e in kernel.iter("rect")]
    assert widths == [100, 100 * CONFIRMED_RATIO]
    assert outcome.changes["kernel.blocks"] == ("blocks", None)
    default, strips = outcome.changes["kernel.strips"]
    assert default != strips
    items = {text_of(e): e.get("title") for e in kernel.iter("li")}
    assert items["blocks blocks → none"] == "The blocks of rows; None: one block has all rows."
    assert (items[f"strips {default} → {strips}"] or "").startswith("Strips of a panel that are")
    assert len(outcome.changes) == sum(title is not None for title in items.values())


def test_kernels_are_compared_with_the_fastest_one(page: Element, search: Search) -> None:
    works = [(o, work_of(o.search)) for o in outcomes_of(search.all_searches())]
    limit = limit_of(works)
    flops = 2 * 16 * 24 * 8
    assert limit.gflops == pytest.approx(flops / (CONTROL_MS * CONFIRMED_RATIO * 1e6))
    assert "no measured limit of the machine" in text_of(page)
    cells = {text_of(row[0]): [text_of(cell) for cell in row] for row in page.iter("tr")}
    assert cells["matmul"][2] == "50 % → 100 %"
    softmax = next(work for o, work in works if o.search.task.name == "softmax")
    assert softmax.least == 2 * 16 * 8 * 4
    assert cells["softmax"][3] == ("operations" if limit.is_arithmetic(softmax) else "bytes")
    searched = search.all_searches()[1]
    best = f"{1 / searched.best:.2f}×"
    assert cells["softmax"][5] == f"{searched.measured} candidates: best {best}, confirmed 2.00×"


def test_kernels_are_compared_with_a_measured_limit(search: Search, tmp_path: Path) -> None:
    page = page_of(search.all_searches(), tmp_path, {PLATFORM.key: 50.0})
    text = text_of(page)
    assert "The limit is 50.0 GFLOPS" in text
    assert "a benchmark measured the operations of this machine" in text
    assert "no measured limit of the machine" not in text


def test_each_search_has_a_curve(page: Element, search: Search) -> None:
    curves = of_class(page, "curve")
    assert len(curves) == 2
    for curve, outcome in zip(curves, outcomes_of(search.all_searches()), strict=True):
        (best,) = of_class(curve, "best")
        assert best.get("d", "").count("H") == outcome.search.measured
        (dots,) = of_class(curve, "dots")
        ratios = outcome.search.ratios.values()
        assert dots.get("d", "").count("M") == sum(r is not None for r in ratios) - 1
        assert len(of_class(curve, "winner")) == 1


def test_disqualified_candidates_are_counted_and_wrong_ones_named(
    page: Element, search: Search
) -> None:
    text = text_of(page)
    assert "1 candidate computed a wrong result, and 1 candidate could not be run." in text
    assert "1 candidate: no <memory>" in text
    wrong = of_class(page, "kernel")[-1]
    assert "wrong: the results differ by 3 units" in text_of(wrong)
    matmul = next(s for s in search.all_searches() if s.reasons)
    code = next(text for text, reason in matmul.reasons.items() if reason.startswith("wrong"))
    default, member = leaves_of(matmul.control.member), matmul.members[code]
    shown = {"kernel.rows", "kernel.steps"}
    changed = {p: v for p, v in changes(matmul.control.member, member).items() if p in shown}
    assert changed  # of a draw at random, which differs in one of them
    for path, value in changed.items():
        assert f"{path.removeprefix('kernel.')} {default[path]} → {value}" in text_of(wrong)


class RefusingBuilder(CandidateBuilder):
    """A builder that refuses every second member."""

    def build(self, tasks: Iterable[Task], members: Iterable[Any]) -> Iterator[Candidate | Refusal]:
        """See `CandidateBuilder`."""
        for number, built in enumerate(super().build(tasks, members)):
            yield Refusal("split: <no> loop") if number % 2 else built


def test_refused_candidates_are_counted_and_never_measured(tmp_path: Path) -> None:
    options = Options("random", 36_000.0, measurements=8, model="small")
    search = Search(small_tasks()[:1], options, builder=RefusingBuilder())
    work(search, FixedWorker())
    (searched,) = search.all_searches()
    refused = len(searched.refusals)
    assert refused > 0 and searched.confirmed is not None
    assert not {*searched.members.values()} & {*searched.refusals}
    text = text_of(page_of([searched], tmp_path))
    assert f"{refused} candidates could not be built" in text
    assert f"{refused} candidates: split: <no> loop" in text
    assert [row["refused"] for row in rows_of([searched])] == [refused]


def test_the_page_holds_no_script_and_requests_nothing(page: Element) -> None:
    assert not list(page.iter("script"))
    attributes = {name for element in page.iter() for name in element.attrib}
    assert not attributes & {"src", "href", "srcset", "onclick", "style"}
    (style,) = page.iter("style")
    assert "url(" not in text_of(style)
    assert "@import" not in text_of(style)


def test_a_kernel_without_a_winner_keeps_its_default(tmp_path: Path) -> None:
    search = small_search(measurements=2, step=-0.05)
    page = page_of(search.all_searches(), tmp_path)
    assert "2 kernels keep their default schedule" in text_of(page)
    assert len(of_class(page, "same")) == 2
    assert not of_class(page, "changes")
    assert not of_class(page, "winner")
    assert [row["gain"] for row in rows_of(search.all_searches())] == [1.0, 1.0]


def test_a_search_that_measured_nothing_says_so(tmp_path: Path) -> None:
    search = Search(small_tasks(), Options())
    search.next_job(PLATFORM)  # which nobody measures
    page = page_of(search.all_searches(), tmp_path)
    assert "The search ended before any kernel was measured." in text_of(page)
    assert "0 of 2 measured, 0 faster" in text_of(page)


def test_a_search_that_was_interrupted_says_what_a_build_uses(
    search: Search, tmp_path: Path
) -> None:
    interrupted = [replace(s, confirmed=None) for s in search.all_searches()]
    text = text_of(page_of(interrupted, tmp_path))
    assert text.count("Not confirmed, so a build keeps the default schedule.") == 2
    assert f"after{CONTROL_MS * 0.7:.2f} ms" in text


def test_platforms_have_figures_of_their_own(search: Search, tmp_path: Path) -> None:
    other = replace(PLATFORM, engine="another engine")
    first, second = search.all_searches()
    page = page_of([first, second, replace(first, platform=other)], tmp_path)
    heads = [text_of(head) for head in of_class(page, "whole")]
    assert ["before4.00 ms" in heads[0], "before2.00 ms" in heads[1]] == [True, True]
    assert "WebAssembly in another engine 1.2" in text_of(page)


def test_the_table_has_the_kernels_that_save_the_most_time_first(search: Search) -> None:
    first, second = search.all_searches()
    slower = replace(second, control_ms=10 * CONTROL_MS)
    rows = rows_of([first, slower])
    assert rows[0] == {
        "kernel": "softmax",
        "rule": "rows",
        "calls": 1,
        "default_ms": 10 * CONTROL_MS,
        "tuned_ms": 10 * CONTROL_MS * CONFIRMED_RATIO,
        "gain": 1 / CONFIRMED_RATIO,
        "candidates": second.measured,
        "refused": 0,
    }
    assert rows[1]["kernel"] == "matmul"
