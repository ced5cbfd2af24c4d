"""Say equal parts of a JSON list once, such as the layers of a network.

In: a list of JSON values. Out: a shorter list. Items that repeat with a period become one object.
In its template, a number that differs is written `{first+step}` inside a string, or
`{#first+step}` in place of a number. If the numbers are no progression, they are listed:
`{first,second,...}`. The twin of `unfold` is in `runtime_js/manifest.js`.

    >>> layers = [{"name": f"layer{i}.weight", "arguments": [7, 3 * i]} for i in range(4)]
    >>> fold(layers)
    [{'repeat': 4, 'items': [{'name': 'layer{0+1}.weight', 'arguments': [7, '{#0+3}']}]}]
    >>> unfold(fold(layers)) == layers
    True
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from webmlc.core.errors import PackageError

Json = Any
FEWEST = 3
"""Fold at least this many repetitions: two are not yet a pattern. Chosen by hand."""
LONGEST = 256
"""The most items of a period: a layer of a network has fewer. It bounds the time of the search."""
_NUMBER = re.compile(r"(?<!\d)(?:0|[1-9]\d*)(?!\d)")
_MARK = re.compile(r"\{(#?)([\d+,-]+)\}")


def fold(items: list[Json]) -> list[Json]:
    """Replace repetitions, from the first item on. A list with braces in strings stays as it is."""
    if any(map(_has_braces, items)):
        return items
    shapes = [json.dumps(_shape(item)) for item in items]
    folded: list[Json] = []
    position = 0
    while position < len(items):
        period, count = _repetition(shapes, position)
        if count < FEWEST:
            folded.append(items[position])
            position += 1
            continue
        end = position + period * count
        columns = [items[position + offset : end : period] for offset in range(period)]
        folded.append({"repeat": count, "items": [_template(column) for column in columns]})
        position = end
    return folded


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


def _repetition(shapes: Sequence[str], start: int) -> tuple[int, int]:
    """The period, and the number of its repetitions from `start`, that cover most items."""
    best = (1, 1)
    longest = min((len(shapes) - start) // FEWEST, LONGEST)
    for period in range(1, longest + 1):
        end = start + period
        while end < len(shapes) and shapes[end] == shapes[end - period]:
            end += 1
        count = (end - start) // period
        if count >= FEWEST and (count - 1) * period > (best[1] - 1) * best[0]:
            best = (period, count)
    return best


def _template(values: Sequence[Json]) -> Json:
    """One value for those of all repetitions, which differ in numbers only."""
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
    try:
        return [value for item in items for value in _unfold_item(item)]
    except (ValueError, IndexError) as error:
        raise PackageError(f"manifest.json: a repetition is malformed: {error}") from error


def _unfold_item(item: Json) -> Iterator[Json]:
    match item:
        case {"repeat": int(count), "items": [*templates]}:
            for index in range(count):
                yield from (_filled(template, index) for template in templates)
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
