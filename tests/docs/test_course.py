"""Each lesson of the course is listed, and ends with exercises that tests solve. `make docs` runs
the lessons.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest

from docs.course.show import (
    code_of,
    draw_bars,
    draw_curves,
    draw_graph,
    draw_images,
    draw_loops,
)
from docs.site.lessons import (
    FOLDER,
    lessons,
    link_lessons,
    solutions_of,
)
from webmlc import compile, te, tir
from webmlc.core.dtypes import DType
from webmlc.core.expr import Const
from webmlc.graph.ir import Function, Node, TensorType
from webmlc.programs.ir_module import IRModule

LESSONS = lessons()
INDEX = (FOLDER / "README.md").read_text("utf-8")
EXERCISES = 3


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda x: x.stem)
def test_a_lesson_ends_with_exercises_that_tests_solve(lesson: Path) -> None:
    text = lesson.read_text("utf-8")
    titles = re.findall(r"^# (#+ .*)", text.partition("# ## Exercises\n")[2], re.MULTILINE)
    assert titles == [f"### Exercise {number + 1}" for number in range(EXERCISES)]
    tree = ast.parse(solutions_of(lesson).read_text("utf-8"))
    tests = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    numbers = {match[1] for name in tests if (match := re.match(r"test_exercise_(\d)", name))}
    assert numbers == {str(number + 1) for number in range(EXERCISES)}


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda x: x.stem)
def test_the_index_has_the_title_of_a_lesson(lesson: Path) -> None:
    title = re.search(r"^# # (.+)$", lesson.read_text("utf-8"), re.MULTILINE)
    assert title is not None
    assert title[1].startswith(f"{int(lesson.name[:2])}. ")
    assert f"| [{title[1]}]({lesson.name}) |" in INDEX


def test_links_to_lessons_become_links_to_pages() -> None:
    page = "[a](01_x.py), [b](course/02_y.py) and [c](show.py)"
    assert link_lessons(page) == "[a](01_x.md), [b](course/02_y.md) and [c](show.py)"


def program() -> te.Tensor:
    x = te.placeholder((8, 16), "float32", name="x")
    return te.create_prim_func([x, te.compute((8, 16), lambda i, j: x[i, j] * 2.0, name="y")], "f")


def test_a_drawn_nest_has_every_loop_and_block() -> None:
    schedule = tir.Schedule(program())
    i, j = schedule.get_loops("y")
    j_0, j_1 = schedule.split(j, factors=[None, 4])
    schedule.vectorize(j_1)
    picture = draw_loops(schedule)
    titles = re.findall(r"<text[^>]*>([^<]*)<", picture.svg)
    assert titles == [
        f"for {i} in 8",
        f"for {j_0} in 4",
        f"for {j_1} in 4  (vector)",
        "block y: writes y",
    ]
    assert picture._repr_svg_() == picture.svg
    assert repr(picture) == "The loops of f"


def test_a_drawn_graph_has_every_call_and_type() -> None:
    node = Node("call_kernel", ("x",), ("y",), {"kernel": "f"}, "webmlc")
    type_ = TensorType(DType.float32, (Const(8), Const(16)))
    main = Function("main", ("x",), ("y",), (node,), {"x": type_, "y": type_}, {})
    picture = draw_graph(IRModule({"f": program()}, main))
    titles = re.findall(r"<text[^>]*>([^<]*)<", picture.svg)
    assert titles == ["inputs: x", "f(x)", "→ y: float32[8, 16]"]


def test_the_code_of_a_kernel_is_its_function() -> None:
    code = code_of(compile(program()), "f")
    assert code.startswith("(func $f ")
    assert code.count("(func ") == 1
    assert code.count("(") == code.count(")")


def test_figures_have_their_names_and_captions() -> None:
    bars = draw_bars({"first": 1.0, "second": 2.5}, "GFLOPS", limit=3.0)
    assert bars.caption == "Bars in GFLOPS: first 1, second 2.5"
    curves = draw_curves({"random": [1, 2], "genetic": [2, 3]}, "candidates", "GFLOPS")
    digits = draw_images(np.zeros((2, 8, 8)), ["3", "4"])
    for picture, name in ((bars, "second"), (curves, "genetic"), (digits, "4")):
        assert picture.svg.startswith("<svg ")
        assert f"<!-- {name} -->" in picture.svg  # matplotlib draws letters, and names them here
