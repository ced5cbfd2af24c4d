"""README, CONTRIBUTING and docs/architecture.md are true of the present tree."""

from __future__ import annotations

import re

import pytest

from tests.docs.prose import ROOT, code_blocks, is_path, named_paths, prose_of
from tests.test_layering import ROOMS, STAGES

README = (ROOT / "README.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
FOLDER = ROOT / "docs" / "contributing"
OPERATORS = (FOLDER / "operator.md").read_text("utf-8")
CONTRIBUTING = "\n".join(
    path.read_text("utf-8") for path in (ROOT / "CONTRIBUTING.md", *sorted(FOLDER.glob("*.md")))
)
READING_LIST = ARCHITECTURE.partition("| read | for |\n|---|---|\n")[2].partition("\n\n")[0]
FILES = re.findall(r"^\| `(.+?)` \|", READING_LIST, re.MULTILINE)
MOST_FILES = 12


def layers(line: str) -> list[str]:
    """`a/b.py < c` -> the modules of a line of the page's layering."""
    return [name.strip().removesuffix(".py").replace("/", ".") for name in line.split("<")]


def test_the_reading_list_has_a_dozen_files() -> None:
    assert len(FILES) == len(READING_LIST.splitlines()) == len(set(FILES))
    assert 10 <= len(FILES) <= MOST_FILES


def test_the_stages_are_in_the_order_of_the_layering_test() -> None:
    (line,) = (line for line in ARCHITECTURE.splitlines() if line.startswith("core < "))
    stages = [f"webmlc.{name}" for name in layers(line)]
    frontends = [
        f"webmlc.frontend.{name}"
        for name in ("gguf", "tflite", "doors.export_source", "read_model")
    ]
    inner = (*ROOMS, *frontends, "webmlc.__main__")
    tops = [s for s in STAGES if s not in inner and s.count(".")]
    tops.remove("webmlc.version")
    tops.insert(tops.index("webmlc.frontend") + 1, "webmlc.graph")
    assert stages == tops


def test_the_rooms_of_the_graph_are_in_the_order_of_the_layering_test() -> None:
    (line,) = (line for line in ARCHITECTURE.splitlines() if line.startswith("graph: "))
    rooms = [f"webmlc.graph.{name}" for name in layers(line.removeprefix("graph:"))]
    assert rooms[0] == "webmlc.graph.compute"
    assert rooms[1:] == [r for r in ROOMS[1:] if not r.startswith("webmlc.graph.algorithms.")]


GUIDES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    *sorted(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "docs").rglob("*.md")
        if path.parent.name != "site"  # tests/docs/test_site.py checks these
    ),
]


MOST_BYTES = 8 * 1024
"""README is what a newcomer reads at once; the reference is in docs/."""


def test_the_readme_is_short() -> None:
    assert len(README.encode()) <= MOST_BYTES


@pytest.mark.parametrize("name", GUIDES)
def test_links_exist(name: str) -> None:
    """Links of prose lead to files of this repository, as they do where it is read."""
    document = re.sub(r"`[^`\n]*`", "", prose_of((ROOT / name).read_text("utf-8")))
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", document)
    local = [link for link in links if not re.match(r"https?:", link)]
    folder = (ROOT / name).parent
    assert [link for link in local if not (folder / link).exists()] == []


@pytest.mark.parametrize("name", GUIDES)
def test_make_commands_exist(name: str) -> None:
    document = (ROOT / name).read_text("utf-8")
    blocks = [text for language, text in code_blocks(document) if language == "sh"]
    spans = re.findall(r"`(make [^`\n]+)`", prose_of(document))
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))
    commands = [line for block in blocks for line in block.splitlines()] + spans
    used = (re.match(r"(?:\w+=\S+ )*make ([\w-]+)", command) for command in commands)
    assert {match[1] for match in used if match} <= targets


@pytest.mark.parametrize(
    "name",
    [
        "CONTRIBUTING.md",
        "docs/architecture.md",
        *(f"docs/contributing/{path.name}" for path in sorted(FOLDER.glob("*.md"))),
    ],
)
def test_paths_exist(name: str) -> None:
    document = (ROOT / name).read_text("utf-8")
    paths = [path for path in named_paths(document) if "/" in path.rstrip("/")]
    assert paths
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert [path for path in missing if not path.startswith("build/")] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_newcomers_are_sent_to_the_walkthrough_and_the_glossary(name: str) -> None:
    document = (ROOT / name).read_text("utf-8")
    links = re.findall(r"\]\(([^)#\s]+)\)", document)
    paths = {"docs/walkthrough.md", "docs/glossary.md"}
    assert paths <= {*named_paths(document), *links}


def test_the_rows_that_the_guide_shows_are_in_the_source() -> None:
    rows = "\n".join(text for language, text in code_blocks(OPERATORS) if not language)
    lines = [re.sub(r"\s+# .*", "", line).strip() for line in rows.splitlines()]
    source = "\n".join(
        path.read_text("utf-8") for path in sorted((ROOT / "webmlc/graph/ops").rglob("*.py"))
    )
    assert len(lines) > 10
    assert [line for line in lines if line not in source] == []


def test_commands_of_the_guide_are_modules() -> None:
    modules = re.findall(r"python -m ((?:tests|docs)[\w.]*)", CONTRIBUTING)
    assert len(modules) >= 4
    for module in modules:
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_code_blocks_and_paths_are_told_apart() -> None:
    assert is_path("webmlc/pipeline.py") and is_path("webmlc/graph/ops/")
    assert not is_path("make test") and not is_path("T.block")
    text = "a\n```sh\nmake\n```\nb\n```\nc\n```\n"
    assert code_blocks(text) == [("sh", "make\n"), ("", "c\n")]
    assert prose_of(text) == "a\n\nb\n\n"
