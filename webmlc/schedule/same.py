"""A function as the key of a cache: equal only to itself.

Comparing or hashing a whole function takes longer than most steps. A rule that matches a kernel
asks the same questions of the same functions as the schedule that it then builds.
"""

from __future__ import annotations

from webmlc.loops.ir import LoopFunction


class Same:
    """A function that is equal to no other, however similar."""

    __slots__ = ("function",)

    def __init__(self, function: LoopFunction) -> None:
        self.function = function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.function is other.function

    def __hash__(self) -> int:
        return id(self.function)
