"""Write the JavaScript reference from the runtime's declarations (`.d.ts`).

Each exported declaration becomes a heading, its comment as prose, and its code. Comments of members
stay in the code, where an editor shows them too.
"""

from __future__ import annotations

import re

HEAD = """\
# JavaScript reference

The declarations of the runtime, with their comments. A package's own `model.d.ts` has the names
and types of its inputs and outputs. A page imports `webmlc` from the folder of a package
(`"./model/webmlc.js"`) or from npm (`"webmlc"`).
"""
COMMENT = re.compile(r"\s*/\*\*(.*?)\*/\s*$", re.DOTALL)
EXPORT = re.compile(
    r"(?P<comment>^/\*\*(?:(?!\*/).)*\*/\n)?"
    r"^(?P<code>export (?:interface|namespace|type|class|function|const) (?P<name>\w+).*?)"
    r"(?=^(?:/\*\*|//|declare |export |import |interface )|\Z)",
    re.MULTILINE | re.DOTALL,
)


def prose_of(comment: str | None) -> str:
    """The text of a comment, without its stars."""
    match = COMMENT.match(comment or "")
    if match is None:
        return ""
    lines = [re.sub(r"^\s*\* ?", "", line).strip() for line in match[1].splitlines()]
    return "\n".join(lines).strip()


def declaration_section(name: str, declarations: list[re.Match[str]]) -> str:
    """The declarations of one name, such as the overloads of a function."""
    prose = (prose_of(match["comment"]) for match in declarations)
    code = "\n".join(match["code"].strip() for match in declarations)
    return "\n\n".join(filter(None, (f"### `{name}`", *prose, f"```ts\n{code}\n```")))


def declarations_page(modules: dict[str, str]) -> str:
    """The page of all modules: a section for each, in which functions come first."""
    sections = [HEAD]
    for module, text in modules.items():
        names: dict[str, list[re.Match[str]]] = {}
        for match in EXPORT.finditer(text):
            names.setdefault(match["name"], []).append(match)
        if not names:
            raise ValueError(f"{module} exports no declaration")
        rows = sorted(
            names.items(), key=lambda row: not row[1][0]["code"].startswith("export function")
        )
        sections += [f"## {module}", *(declaration_section(*row) for row in rows)]
    return "\n\n".join(sections) + "\n"
