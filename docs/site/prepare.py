"""Write the folder from which mkdocs builds the documentation site.

In: the pages of `docs/`, the guides of the top folder, the operator table, the results of ONNX's
tests, and the declarations of the runtime (`.d.ts`). Out: a folder of Markdown pages and pictures.
Texts that exist elsewhere are copied at build time, so that none of them is written twice. The
lessons of the course are not among the pages: `docs/site/course.py` runs them.

    .venv/bin/python -m docs.site.prepare build/docs-pages
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path, PurePosixPath

from docs.site.declarations import declarations_page
from docs.site.lessons import link_lessons
from docs.site.operator_table import operators_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDER = DOCS / "site"
TEMPLATES = (".template.md",)
"""Ends of the names of files in `docs/` that are no pages."""

GUIDES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
"""Documents of the top folder that are pages, too."""

DECLARATIONS = {
    "webmlc": "runtime_js/webmlc.d.ts",
    "webmlc/pipeline": "runtime_js/pipeline/pipeline.d.ts",
    "webmlc/onnxruntime": "runtime_js/onnxruntime/onnxruntime.d.ts",
}
"""The modules of the npm package that have a reference, and their types."""


def hand_written_pages() -> dict[str, str]:
    """The text of each page in `docs/`, by its path there."""
    files = [f for f in sorted(DOCS.rglob("*.md")) if not f.name.endswith(TEMPLATES)]
    files = [f for f in files if FOLDER not in f.parents]
    return {f.relative_to(DOCS).as_posix(): f.read_text("utf-8") for f in files}


def from_root(page: str) -> str:
    """A guide of the top folder as a page of the site: its links move."""
    page = page.replace("](docs/", "](")
    for guide in GUIDES:
        page = page.replace(f"]({guide}", f"]({guide.lower()}")
    return page


def generated_pages() -> dict[str, str]:
    """The text of each page that is not in `docs/`, by its path in the site."""
    pages = {g.lower(): from_root((ROOT / g).read_text("utf-8")) for g in GUIDES}
    pages["python.md"] = (FOLDER / "python.md").read_text("utf-8")
    support = (ROOT / "tests" / "conformance" / "SUPPORT.md").read_text("utf-8")
    pages["operators.md"] = operators_page(support)
    modules = {name: (ROOT / path).read_text("utf-8") for name, path in DECLARATIONS.items()}
    pages["javascript.md"] = declarations_page(modules)
    return pages


def link_pages(path: str, page: str, titles: dict[str, str]) -> str:
    """Turn code spans that name a page, such as `docs/hosts.md`, into links to it.

    Code blocks stay. So do spans that are part of a link, and the page's own name.
    """

    def link(match: re.Match[str]) -> str:
        target = match[1]
        if target not in titles or target == path:
            return match[0]
        up = "../" * (len(PurePosixPath(path).parts) - 1)
        return f"[{titles[target]}]({up}{target})"

    parts = re.split(r"(^```.*?^```$)", page, flags=re.MULTILINE | re.DOTALL)
    prose = re.compile(r"(?<!\[)`docs/([\w./]+\.md)`(?!\])")
    return "".join(part if part.startswith("```") else prose.sub(link, part) for part in parts)


def title_of(page: str) -> str:
    """The heading of a page."""
    heading = re.search(r"^# (.+)$", page, re.MULTILINE)
    if heading is None:
        raise ValueError(f"a page has no heading: {page[:60]!r}")
    return heading[1]


def write_pages(folder: Path) -> None:
    """Replace `folder` by the pages and pictures of the site."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = hand_written_pages() | generated_pages()
    titles = {path: title_of(page) for path, page in pages.items()}
    for path, page in pages.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(link_lessons(link_pages(path, page, titles)), "utf-8")
    pictures = {p: p.relative_to(DOCS) for p in DOCS.rglob("*") if p.suffix in (".png", ".svg")}
    for source, target in pictures.items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / target)
    shutil.copyfile(FOLDER / "style.css", folder / "style.css")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
