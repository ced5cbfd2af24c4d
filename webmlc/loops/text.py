"""Print and parse loop functions as Python text: `parse_function(print_function(f)) == f`."""

from webmlc.loops.parse_text import LoopTextError, parse_function
from webmlc.loops.print_text import draw, print_function, print_statement

__all__ = ["LoopTextError", "draw", "parse_function", "print_function", "print_statement"]
