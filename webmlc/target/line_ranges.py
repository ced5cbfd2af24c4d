"""Count the lines of the parts of an emitted text.

In: texts that a newline joins, and the line on which the first one begins. Out: the lines of each.
`webmlc report` leads from a line of emitted code to its kernel with them, and back.

    >>> line_ranges(["a\\nb", "c"], first=10)
    [range(10, 12), range(12, 13)]
"""

from __future__ import annotations

from collections.abc import Iterable


def line_ranges(texts: Iterable[str], first: int) -> list[range]:
    """The lines of each text, if a newline joins them and the first one begins at line `first`."""
    ranges = []
    for text in texts:
        end = first + text.count("\n") + 1
        ranges.append(range(first, end))
        first = end
    return ranges
