"""Write the folder from which mkdocs builds the documentation site.

In: the pages of `docs/`, sections of README, CONTRIBUTING, the operator table, the results of
ONNX's tests, and the declarations of the runtime (`.d.ts`). Out: a folder of Markdown pages and
pictures.
Texts that exist elsewhere are copied at build time, so that none of them is written twice.

    .venv/bin/python -m docs.site.prepare build/docs-pages
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path, PurePosixPath

from docs.site.declarations import declarations_page
from docs.site.operator_table import operators_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FOLDER = DOCS / "site"
TEMPLATES = (".template.md",)
"""Ends of the names of files in `docs/` that are no pages."""

SECTIONS = {
    "compile.md": "Compile a model",
    "architecture.md": "How it works",
    "what_runs.md": "What runs",
    "measured.md": "Measured",
}
"""Pages that are sections of README, by file name."""

PICTURES = {"benchmarks/results.svg": "gallery/results.svg"}
"""Pictures outside `docs/` that pages show, and their places in the site."""

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
    texts = {f.relative_to(DOCS).as_posix(): f.read_text("utf-8") for f in files}
    return {path: link_sections(text) for path, text in texts.items()}


def section(document: str, title: str) -> str:
    """A section of a document as a page: its headings move up by one level."""
    _, found, rest = f"\n{document}".partition(f"\n## {title}\n")
    if not found:
        raise ValueError(f"README has no section {title!r}")
    body = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    return f"# {title}\n" + re.sub(r"^##(#+ )", r"#\1", body, flags=re.MULTILINE)


def from_root(page: str) -> str:
    """A page of the top folder, such as README, as a page of the site: its links move."""
    page = page.replace("](docs/", "](")
    for place, copy in PICTURES.items():
        page = page.replace(f"]({place})", f"]({copy})")
    return page


def link_sections(page: str) -> str:
    """Let links to sections of README lead to the pages of these sections."""
    for name, title in SECTIONS.items():
        page = page.replace(f"](../README.md#{title.lower().replace(' ', '-')})", f"]({name})")
    return page


def generated_pages() -> dict[str, str]:
    """The text of each page that is not in `docs/`, by its path in the site."""
    readme = (ROOT / "README.md").read_text("utf-8")
    pages = {name: from_root(section(readme, title)) for name, title in SECTIONS.items()}
    pages["contributing.md"] = from_root((ROOT / "CONTRIBUTING.md").read_text("utf-8"))
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
        file.write_text(link_pages(path, page, titles), "utf-8")
    pictures = {p: p.relative_to(DOCS) for p in DOCS.rglob("*") if p.suffix in (".png", ".svg")}
    outside = {ROOT / source: Path(copy) for source, copy in PICTURES.items()}
    for source, target in (pictures | outside).items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, folder / target)
    shutil.copyfile(FOLDER / "style.css", folder / "style.css")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
