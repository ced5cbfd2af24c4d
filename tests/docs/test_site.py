"""The documentation site has every page, and quotes errors that exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from docs.site import prepare
from docs.site.declarations import declarations_page
from docs.site.lessons import lessons
from tests.docs.prose import ROOT, code_blocks

NAVIGATION = (ROOT / "docs" / "site" / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
PAGES = re.findall(r"(\S+\.md)$", NAVIGATION, re.MULTILINE)
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
ERRORS = [text.strip() for kind, text in code_blocks(TROUBLESHOOTING) if kind == "text"]
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
"""Code of a page, whose brackets are no links."""
LESSONS = {f"course/{lesson.stem}.md" for lesson in lessons()}
"""The pages that `docs/site/course.py` writes, which `make docs` runs."""
FEWEST_ERRORS = 15
"""Errors that the page of errors promises to explain."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    prepare.write_pages(folder)
    return folder


def test_every_page_is_in_the_navigation_once(site: Path) -> None:
    written = {p.relative_to(site).as_posix() for p in site.rglob("*.md")}
    assert written | LESSONS == set(PAGES)
    assert len(PAGES) == len(set(PAGES))


def test_every_page_of_the_folder_is_in_the_site(site: Path) -> None:
    pages = [p.relative_to(ROOT / "docs") for p in (ROOT / "docs").rglob("*.md")]
    pages.remove(Path("walkthrough.template.md"))
    assert [page for page in pages if page.parts[0] != "site" and not (site / page).is_file()] == []


def test_links_and_pictures_exist(site: Path) -> None:
    """mkdocs checks this as well, and checks anchors; this needs no mkdocs."""
    links = [
        (page, link)
        for page in site.rglob("*.md")
        for link in re.findall(r"\]\(([^)#\s]+)", re.sub(CODE, "", page.read_text("utf-8")))
        if not re.match(r"https?:", link)
    ]
    assert len(links) > 20
    files = [(link, (page.parent / link).resolve()) for page, link in links]
    lessons = {(site / lesson).resolve() for lesson in LESSONS}
    assert [link for link, file in files if file not in lessons and not file.is_file()] == []


def test_names_of_pages_become_links() -> None:
    page = (
        "See `docs/hosts.md`, [`docs/hosts.md`](x) and `docs/none.md`.\n```\n`docs/hosts.md`\n```\n"
    )
    linked = prepare.link_pages("doors/jax.md", page, {"hosts.md": "Hosts"})
    assert linked == page.replace("See `docs/hosts.md`", "See [Hosts](../hosts.md)")


def test_links_of_guides_move() -> None:
    page = "[a](docs/hosts.md) [b](CONTRIBUTING.md#test) [c](docs/doors/jax.md)"
    moved = "[a](hosts.md) [b](contributing.md#test) [c](doors/jax.md)"
    assert prepare.from_root(page) == moved


def test_declarations_become_sections() -> None:
    types = (
        '/** Shapes. */\nexport interface A {\n  /** Rows. */\n  n: number;\n}\n\nimport "x";\n'
        "/**\n * Load it.\n * Twice.\n */\nexport function load(a: A): A;\n"
        "export function load(): void;\nexport class E extends Error {}\n"
    )
    page = declarations_page({"module": types}).partition("## module")[2]
    assert page == (
        "\n\n### `load`\n\nLoad it.\nTwice.\n\n```ts\nexport function load(a: A): A;\n"
        "export function load(): void;\n```\n\n### `A`\n\nShapes.\n\n```ts\nexport interface A {\n"
        "  /** Rows. */\n  n: number;\n}\n```\n\n### `E`\n\n```ts\n"
        "export class E extends Error {}\n```\n"
    )


def test_every_exported_declaration_is_in_the_reference(site: Path) -> None:
    reference = (site / "javascript.md").read_text("utf-8")
    for path in prepare.DECLARATIONS.values():
        text = (ROOT / path).read_text("utf-8")
        pattern = r"^export (?:declare )?(?:interface|type|class|function|const) (\w+)"
        names = re.findall(pattern, text, re.MULTILINE)
        assert names
        assert [name for name in names if f"### `{name}`" not in reference] == []


def test_operators_are_those_of_the_table(site: Path) -> None:
    page = (site / "operators.md").read_text("utf-8")
    assert re.search(r"^\| `Abs` \| 1 \| elementwise \| float32 \| 1 / 1 \| 1 / 1 \|$", page, re.M)
    (count,) = re.findall(r"these (\d+) operators", page)
    compiled, refused = page.rsplit("\n## ", 1)
    assert len(re.findall(r"^\| `", compiled, re.MULTILINE)) == int(count) > 200
    assert re.search(r"^\| `[\w.]*PagedAttention` \| \w", refused, re.MULTILINE)


@cache
def texts_of_the_source() -> str:
    """The source, with joined texts written as one, and … for each value in a text."""
    files = [*(ROOT / "webmlc").rglob("*.py"), *(ROOT / "runtime_js").rglob("*.js")]
    source = "\n".join(file.read_text("utf-8") for file in files)
    joined = re.sub(r"""["`](\s*\+\s*|\s*\n\s*f?)["`]""", "", source)
    return re.sub(r'"?\$?\{[^{}]*\}"?', "…", joined)


def test_there_are_enough_errors() -> None:
    assert len(set(ERRORS)) == len(ERRORS) >= FEWEST_ERRORS


@pytest.mark.parametrize("error", ERRORS)
def test_a_quoted_error_exists(error: str) -> None:
    assert "\n" not in error, "one message in a block"
    assert error in texts_of_the_source()


@pytest.mark.parametrize("error", ["the model's opset was …", "input … is missing; it takes …"])
def test_an_error_that_does_not_exist_is_not_found(error: str) -> None:
    assert error not in texts_of_the_source()
