r"""Write a regular expression of ONNX so that Python and JavaScript read it alike.

In: a pattern of RE2, whose letters, digits and spaces are ASCII. Out: a pattern for Python's `re`
(`compiled_pattern`), and for JavaScript's `RegExp` with the flag `u`. It begins with `(?i)` if the
case of letters does not matter, and has no other flags:

    >>> portable_pattern(r"(?i)\w+\.$")
    '(?i)[0-9A-Z_a-z]+\\.(?![\\s\\S])'

`WORD` stands for a letter of any language. Both hosts search the alternatives of a pattern from
left to right, as RE2 does by default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from webmlc.core.errors import ModelError

_CLASSES = {"d": "09", "w": "09AZ__az", "s": "\t\n\f\r  "}
"""By letter, the ranges of a class in order: the first and the last character of each."""
_NAMED = {
    "alnum": "09AZaz", "alpha": "AZaz", "ascii": "\0\x7f", "blank": "\t\t  ",
    "cntrl": "\0\x1f\x7f\x7f", "digit": "09", "graph": "!~", "lower": "az", "print": " ~",
    "punct": "!/:@[`{~", "space": "\t\r  ", "upper": "AZ", "word": "09AZ__az", "xdigit": "09AFaf",
}  # fmt: skip
_ESCAPES = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_END = r"(?![\s\S])"
_START = r"(?<![\s\S])"
_WORD = "[0-9A-Z_a-z]"
_EDGES = f"(?<={_WORD})", f"(?<!{_WORD})", f"(?={_WORD})", f"(?!{_WORD})"
_PLACES = {
    r"\A": _START,
    r"\z": _END,
    r"\b": f"(?:{_EDGES[0]}{_EDGES[3]}|{_EDGES[1]}{_EDGES[2]})",
    r"\B": f"(?:{_EDGES[0]}{_EDGES[2]}|{_EDGES[1]}{_EDGES[3]})",
}
"""The escapes that match a place, and no character."""
_SYNTAX = r"^$\.*+?()[]{}|/"
WORD = r"[\p{L}\p{N}_]"
"""A letter or digit of any language, or an underscore, as RE2 and JavaScript write it."""
_QUANTIFIER = re.compile(r"[*+?]|\{[0-9]+(,[0-9]*)?\}")
_TOKEN = re.compile(
    rf"{re.escape(WORD)}|"
    r"\\x\{[0-9A-Fa-f]+\}|\\x[0-9A-Fa-f]{2}|\\0[0-7]{0,2}|\\[1-7][0-7]{1,2}|\\."
    rf"|\[:\^?\w+:\]|\(\?P?<\w+>|\(\?:|\(\?|{_QUANTIFIER.pattern.replace('(', '(?:')}|.",
    re.DOTALL,
)


def portable_pattern(pattern: str) -> str:
    """Rewrite a pattern. Raises `ModelError` if the hosts cannot read it."""
    flags = re.match(r"\(\?([ims]+)\)", pattern)
    names = flags[1] if flags else ""
    try:
        tokens = _TOKEN.findall(pattern[flags.end() if flags else 0 :])
        result = "(?i)" * ("i" in names) + "".join(_tokens(tokens, names))
        compiled_pattern(result)
    except (re.error, OverflowError, ValueError) as error:
        raise ModelError(
            f"the regular expression {pattern!r} cannot be read in Python and in pages: {error}"
        ) from None
    return result


def _tokens(tokens: list[str], flags: str) -> Iterator[str]:
    """The tokens as both hosts read them. Raises `ValueError`."""
    is_class, last = False, ""
    for token in tokens:
        is_first = is_class and last in ("[", "[^")
        is_opening = token == "[" and not is_class
        if not is_class and token == "+" and _QUANTIFIER.fullmatch(last):
            raise ValueError(f"{last}+ is no repetition of RE2")
        yield _in_class(token, last) if is_class else _outside(token, flags)
        is_class = is_opening or (is_class and (token != "]" or is_first))
        if (last, token) == ("[", "^"):
            last = "[^"
        else:
            last = token if is_opening or token != "[" else r"\["


@lru_cache
def compiled_pattern(pattern: str) -> re.Pattern[str]:
    """A rewritten pattern, for Python. Each text of a run asks for it again."""
    return re.compile(pattern.replace(WORD, r"\w"))


def _outside(token: str, flags: str) -> str:
    """A token outside of classes. `^` and `$` are the ends of the text, or of lines."""
    ranges = _ranges(token)
    if ranges and token[0] == "\\":
        return f"[{ranges}]"
    if token.startswith(("(?P<", "(?<")):
        return "("  # nothing reads the names of groups
    if token.startswith("[:"):  # a class of these characters
        return f"[{''.join(map(_literal, token[1:-1]))}]"
    if token == "(?":
        raise ValueError("the only groups are (…), (?:…) and (?P<name>…), and flags come first")
    lines = "m" in flags
    forms = _PLACES | {
        ".": r"[\s\S]" if "s" in flags else r"[^\n]",
        "^": r"(?<![^\n])" if lines else _START,
        "$": r"(?![^\n])" if lines else _END,
    }
    if token in forms:
        return forms[token]
    if token in (WORD, "[", "(", "(?:", ")", "|") or _QUANTIFIER.fullmatch(token):
        return token
    return _literal(_character(token))


def _in_class(token: str, last: str) -> str:
    """A token of a class, which `last` precedes."""
    if ranges := _ranges(token):
        return ranges
    if token == WORD:
        raise ValueError(f"{WORD} in a class")
    if (token == "]" and last not in ("[", "[^")) or (token == "^" and last == "["):
        return token
    if token == "-" and not _ranges(last):
        return token
    if len(token) > 1 and token[0] != "\\":  # several characters, such as {2}
        return "".join(map(_literal, token))
    return _literal(_character(token))


def _ranges(token: str) -> str:
    r"""The ranges of `\d`, `\D`, `[:digit:]` or `[:^digit:]`; "" for any other token."""
    if token.startswith("[:") and len(token) > 2:
        name, is_negative = token[2:-2].removeprefix("^"), token[2] == "^"
        if name not in _NAMED:
            raise ValueError(f"bad class {token}")
        ranges = _NAMED[name]
    elif token[:1] == "\\" and token[1:].lower() in _CLASSES:
        ranges, is_negative = _CLASSES[token[1:].lower()], token[1].isupper()
    else:
        return ""
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    if is_negative:
        ends = [-1, *(ord(end) for _, end in pairs)]
        starts = [*(ord(start) for start, _ in pairs), 0x110000]
        pairs = [(chr(a + 1), chr(b - 1)) for a, b in zip(ends, starts, strict=True) if a + 1 < b]
    return "".join(
        _literal(start) if start == end else f"{_literal(start)}-{_literal(end)}"
        for start, end in pairs
    )


def _character(token: str) -> str:
    r"""The character that a token stands for, such as `\x{1F600}`, `\101` or `\'`."""
    escaped = token[1:]
    if token[0] != "\\":
        return token
    if not escaped:
        raise ValueError("a backslash at the end")
    if escaped[0] == "x" and len(escaped) > 1:
        return chr(int(escaped[1:].strip("{}"), 16))
    if escaped[0] in "01234567" and (len(escaped) > 1 or escaped == "0"):
        return chr(int(escaped, 8))
    if escaped in _ESCAPES:
        return _ESCAPES[escaped]
    if escaped.isascii() and escaped.isalnum():
        raise ValueError(f"bad escape {token}")
    return escaped


def _literal(character: str) -> str:
    """A character that stands for itself, in classes and outside."""
    if 0xD800 <= ord(character) < 0xE000:
        raise ValueError(f"U+{ord(character):X} is no character")
    if character in _SYNTAX:
        return f"\\{character}"
    if ord(character) > 0x7F or (character.isprintable() and character not in "-&~"):
        return character
    return f"\\x{ord(character):02x}"
