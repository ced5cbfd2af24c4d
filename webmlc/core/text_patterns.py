r"""Write a regular expression of ONNX so that Python and JavaScript read it alike.

In: a pattern of RE2, whose letters, digits and spaces are ASCII. Out: a pattern for Python's `re`
(`compiled_pattern`), and for JavaScript's `RegExp` with the flag `u`. It begins with `(?i)` if the
case of letters does not matter, and has no other flags:

    >>> portable_pattern(r"(?i)\w+\.$")
    '(?i)[0-9A-Za-z_]+\\.(?![\\s\\S])'

`WORD` stands for a letter of any language. Both hosts search the alternatives of a pattern from
left to right, as RE2 does by default.
"""

from __future__ import annotations

import re

from webmlc.core.errors import ModelError

_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\f\r "}
_END = r"(?![\s\S])"
_START = r"(?<![\s\S])"
_NAMED = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "digit": "0-9", "lower": "a-z", "upper": "A-Z",
    "space": r"\t\n\v\f\r ", "blank": r"\t ", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
    "punct": r"!-\/:-@\[-`{-~",
}  # fmt: skip
_SYNTAX = r"^$\.*+?()[]{}|/"
WORD = r"[\p{L}\p{N}_]"
"""A letter or digit of any language, or an underscore, as RE2 and JavaScript write it."""
_TOKEN = re.compile(
    rf"{re.escape(WORD)}|" r"\\x\{[0-9A-Fa-f]+\}|\\.|\[:\w+:\]|\(\?P?<\w+>|\(\?[ims]+\)|.",
    re.DOTALL,
)
_ASCII_WORD = "[0-9A-Za-z_]"
_EDGES = {
    r"\b": "(?:(?<=W)(?!W)|(?<!W)(?=W))".replace("W", _ASCII_WORD),
    r"\B": "(?:(?<=W)(?=W)|(?<!W)(?!W))".replace("W", _ASCII_WORD),
}
"""The edges of words whose letters are ASCII."""


def portable_pattern(pattern: str) -> str:
    """Rewrite a pattern. Raises `ModelError` if the hosts cannot read it."""
    flags = re.match(r"\(\?([ims]+)\)", pattern)
    names = flags[1] if flags else ""
    parts, is_class, last = ["(?i)" * ("i" in names)], False, ""
    for token in _TOKEN.findall(pattern[flags.end() if flags else 0 :]):
        is_first = is_class and last in ("[", "[^")
        parts.append(_in_class(token, last) if is_class else _outside(token, names))
        is_class = token == "[" or (is_class and (token != "]" or is_first))
        last = "[^" if (last, token) == ("[", "^") else token
    try:
        compiled_pattern("".join(parts))
    except re.error as error:
        raise ModelError(
            f"the regular expression {pattern!r} cannot be read in Python and in pages: {error}"
        ) from None
    return "".join(parts)


def compiled_pattern(pattern: str) -> re.Pattern[str]:
    """A rewritten pattern, for Python."""
    return re.compile(pattern.replace(WORD, r"\w"), 0 if WORD in pattern else re.ASCII)


def _outside(token: str, flags: str) -> str:
    """A token outside of classes. `^` and `$` are the ends of the text, or of lines."""
    if token[0] == "\\" and token[1:].lower() in _CLASSES:
        return f"[{'^' * token[1].isupper()}{_CLASSES[token[1:].lower()]}]"
    if token.startswith(("(?P<", "(?<")) and token[-1] == ">":
        return "("  # nothing reads the names of groups
    lines = "m" in flags
    forms = {
        ".": r"[\s\S]" if "s" in flags else r"[^\n]",
        "^": r"(?<![^\n])" if lines else _START,
        "$": r"(?![^\n])" if lines else _END,
        "]": r"\]",
        **_EDGES,
        r"\A": _START,
        r"\z": _END,
    }
    return forms.get(token, _character(token))


def _in_class(token: str, last: str) -> str:
    if token[0] == "\\" and token[1:] in _CLASSES:
        return _CLASSES[token[1:]]
    if token.startswith("[:"):
        return _NAMED.get(token[2:-2], token)
    if (token == "]" and last in ("[", "[^")) or token == "[":
        return f"\\{token}"
    if token == "-" and last[0] == "\\" and last[1:] in _CLASSES:
        return r"\x2d"  # no range begins with a class
    return _character(token)


def _character(token: str) -> str:
    r"""A character that may be escaped: `\x{1F600}` as itself, and `\'` without its backslash."""
    if token.startswith(r"\x{"):
        token = "\\" + chr(int(token[3:-1], 16))
    escaped = token[1:]
    if token[0] == "\\" and not escaped.isalnum() and escaped not in (*_SYNTAX, "-"):
        return escaped
    if token == r"\-":
        return r"\x2d"
    return token
