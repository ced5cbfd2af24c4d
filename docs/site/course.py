"""Run the lessons of the course, and write each as a page of the documentation site.

In: the scripts in `docs/course/`, in the percent format of jupytext. Out: a Markdown page for each,
with what its cells print and draw. An error in a cell ends the command.

    .venv-docs/bin/python -m docs.site.course build/docs-pages/course

The lessons run in `.venv`. The lesson on PyTorch runs in `.venv-doors`; without that environment,
its page has the code only, and says so.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from nbformat import NotebookNode

from docs.site.lessons import FOLDER, ROOT, lessons, link_lessons, needs_torch, solutions_of

CELL_SECONDS = 240
"""The seconds that one cell may take. The slowest took 20; another machine may be far slower."""
TEMPLATE = r"""
{%- extends "markdown/index.md.j2" -%}
{% block stream %}
{% if output.name == "stdout" %}
``` { .text .output }
{{ output.text.rstrip("\n") }}
```
{% endif %}
{% endblock stream %}
{% block data_text %}
``` { .text .output }
{{ output.data["text/plain"] }}
```
{% endblock data_text %}
{% block data_svg %}
![{{ output.data["text/plain"] }}]({{ output.metadata.filenames["image/svg+xml"] }})
{% endblock data_svg %}
"""
"""How outputs stand in a page: fenced as `.output`, and pictures with their captions. A page leaves
out warnings, which name files of the machine.
"""


def interpreter_of(lesson: Path) -> Path | None:
    """The Python that runs a lesson, or None if its environment is missing."""
    folder = ROOT / (".venv-doors" if needs_torch(lesson) else ".venv")
    python = folder / "bin" / "python"
    return python if python.exists() else None


def execute(lesson: Path, notebook: NotebookNode, python: Path) -> None:
    """Run a notebook's cells in the folder of the lessons, and keep their outputs in it."""
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    argv.append("--log-level=ERROR")  # a kernel warns of its sockets, which are those of this host
    with TemporaryDirectory() as folder:
        kernel = Path(folder) / "kernels" / "course" / "kernel.json"
        kernel.parent.mkdir(parents=True)
        kernel.write_text(
            json.dumps({"argv": argv, "display_name": "course", "language": "python"})
        )
        os.environ["JUPYTER_PATH"] = folder
        resources = {"metadata": {"path": str(lesson.parent)}}
        client = NotebookClient(
            notebook, timeout=CELL_SECONDS, kernel_name="course", resources=resources
        )
        client.execute()


def cpu_name() -> str:
    """The name of this machine's processor, and the number of cores that a process may use."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text("utf-8", "replace").splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{(names or [platform.processor() or platform.machine()])[0]}, {os.cpu_count()} cores"


def note(lesson: Path, has_outputs: bool) -> str:
    """The line below the title: where the lesson is, and where its figures were measured."""
    script = f"`docs/course/{lesson.name}`"
    if not has_outputs:
        return (
            f"The script is {script}. This site was built without PyTorch, so outputs are missing."
        )
    day = datetime.now(UTC).date().isoformat()
    return f"The script is {script}. It ran on {day}, on this machine: {cpu_name()}."


def page_of(lesson: Path, folder: Path) -> str:
    """Run a lesson, write its pictures into `folder`, and return its page."""
    notebook = jupytext.read(lesson)
    python = interpreter_of(lesson)
    if python is not None:
        execute(lesson, notebook, python)
    exporter = MarkdownExporter(raw_template=TEMPLATE)
    page, resources = exporter.from_notebook_node(
        notebook, {"unique_key": lesson.stem, "output_files_dir": ""}
    )
    for name, data in resources["outputs"].items():
        (folder / name).write_bytes(data)
    title, _, body = link_lessons(page).strip().partition("\n")
    solutions = solutions_of(lesson)
    code = re.sub(r"\A(# mypy: .*\n# .*\n)", "", solutions.read_text("utf-8"))
    return (
        f"{title}\n\n<small>{note(lesson, python is not None)}</small>\n{body}\n\n"
        f'??? success "Solutions: `{solutions.relative_to(ROOT)}`"\n\n'
        + "\n".join(f"    {line}".rstrip() for line in f"```python\n{code}```".splitlines())
        + "\n"
    )


def write_course(folder: Path) -> None:
    """Write the pages of all lessons into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for lesson in lessons():
        begin = time.perf_counter()
        (folder / f"{lesson.stem}.md").write_text(page_of(lesson, folder), "utf-8")
        print(f"{lesson.relative_to(FOLDER)}: {time.perf_counter() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    write_course(Path(sys.argv[1]).resolve())
