"""Write equal parts of a JSON list once, such as the layers of a network.

In: a list of JSON values. Out: a shorter list. Items that repeat with a period become one object.
The `items` of the object are the templates of one period. They repeat in turn until the list has
`count` items. The last repetition may be incomplete, as the last layer of a network often is.

A number that differs is written `{first+step}` inside a string, or `{#first+step}` in place of a
number. Numbers that are no progression are listed, one for each repetition: `{first,second,...}` or
`{#first,second,...}`. `runtime_js/repetitions.js` is `unfold` in JavaScript.

    >>> layers = [{"name": f"layer{i}.weight", "arguments": [7, 3 * i]} for i in range(4)]
    >>> fold(layers)
    [{'count': 4, 'items': [{'name': 'layer{0+1}.weight', 'arguments': [7, '{#0+3}']}]}]
    >>> unfold(fold(layers)) == layers
    True
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from webmlc.core.errors import PackageError

Json = Any
PERIOD_LIMIT = 256
"""The most items of a period. A layer of a network has fewer. The limit bounds the search time."""
ITEM_LIMIT = 1_000_000
"""The most items of an unfolded list. A damaged file could ask for more, and exhaust memory."""
FRAME = 24
"""The characters of a repetition around its templates: `{"count":...,"items":[...]}`."""
MARK = 8
"""The characters that marks such as `{0+1}` add to a template. An estimate is enough: the folded
manifests of MiniLM and ResNet-50 are the same with any number from 4 to 32.
"""
_NUMBER = re.compile(r"(?<!\d)(?:0|[1-9]\d*)(?!\d)")
_MARK = re.compile(r"\{(#?)([\d+,-]+)\}")


def fold(items: list[Json]) -> list[Json]:
    """Replace repetitions so that the text is short. A list with braces in strings stays as it is.

    Each repetition is as long as the plain items at most.
    """
    if any(map(_has_braces, items)):
        return items
    ends = [0, *accumulate(len(_compact(item)) + 1 for item in items)]
    folded: list[Json] = []
    position = 0
    periods = _periods(items, ends)
    while position < len(items):
        period, count = periods[position]
        end = position + count
        repeated = items[position:end]
        repetition = _repetition(repeated, period)
        length = len(_compact(repetition)) + 1  # with its comma
        folded += [repetition] if length <= ends[end] - ends[position] else repeated
        position = end
    return folded


def _repetition(items: Sequence[Json], period: int) -> Json:
    templates = [_template(items[start::period]) for start in range(period)]
    return {"count": len(items), "items": templates}


def _periods(items: Sequence[Json], ends: Sequence[int]) -> list[tuple[int, int]]:
    """The period and the number of items of the repetition to fold from each position, by dynamic
    programming: (1, 1) for an item that stays plain, since its repetition is longer than it.
    `ends[i]` is the position in the text where item `i` begins and the item before it ends.

    The search runs backwards: the shortest text from a position follows from the shortest texts
    from later positions. `shortest` holds estimates of their lengths. Items match if they differ in
    numbers only. When `matches` items from `i` on each match the item one `period` later, the
    repetition has `period + matches` items.
    """
    shapes = [_compact(_shape(item)) for item in items]
    shortest = [0] * (len(items) + 1)
    periods = [(1, 1)] * len(items)
    later: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=PERIOD_LIMIT))
    runs: dict[int, tuple[int, int]] = {}  # by period: where matches in a row begin, their number
    for i in reversed(range(len(items))):
        shortest[i] = ends[i + 1] - ends[i] + shortest[i + 1]
        for j in later[shapes[i]]:  # the nearest first
            if (period := j - i) > PERIOD_LIMIT:
                break
            begin, matches = runs.get(period, (0, 0))
            matches = matches + 1 if begin == i + 1 else 1
            runs[period] = (i, matches)
            if matches < period:  # the second repetition is incomplete
                continue
            length = ends[j] - ends[i] + period * MARK + FRAME + shortest[j + matches]
            if length < shortest[i]:
                shortest[i], periods[i] = length, (period, period + matches)
        later[shapes[i]].appendleft(i)
    return periods


def _compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))


def _has_braces(value: Json) -> bool:
    match value:
        case str():
            return "{" in value or "}" in value
        case dict():
            return any(map(_has_braces, value.values()))
        case list():
            return any(map(_has_braces, value))
    return False


def _shape(value: Json) -> Json:
    """The value without the numbers that may differ between repetitions."""
    match value:
        case str():
            return _NUMBER.sub("0", value)
        case dict():
            return {key: _shape(inner) for key, inner in value.items()}
        case list():
            return [_shape(inner) for inner in value]
        case bool():
            return value
        case int():
            return 0
    return value


def _template(values: Sequence[Json]) -> Json:
    """The template of the values of all repetitions, which differ in numbers only."""
    first = values[0]
    match first:
        case dict():
            return {key: _template([value[key] for value in values]) for key in first}
        case list():
            return [_template(items) for items in zip(*values, strict=True)]
        case bool() | float() | None:
            return first
        case int():
            return first if len(set(values)) == 1 else f"{{#{_series(values)}}}"
    parts = [_NUMBER.findall(value) for value in values]
    columns = [list(map(int, column)) for column in zip(*parts, strict=True)]
    marks = iter([f"{{{_series(n)}}}" if len(set(n)) > 1 else str(n[0]) for n in columns])
    return _NUMBER.sub(lambda _: next(marks), first)


def _series(numbers: Sequence[int]) -> str:
    """A progression, or a list of numbers."""
    step = numbers[1] - numbers[0]
    if all(b - a == step for a, b in pairwise(numbers)):
        return f"{numbers[0]}+{step}"
    return ",".join(map(str, numbers))


def unfold(items: list[Json]) -> list[Json]:
    """Replace each repetition by its items. Raises `PackageError` if a repetition is malformed, or
    if the list would have more than `ITEM_LIMIT` items.
    """
    try:
        total = sum(map(_count, items))
        if total > ITEM_LIMIT:
            raise ValueError(f"{total} items")
        return [value for item in items for value in _unfold_item(item)]
    except (ValueError, TypeError, IndexError) as error:
        raise PackageError(f"manifest.json: a repetition is malformed: {error}") from error


def _count(item: Json) -> int:
    """The number of items that an item of a folded list stands for."""
    match item:
        case {"count": bool()}:
            raise ValueError("its count is no number")
        case {"count": int(count), "items": [_, *_]} if count > 0:
            return count
        case {"count": _}:
            raise ValueError("it needs a positive count and templates")
    return 1


def _unfold_item(item: Json) -> Iterator[Json]:
    match item:
        case {"count": count, "items": templates}:
            for number in range(count):
                repetition, index = divmod(number, len(templates))
                yield _filled(templates[index], repetition)
        case _:
            yield item


def _filled(template: Json, repetition: int) -> Json:
    """The value that a template stands for in the repetition of this number."""
    match template:
        case dict():
            return {key: _filled(value, repetition) for key, value in template.items()}
        case list():
            return [_filled(value, repetition) for value in template]
        case str():
            mark = _MARK.fullmatch(template)
            if mark is not None and mark[1]:
                return _number(mark[2], repetition)
            return _MARK.sub(lambda m: str(_number(m[2], repetition)), template)
    return template


def _number(series: str, repetition: int) -> int:
    """The number of a repetition in a series: `first+step` or a list."""
    if "+" in series:
        first, step = series.split("+")
        return int(first) + repetition * int(step)
    return int(series.split(",")[repetition])
