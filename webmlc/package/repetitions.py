"""Write equal parts of a JSON list once, such as the layers of a network.

In: a list of JSON values. Out: a shorter list. Items that repeat with a period become one object.
The `items` of the object are the templates of one period. They repeat in turn until the list has
`count` items. The last repetition may be incomplete, as the last layer of a network often is.

A number that differs is written `{first+step}` inside a string, or `{#first+step}` in place of a
number. If the numbers are no progression, they are listed: `{first,second,...}`. The twin of
`unfold` is in `runtime_js/repetitions.js`.

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
LONGEST = 256
"""The most items of a period. A layer of a network has fewer. The limit bounds the search time."""
MOST = 1_000_000
"""The most items of a list that is read. A damaged file could have more, and exhaust memory."""
FRAME, MARK = 24, 8
"""The characters around the template of a repetition, and the characters that the marks add to each
item. The search needs only an estimate: with 4 to 32 characters for a mark, the manifests of MiniLM
and ResNet-50 are the same.
"""
_NUMBER = re.compile(r"(?<!\d)(?:0|[1-9]\d*)(?!\d)")
_MARK = re.compile(r"\{(#?)([\d+,-]+)\}")


def fold(items: list[Json]) -> list[Json]:
    """Replace repetitions so that the text is shortest, by dynamic programming. A list with braces
    in strings stays as it is.
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
        is_shorter = len(_compact(repetition)) < ends[end] - ends[position]
        folded += [repetition] if is_shorter else repeated
        position = end
    return folded


def _repetition(items: Sequence[Json], period: int) -> Json:
    templates = [_template(items[start::period]) for start in range(period)]
    return {"count": len(items), "items": templates}


def _periods(items: Sequence[Json], ends: Sequence[int]) -> list[tuple[int, int]]:
    """For each position, the period and the number of the items to fold from there: (1, 1) for an
    item that stays as it is. `ends` are the positions in the text where the items end.

    The search runs backwards: the shortest text from a position follows from the shortest texts
    from later positions.
    """
    shapes = [_compact(_shape(item)) for item in items]
    lengths = [0] * (len(items) + 1)
    periods = [(1, 1)] * len(items)
    later: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=LONGEST))
    matches: dict[int, tuple[int, int]] = {}  # by period: where items match, and how many in a row
    for i in reversed(range(len(items))):
        lengths[i] = ends[i + 1] - ends[i] + lengths[i + 1]
        for j in later[shapes[i]]:
            if (period := j - i) > LONGEST:
                break
            position, count = matches.get(period, (0, 0))
            count = count + 1 if position == i + 1 else 1
            matches[period] = (i, count)
            if count < period:  # less than two repetitions
                continue
            template = ends[j] - ends[i] + period * MARK + FRAME
            if (length := template + lengths[j + count]) < lengths[i]:
                lengths[i], periods[i] = length, (period, period + count)
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
    numbers = [list(map(int, column)) for column in zip(*parts, strict=True)]
    series = iter([f"{{{_series(n)}}}" if len(set(n)) > 1 else str(n[0]) for n in numbers])
    return _NUMBER.sub(lambda _: next(series), first)


def _series(numbers: Sequence[int]) -> str:
    """A progression, or a list of numbers."""
    step = numbers[1] - numbers[0]
    if all(b - a == step for a, b in pairwise(numbers)):
        return f"{numbers[0]}+{step}"
    return ",".join(map(str, numbers))


def unfold(items: list[Json]) -> list[Json]:
    """Replace each repetition by its items. Raises `PackageError` if a template is malformed."""
    counts = [item["count"] for item in items if isinstance(item, dict) and "count" in item]
    try:
        if sum(counts) > MOST:
            raise ValueError(f"{sum(counts)} items")
        return [value for item in items for value in _unfold_item(item)]
    except (ValueError, TypeError, IndexError) as error:
        raise PackageError(f"manifest.json: a repetition is malformed: {error}") from error


def _unfold_item(item: Json) -> Iterator[Json]:
    match item:
        case {"count": int(count), "items": [_, *_] as templates}:
            for number in range(count):
                repetition, index = divmod(number, len(templates))
                yield _filled(templates[index], repetition)
        case _:
            yield item


def _filled(template: Json, index: int) -> Json:
    """The value that a template stands for in one repetition."""
    match template:
        case dict():
            return {key: _filled(value, index) for key, value in template.items()}
        case list():
            return [_filled(value, index) for value in template]
        case str():
            mark = _MARK.fullmatch(template)
            if mark is not None and mark[1]:
                return _number(mark[2], index)
            return _MARK.sub(lambda m: str(_number(m[2], index)), template)
    return template


def _number(series: str, index: int) -> int:
    """A number of a series: `first+step` or a list."""
    if "+" in series:
        first, step = series.split("+")
        return int(first) + index * int(step)
    return int(series.split(",")[index])
