"""Write HTML as trees of elements. Every text is escaped.

element("p", "The kernel ", element("b", name), class_="note")
page_text("Title", style, element("h1", "Title"))
"""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element


def element(tag: str, *content: Element | str, **attributes: object) -> Element:
    """An element with texts and elements inside. Trailing underscores of attributes' names are
    dropped, and the others are hyphens: `class_`, `stroke_width`.
    """
    result = Element(tag, {_attribute(name): str(value) for name, value in attributes.items()})
    for item in content:
        if isinstance(item, Element):
            result.append(item)
        elif len(result):
            result[-1].tail = (result[-1].tail or "") + item
        else:
            result.text = (result.text or "") + item
    return result


def page_text(title: str, style: str, *content: Element) -> str:
    """The text of a page that needs no other file, and that a phone shows at its width."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", style),
    )
    page = element("html", head, element("body", element("main", *content)), lang="en")
    return f"<!doctype html>\n{ElementTree.tostring(page, 'unicode', method='html')}\n"


def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")
