"""Compare the message of each wrong script with `wrong_scripts.txt`.

python -m tests.programs.test_wrong_scripts --write      # after a message has changed
"""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import indent

import pytest

from tests.programs.wrong_scripts import HEAD, WRONG
from webmlc import T, from_source
from webmlc.programs.script import ScriptError

GOLDEN = Path(__file__).with_name("wrong_scripts.txt")
NAMES = {"T": T, "n": T.symbol("n"), "OBJECT": object(), "range": range, "sum": sum, "open": open}


def message_of(script: str) -> str:
    """The message of a script, or the fact that it has none."""
    text = HEAD + indent(script[1:], "    ") if script.startswith(":") else script
    try:
        from_source(text, NAMES)
    except ScriptError as error:
        return str(error)
    return "ACCEPTED"


def expected_messages() -> dict[str, str]:
    parts = GOLDEN.read_text("utf-8").split("\n## ")[1:]
    return {title: body.strip("\n") for title, _, body in (p.partition("\n") for p in parts)}


@pytest.mark.parametrize("title", WRONG)
def test_each_wrong_script_has_one_underlined_message(title: str) -> None:
    message = message_of(WRONG[title])
    assert message == expected_messages()[title]
    first, source, underline = message.split("\n")
    assert first.startswith("script:")
    assert set(underline.strip()) == {"^"} and len(underline) <= len(source)


def test_every_message_belongs_to_a_script() -> None:
    assert list(expected_messages()) == list(WRONG)
    assert len(WRONG) >= 60


if __name__ == "__main__":
    if "--write" in sys.argv:
        messages = "".join(f"\n## {title}\n{message_of(WRONG[title])}\n" for title in WRONG)
        GOLDEN.write_text("# The messages of wrong scripts\n" + messages, "utf-8")
