"""Random programs under random steps: a step is refused, or it keeps what the program computes.

Programs have one to three stages (a pointwise producer, a windowed or plain reduction, an epilogue)
of random extents, so that splits leave remainders and loops of one iteration occur; one extent may
be a symbol.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

import numpy as np
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from webmlc.loops.text import parse_function, print_function
from webmlc.loops.verify import verify
from webmlc.schedule.check_step import random_run
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.schedule import Schedule, replay

PRODUCERS = ("A[vp, vq] * 2.0", "T.exp(A[vp, vq])", "T.select(vq > 0, A[vp, vq], 0.5)")
UPDATES = (
    ("0.0", "Y[vi, vj] + {x} * W[vk, vj]"),
    ("0.0", "T.fma({x}, W[vk, vj], Y[vi, vj])"),
    ('T.float32("-inf")', "T.max(Y[vi, vj], {x} - W[vk, vj])"),
)
EPILOGUES = ("T.max(Y[vs, vt], 0.0)", "Y[vs, vt] + D[vt]", "Y[vs, vt] * Y[vs, vt] + A[vs, 0]")


@st.composite
def programs(draw: st.DrawFn) -> str:
    """The text of a program."""
    sizes = draw(st.sampled_from(((4, 8), (1, 2, 3, 4, 5, 7))))  # whole tiles, or remainders
    m, n, k = (draw(st.sampled_from(sizes)) for _ in "mnk")
    window = draw(st.booleans())
    rows: int | str = draw(st.sampled_from([m, "m"]))
    columns = k + 2 if window else k
    source = "P" if draw(st.booleans()) else "A"
    init, update = draw(st.sampled_from(UPDATES))
    read = f"{source}[vi, vk + {draw(st.integers(0, 2))}]" if window else f"{source}[vi, vk]"
    epilogue = draw(st.sampled_from((None, *EPILOGUES)))
    last = epilogue is not None and draw(st.booleans())
    lines = [
        "@T.kernel",
        f'def program(A: T.Buffer(({rows}, {columns}), "float32"),'
        f' W: T.Buffer(({k}, {n}), "float32"), D: T.Buffer(({n},), "float32"),'
        f' Z: T.Output(({rows}, {n}), "float32"){", m: T.symbol" if rows == "m" else ""}):',
    ]
    if source == "P":
        lines.append(f'    P = T.alloc_buffer(({rows}, {columns}), "float32")')
    if epilogue is not None:
        lines.append(f'    Y = T.alloc_buffer(({rows}, {n}), "float32")')
    if last:
        lines.append(f'    E = T.alloc_buffer(({rows}, {n}), "float32")')
    if source == "P":
        lines += [
            f"    for p, q in T.grid({rows}, {columns}):",
            '        with T.block("P"):',
            '            vp, vq = T.axis.remap("SS", [p, q])',
            f"            P[vp, vq] = {draw(st.sampled_from(PRODUCERS))}",
        ]
    order = draw(st.permutations(("i", "j", "k")))
    extents = {"i": rows, "j": n, "k": k}
    body = [
        f"    for {', '.join(order)} in T.grid({', '.join(str(extents[o]) for o in order)}):",
        '        with T.block("Y"):',
        '            vi, vj, vk = T.axis.remap("SSR", [i, j, k])',
        "            with T.init():",
        f"                Y[vi, vj] = {init}",
        f"            Y[vi, vj] = {update.format(x=read)}",
    ]
    lines += [line.replace("Y[", "Z[") if epilogue is None else line for line in body]
    if epilogue is not None:
        result = "E" if last else "Z"
        lines += [
            f"    for s, t in T.grid({rows}, {n}):",
            f'        with T.block("{result}"):',
            '            vs, vt = T.axis.remap("SS", [s, t])',
            f"            {result}[vs, vt] = {epilogue}",
        ]
    if last:
        lines += [
            f"    for u, v in T.grid({n}, {rows}):",
            '        with T.block("Z"):',
            '            vu, vv = T.axis.remap("SS", [u, v])',
            "            Z[vv, vu] = E[vv, vu] * 0.5",
        ]
    return "\n".join(lines)


def some(draw: st.DrawFn, options: list[str]) -> str:
    return draw(st.sampled_from(options))


def all_loops(schedule: Schedule) -> list[str]:
    return list(dict.fromkeys(name for b in schedule.blocks() for name in schedule.loops(b)))


def buffers(schedule: Schedule) -> list[str]:
    function = schedule.function
    return [buffer.name for buffer in (*function.params, *function.allocations)]


SCOPES = ["global", "shared", "local"]
STEPS: dict[str, Callable[[st.DrawFn, Schedule], tuple[object, ...]]] = {
    "split": lambda draw, s: (
        some(draw, all_loops(s)),
        draw(st.sampled_from([[None, 2], [None, 3], [2, None], [4, None], [None, 2, 2], [3, 4]])),
    ),
    "partition": lambda draw, s: (some(draw, all_loops(s)), draw(st.integers(0, 6))),
    "overlap": lambda draw, s: (
        some(draw, all_loops(s)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 5)),
    ),
    "reorder": lambda draw, s: tuple(
        draw(st.permutations(s.loops(some(draw, s.blocks()))).map(lambda p: p[:3]))
    ),
    "fuse": lambda draw, s: tuple(s.loops(some(draw, s.blocks()))[:2]),
    "unroll": lambda draw, s: (some(draw, all_loops(s)),),
    "vectorize": lambda draw, s: (some(draw, all_loops(s)),),
    "parallel": lambda draw, s: (some(draw, all_loops(s)),),
    "bind": lambda draw, s: (
        some(draw, all_loops(s)),
        draw(st.sampled_from(["blockIdx.x", "threadIdx.x", "threadIdx.y"])),
    ),
    "cache_read": lambda draw, s: (
        some(draw, s.blocks()),
        some(draw, buffers(s)),
        draw(st.sampled_from(SCOPES)),
    ),
    "cache_write": lambda draw, s: (some(draw, s.blocks()), draw(st.sampled_from(SCOPES))),
    "set_scope": lambda draw, s: (some(draw, s.blocks()), draw(st.sampled_from(SCOPES))),
    "reuse_buffer": lambda draw, s: (some(draw, s.blocks()), some(draw, s.blocks())),
    "compute_at": lambda draw, s: (some(draw, s.blocks()), some(draw, all_loops(s))),
    "reverse_compute_at": lambda draw, s: (some(draw, s.blocks()), some(draw, all_loops(s))),
    "compute_inline": lambda draw, s: (some(draw, s.blocks()),),
    "reverse_compute_inline": lambda draw, s: (draw(st.sampled_from(["Z", *s.blocks()])),),
    "decompose_reduction": lambda draw, s: (some(draw, s.blocks()), some(draw, all_loops(s))),
    "rfactor": lambda draw, s: (some(draw, all_loops(s)), draw(st.integers(-1, 2))),
    "blockize": lambda draw, s: (some(draw, all_loops(s)),),
    "tensorize": lambda draw, s: (
        some(draw, all_loops(s)),
        draw(st.sampled_from(["matmul_4x4_f32", "madd_f32x4", "dot_f32x4"])),
    ),
}


def tile(schedule: Schedule) -> str:
    """Split the loops of the reduction by four where they can be; the loop to tensorize."""
    block = next(b for b in schedule.blocks() if b.startswith(("Y", "Z")))
    outer, inner = [], []
    for loop in schedule.loops(block):
        try:
            first, last = schedule.split(loop, [None, 4])
        except ScheduleError:
            return loop
        outer.append(first)
        inner.append(last)
    with contextlib.suppress(ScheduleError):
        schedule.reorder(*outer, *inner)
    return inner[0] if inner else all_loops(schedule)[0]


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(programs(), st.data())
def test_steps_are_refused_or_keep_the_results(source: str, data: st.DataObject) -> None:
    note(source)
    program = parse_function(source)
    symbols = {symbol.name: data.draw(st.integers(1, 7)) for symbol in program.symbols}
    schedule = Schedule(program)
    draw: st.DrawFn = data.draw  # type: ignore[assignment]
    for _ in range(data.draw(st.integers(1, 8))):
        name = data.draw(st.sampled_from(sorted(STEPS)))
        if not all_loops(schedule):
            break
        arguments = STEPS[name](draw, schedule)
        if name == "tensorize" and data.draw(st.booleans()):
            arguments = (tile(schedule), arguments[1])
        try:
            note(f"{name}{arguments}")
            schedule.apply(name, *arguments)
        except ScheduleError as error:
            assert str(error).startswith(f"{error.primitive}: ")
        verify(schedule.function)
    expected = random_run(program, symbols)
    got = random_run(schedule.function, symbols)
    text = print_function(schedule.function)
    np.testing.assert_allclose(got["Z"], expected["Z"], rtol=1e-4, atol=1e-4, err_msg=text)
    assert replay(program, json.loads(json.dumps(schedule.trace))) == schedule.function
    assert parse_function(text) == schedule.function
