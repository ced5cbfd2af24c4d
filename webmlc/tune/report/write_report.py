"""Write the page of a search: the whole model's time, and the gain of each kernel.

In: the searches of a model's kernels. Out: one HTML file that needs no other file, and no network.

    write_report(Path("tuned.html"), result.searches, options)
    rows_of(result.searches)[0]["gain"]

Platforms are not comparable, so each has its own figures. The page shows, from top to bottom: the
time of the whole model, a pair of bars per kernel, the share of the machine's limit, the curve of
each search, disqualified candidates, and the meaning of the parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from webmlc.core.replace_file import replace_file
from webmlc.target.kernel_work import KernelWork
from webmlc.tune.measure.platforms import Platform
from webmlc.tune.report.charts import (
    TARGET_SHARE,
    bar,
    curve,
    element,
    lowest_tick,
    page_text,
    share_chart,
)
from webmlc.tune.report.words import (
    budget,
    count,
    digits,
    duration,
    explanations,
    own_name_in_words,
    part_in_words,
    percent,
    times,
    value_in_words,
)
from webmlc.tune.search.outcomes import (
    Limit,
    Outcome,
    changed_pairs,
    limit_of,
    outcomes_of,
    run_ms,
    work_of,
)
from webmlc.tune.search.task_search import Options, TaskSearch

DEVICES = {"wasm": "WebAssembly", "webgpu": "WebGPU"}
"""The names of devices that people know."""


def write_report(
    path: Path,
    searches: Sequence[TaskSearch],
    options: Options,
    limits: Mapping[str, float] | None = None,
) -> Path:
    """Write the page of some searches to `path`, and return that.

    `limits` holds the GFLOPS that a benchmark measured, by the platform's key. Other platforms are
    compared with their fastest kernel.
    """
    title = f"Schedules of {options.model or 'a model'}"
    ordered = sorted(searches, key=lambda s: s.platform.key)
    sections = [
        part
        for _, group in groupby(ordered, key=lambda s: s.platform.key)
        for part in _platform_sections(list(group), options, limits or {})
    ]
    style = Path(__file__).with_name("report.css").read_text("utf-8")
    page = page_text(title, style, element("h1", title), *sections, *_parameter_section(searches))
    replace_file(path, page.encode())
    return path


def rows_of(searches: Iterable[TaskSearch]) -> list[dict[str, Any]]:
    """The table at the end of a search: a row for each kernel that was measured. Kernels that save
    the most time come first. `default_ms` and `tuned_ms` are the milliseconds of one call.
    """
    return [
        {
            "kernel": outcome.search.task.name,
            "rule": outcome.search.task.match.rule.name,
            "calls": outcome.calls,
            "default_ms": outcome.default_ms,
            "tuned_ms": outcome.tuned_ms,
            "gain": outcome.gain,
            "candidates": outcome.search.measured,
            "refused": len(outcome.search.refusals),
        }
        for outcome in outcomes_of(searches)
    ]


def _titled(title: str, intro: str) -> list[Element]:
    """The heading of a section, and what it shows."""
    return [element("h2", title), element("p", intro, class_="intro")]


def _folded(summary: str, *content: Element, **attributes: object) -> Element:
    """Content below a line that opens it."""
    return element("details", element("summary", summary), *content, **attributes)


def _terms(pairs: Iterable[tuple[str, str]], kind: str) -> Element:
    """Terms, each with its text."""
    terms = (element("div", element("dt", name), element("dd", text)) for name, text in pairs)
    return element("dl", *terms, class_=kind)


def _platform_sections(
    searches: Sequence[TaskSearch], options: Options, limits: Mapping[str, float]
) -> Iterator[Element]:
    """The part of the page about one platform."""
    outcomes = outcomes_of(searches)
    yield from _head(searches, outcomes, options)
    if outcomes:
        works = [(o, work_of(o.search)) for o in outcomes]
        yield from _kernel_section(outcomes)
        yield from _limit_section(works, limits.get(searches[0].platform.key))
        yield from _curve_section(outcomes)
    yield from _disqualified_section(searches)
    yield from _refusal_section(searches)


def _head(
    searches: Sequence[TaskSearch], outcomes: Sequence[Outcome], options: Options
) -> Iterator[Element]:
    """The time of the whole model before and after, and how it was measured."""
    platform, task = searches[0].platform, searches[0].task
    place = f"{DEVICES[task.device]} in {platform.engine} {platform.version}"
    yield element("p", f"{place}, {_machine(platform)}", class_="note")
    if outcomes:
        before, after = run_ms(outcomes)
        figure = element("div", element("div", times(before / after), class_="gain"), "as fast")
        bars = element(
            "div",
            _bars((("before", before), ("after", after)), max(before, after)),
            element("p", "Time of one run of the model in the kernels below", class_="note"),
        )
        yield element("section", figure, bars, class_="whole")
    else:
        yield element("p", "The search ended before any kernel was measured.", class_="error")
    now = datetime.now(UTC)
    facts = {
        "Model": options.model or "not a file",
        "Device": f"{DEVICES[task.device]} ({task.machine})",
        "Engine": f"{platform.engine} {platform.version}",
        "Machine": _machine(platform),
        "Date": f"{now.day} {now:%B %Y, %H:%M} UTC",
        "Budget": budget(options.seconds),
        "Strategy": options.strategy,
        "Measurements": f"{sum(s.measured for s in searches):,}",
        "Kernels": f"{len(outcomes)} of {len(searches)} measured, "
        f"{sum(o.ratio < 1 for o in outcomes)} faster",
    }
    yield _terms(facts.items(), "facts")


def _machine(platform: Platform) -> str:
    """The hardware of a platform, and its threads."""
    hardware = platform.hardware or platform.family
    return ", ".join(filter(None, (hardware, count(platform.threads, "thread"))))


def _kernel_section(outcomes: Sequence[Outcome]) -> Iterator[Element]:
    """The time of each kernel before and after, and the changed parameters."""
    longest = max(o.calls * max(o.default_ms, o.tuned_ms) for o in outcomes)
    changed = [o for o in outcomes if o.ratio != 1.0]
    same = [o for o in outcomes if o.ratio == 1.0]
    yield from _titled(
        "Kernels",
        "The time that all calls of a kernel take in one run, with the default schedule and with "
        "the fastest one. The kernel that saves the most time comes first. If the best gain of a "
        "search and the confirmed one differ much, measurements were noisy: search again on an "
        "idle machine.",
    )
    yield from (_kernel(outcome, longest) for outcome in changed)
    if same:
        verb = "keeps its" if len(same) == 1 else "keep their"
        title = f"{count(len(same), 'kernel')} {verb} default schedule"
        yield _folded(title, *(_kernel(o, longest) for o in same), class_="more")


def _kernel(outcome: Outcome, longest: float) -> Element:
    """One kernel: its name, its bars, its gain, the changed parameters, and its ONNX nodes."""
    task, calls = outcome.search.task, outcome.calls
    before, after = calls * outcome.default_ms, calls * outcome.tuned_ms
    rows = [("before", before), ("after", after)] if outcome.ratio != 1.0 else [("time", before)]
    note = [task.match.rule.name, count(calls, "call")]
    if calls > 1:
        note.append(f"{duration(outcome.tuned_ms)} each")
    details = [element("p", _attempts(outcome.search), class_="note")]
    if outcome.changes:
        details.append(_parameter_list(outcome.search, outcome.member))
    if outcome.search.confirmed is None:
        details.append(
            element("p", "Not confirmed, so a build keeps the default schedule.", class_="note")
        )
    if task.origin:
        nodes = element("code", ", ".join(task.origin))
        details.append(_folded(count(len(task.origin), "ONNX node"), nodes))
    return element(
        "article",
        element("div", element("h3", task.name), element("p", " · ".join(note), class_="note")),
        _bars(rows, longest),
        element("div", times(outcome.gain), class_="factor"),
        element("div", *details, class_="details"),
        class_="kernel" if outcome.ratio != 1.0 else "kernel same",
    )


def _bars(rows: Iterable[tuple[str, float]], longest: float) -> Element:
    """A labelled bar for each time, beside its milliseconds."""
    cells: list[Element] = []
    for label, milliseconds in rows:
        kind = "after" if label == "after" else "before"
        cells += [
            element("span", label),
            element("span", bar(milliseconds / longest, kind)),
            element("span", duration(milliseconds)),
        ]
    return element("div", *cells, class_="bars")


def _parameter_list(search: TaskSearch, member: Any) -> Element:
    """The parameters in which a member differs from the default, with both values: a line for each
    part of the kernel. A pointer over a parameter shows its meaning.
    """
    changes = changed_pairs(search.control.member, member)
    meanings = explanations(search.control.member) | explanations(member)
    lines = []
    for part, names in groupby(changes, key=part_in_words):
        items = [element("li", part)] if part else []
        for name in names:
            default, value = map(value_in_words, changes[name])
            values = (element("s", default), " → ", element("b", value))
            text = f"{own_name_in_words(name)} "
            items.append(element("li", text, *values, title=meanings.get(name, name)))
        lines.append(element("ul", *items, class_="changes"))
    return element("div", *lines)


def _limit_section(
    works: Sequence[tuple[Outcome, KernelWork]], measured_gflops: float | None
) -> Iterator[Element]:
    """How close kernels come to the limit, and the attempts on kernels below the target."""
    limit = limit_of(works, measured_gflops)
    shares = [
        (o, work, limit.share(work, o.default_ms), limit.share(work, o.tuned_ms))
        for o, work in works
    ]
    shares.sort(key=lambda row: -row[0].calls * row[0].tuned_ms * (1 - row[3]))
    below = [row for row in shares if row[3] < TARGET_SHARE]
    reached = [row for row in shares if row[3] >= TARGET_SHARE]
    source = (
        "a benchmark measured the operations of this machine"
        if limit.is_measured
        else "both are the best that any kernel of this search reached, and no measured limit of "
        "the machine"
    )
    yield from _titled(
        "Share of the limit",
        f"The limit is {digits(limit.gflops)} GFLOPS and {digits(limit.gigabytes)} GB/s: {source}. "
        "A kernel at the limit takes as long as its operations or its bytes do, whichever is more; "
        "each byte counts once, even if it comes from a cache. The line marks "
        f"{percent(TARGET_SHARE)}.",
    )
    if below:
        title = f"{count(len(below), 'kernel')} under {percent(TARGET_SHARE)}"
        yield element("h3", f"{title}, by the time that remains above the limit")
        yield _limit_table(below, limit)
    if reached:
        title = f"{count(len(reached), 'kernel')} at {percent(TARGET_SHARE)} or more"
        yield _folded(title, _limit_table(reached, limit), class_="more")


def _limit_table(rows: Iterable[tuple[Outcome, KernelWork, float, float]], limit: Limit) -> Element:
    """Kernels with their shares of the limit before and after, and the attempts."""
    headings = ("Kernel", "Share of the limit", "", "Limited by", "Speed", "Tried")
    lines = []
    for outcome, work, before, after in rows:
        is_arithmetic = limit.is_arithmetic(work)
        amount = work.flops if is_arithmetic else work.least
        speed = f"{digits(amount / outcome.tuned_ms / 1e6)} {'GFLOPS' if is_arithmetic else 'GB/s'}"
        cells: tuple[Element | str, ...] = (
            outcome.search.task.name,
            share_chart(before, after),
            percent(after) if before == after else f"{percent(before)} → {percent(after)}",
            "operations" if is_arithmetic else "bytes",
            speed,
            _attempts(outcome.search),
        )
        lines.append(
            element("tr", *(_cell(h, cell) for h, cell in zip(headings, cells, strict=True)))
        )
    head = element("thead", element("tr", *(element("th", heading) for heading in headings)))
    return element("table", head, element("tbody", *lines))


def _attempts(search: TaskSearch) -> str:
    """The attempts on a kernel. The best measurement of a search is often lucky, so the confirming
    trial has the last word.
    """
    if not search.measured:
        return "no candidates"
    text = f"{count(search.measured, 'candidate')}: best {times(1 / search.best)}"
    if search.confirmed is None:
        return text
    return f"{text}, confirmed {times(1 / search.confirmed[1])}"


def _cell(heading: str, content: Element | str) -> Element:
    """A cell of a table. Narrow screens show the heading before its text."""
    if isinstance(content, str) and heading not in ("", "Kernel"):
        return element("td", content, data_heading=heading)
    return element("td", content)


def _curve_section(outcomes: Sequence[Outcome]) -> Iterator[Element]:
    """The best relative time of each search over its measurements."""
    searched = [o for o in outcomes if o.search.curve]
    if not searched:
        return
    lowest = lowest_tick(searched)
    figures = []
    for outcome in searched:
        name = outcome.search.task.name
        names = (element("span", name, title=name), element("span", times(outcome.gain)))
        chart = curve(outcome.search, lowest)
        figures.append(element("figure", element("figcaption", *names), chart))
    yield from _titled(
        "Search curves",
        "The best time so far, relative to the default schedule, over the number of measurements. "
        "Each dot is a candidate. Those slower than 1.5 lie on the upper edge. The circle at the "
        "end is the winner as it was measured once more, with more rounds.",
    )
    yield element("div", *figures, class_="curves")


def _disqualified_section(searches: Sequence[TaskSearch]) -> Iterator[Element]:
    """Candidates without a time: candidates with wrong results, and candidates that failed."""
    disqualified = [
        (search, text, reason) for search in searches for text, reason in search.reasons.items()
    ]
    if not disqualified:
        return
    wrong = [item for item in disqualified if item[2].startswith("wrong")]
    failed = Counter(reason for *_, reason in disqualified if not reason.startswith("wrong"))
    yield from _titled(
        "Disqualified candidates",
        f"{count(len(wrong), 'candidate')} computed a wrong result, and "
        f"{count(failed.total(), 'candidate')} could not be run.",
    )
    if wrong:
        yield element(
            "p", "A wrong result is a bug of webmlc. Please report these parameters:",
            class_="error",
        )  # fmt: skip
    for search, text, reason in wrong:
        name = element("h3", search.task.name)
        note = element("p", f"{search.task.match.rule.name} · {reason}", class_="note")
        yield element(
            "article",
            element("div", name, note),
            _parameter_list(search, search.members[text]),
            class_="kernel",
        )
    if failed:
        yield _counts(Counter(reason.removeprefix("failed: ") for reason in failed.elements()))


def _refusal_section(searches: Sequence[TaskSearch]) -> Iterator[Element]:
    """Members that no primitives build, by the reason."""
    refused = Counter(reason for search in searches for reason in search.refusals.values())
    if refused:
        yield from _titled(
            "Refused candidates",
            f"{count(refused.total(), 'candidate')} could not be built: a step of the schedule "
            "would change what the kernel computes, or cannot be proved to keep it. None of them "
            "was measured.",
        )
        yield _counts(refused)


def _counts(reasons: Counter[str]) -> Element:
    """How many candidates each reason holds for."""
    items = (
        element("li", f"{count(number, 'candidate')}: {reason}")
        for reason, number in reasons.most_common()
    )
    return element("ul", *items)


def _parameter_section(searches: Sequence[TaskSearch]) -> Iterator[Element]:
    """The meanings of the parameters that the page names. Rules may use one name for several
    things.
    """
    meanings: set[tuple[str, str]] = set()
    for search in searches:
        default = search.control.member
        members = [outcome.member for outcome in outcomes_of([search])]
        for member in (*members, *(search.members[text] for text in search.reasons)):
            documented = explanations(default) | explanations(member)
            names = changed_pairs(default, member).keys() & documented.keys()
            meanings |= {(own_name_in_words(name), documented[name]) for name in names}
    if meanings:
        yield element("h2", "What the parameters mean")
        yield _terms(sorted(meanings), "meanings")
