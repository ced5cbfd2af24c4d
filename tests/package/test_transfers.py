"""The transfers between CPU and GPU, of programs that go back and forth."""

from msgspec.structs import replace

from webmlc.core.machine import Device
from webmlc.package.manifest import (
    Bind,
    Buffer,
    Jump,
    JumpUnless,
    Move,
    Program,
    Resources,
    Run,
    Segment,
    Step,
)
from webmlc.package.transfers import segments_of, select_segments, with_transfers


def program(*steps: tuple[Device, str], constants: str = "") -> Program:
    """`("wasm", "ab>c")` is a wasm step that reads a and b and writes c."""
    made = []
    for device, text in steps:
        reads, writes = text.split(">")
        made.append(Step(device, "k", (*reads, *writes), len(writes)))
    names = dict.fromkeys(a for s in made for a in s.arguments) | dict.fromkeys(constants)
    buffers = tuple(
        Buffer(n, (4,), kind="constant" if n in constants else "scratch") for n in names
    )
    return Program(buffers, tuple(made), segments_of(made, 10), Resources())


def crossings(segments: tuple[Segment, ...]) -> list[tuple[str, str]]:
    runs = [segment for segment in segments if isinstance(segment, Run)]
    return [("".join(run.uploads), "".join(run.downloads)) for run in runs]


def test_segments_number_the_module_steps() -> None:
    made = program(("wasm", "x>a"), ("webgpu", "a>b"), ("wasm", "b>c"), ("wasm", "c>d"))
    numbers = [(r.device, r.first, r.last, r.module_first, r.module_last) for r in made.runs]
    assert numbers == [("wasm", 0, 1, 10, 11), ("webgpu", 1, 2, 0, 1), ("wasm", 2, 4, 11, 13)]


def test_a_buffer_crosses_only_when_the_newest_copy_is_elsewhere() -> None:
    # a is made on the GPU, read twice on the CPU: one download, one upload.
    made = program(
        ("webgpu", "x>a"), ("wasm", "a>b"), ("webgpu", "ab>c"), ("wasm", "ac>d"), ("webgpu", "d>y")
    )
    assert crossings(with_transfers(made, ["y"], "webgpu")) == [
        ("x", "a"),
        ("a", "b"),
        ("b", "c"),
        ("c", "d"),
        ("d", "y"),
    ]


def test_a_second_writer_needs_what_the_first_wrote() -> None:
    # Both steps write parts of y: the second device must have the first's part.
    made = program(("webgpu", "x>y"), ("wasm", "x>y"))
    assert crossings(with_transfers(made, ["y"], "webgpu")) == [("x", "y"), ("xy", "y")]


def test_an_output_is_read_where_it_was_last_written() -> None:
    made = program(("webgpu", "x>a"), ("wasm", "x>b"))
    assert crossings(with_transfers(made, ["a", "b"], "webgpu")) == [("x", "a"), ("x", "b")]


def test_constants_do_not_cross_but_can_be_outputs() -> None:
    made = program(("wasm", "wx>y"), constants="wv")
    assert crossings(with_transfers(made, ["y", "v"], "wasm")) == [("x", "y"), ("", "v")]


def test_a_constant_is_read_where_it_lies() -> None:
    made = program(("wasm", "vx>a"), ("webgpu", "wa>y"), constants="vwu")
    assert crossings(with_transfers(made, ["v", "w", "u"], "webgpu"))[-2:] == [
        ("", "v"),
        ("", "wu"),
    ]


def test_a_program_without_steps_has_nothing_to_run() -> None:
    assert with_transfers(program(), ["x"], "wasm") == ()


def selected(made: Program, results: str, device: Device) -> list[tuple[int, int, str, str]]:
    """The steps and transfers of a run of a program with outputs `yz` that returns `results`."""
    planned = replace(made, segments=with_transfers(made, ["y", "z"], device))
    runs = [run for run in select_segments(planned, set(results)) if isinstance(run, Run)]
    return [(r.first, r.last, "".join(r.uploads), "".join(r.downloads)) for r in runs]


def test_a_run_for_some_outputs_leaves_out_the_last_steps() -> None:
    made = program(("wasm", "x>a"), ("wasm", "a>y"), ("wasm", "y>z"))
    assert selected(made, "yz", "wasm") == [(0, 3, "x", "yz")]
    assert selected(made, "y", "wasm") == [(0, 2, "x", "y")]
    assert selected(made, "z", "wasm") == [(0, 3, "x", "z")]
    assert selected(made, "", "wasm") == []


def test_a_run_for_some_outputs_leaves_out_the_last_runs_with_their_transfers() -> None:
    made = program(("webgpu", "x>a"), ("webgpu", "a>y"), ("wasm", "a>b"), ("wasm", "b>z"))
    assert selected(made, "yz", "webgpu") == [(0, 2, "x", "ay"), (2, 4, "a", "z")]
    assert selected(made, "y", "webgpu") == [(0, 2, "x", "y")]
    assert selected(made, "z", "webgpu") == [(0, 1, "x", "a"), (2, 4, "a", "z")]


def test_a_run_that_brings_a_value_for_a_later_one_stays() -> None:
    """The first run on the CPU brings x there, which the last one reads, too."""
    made = program(("wasm", "x>y"), ("webgpu", "w>a"), ("wasm", "xa>z"))
    assert selected(made, "z", "webgpu") == [(0, 0, "x", ""), (1, 2, "w", "a"), (2, 3, "a", "z")]


def test_the_buffer_of_a_bind_is_needed() -> None:
    made = program(("webgpu", "x>n"), ("webgpu", "x>y"))
    bound = segments_of([made.steps[0], Bind("n", ("k",), (0,)), made.steps[1]])
    assert selected(replace(made, segments=bound), "", "webgpu") == [(0, 1, "x", "n")]


def test_values_that_a_loop_carries_go_through_the_host() -> None:
    """A step before the loop computes a from x. The loop maps c to t, and reads a."""
    made = program(("wasm", "x>a"), ("wasm", "ac>t"), ("wasm", "t>g"), ("wasm", "c>y"))
    first, *loop, last = made.steps
    shapes = ((4,),)
    body = [first, Move(("x",), ("c",), shapes), JumpUnless(7, "g"), *loop]
    body += [Move(("t",), ("c",), shapes), Jump(2), last]
    looping = replace(made, segments=segments_of(body))
    planned = with_transfers(looping, ["y"], "wasm")
    assert crossings(planned) == [("x", ""), ("c", "tg"), ("c", "y")]
    jumps = [segment.target for segment in planned if isinstance(segment, Jump | JumpUnless)]
    assert jumps == [6, 2]
    assert select_segments(replace(looping, segments=planned), {"y"}) == planned


def test_a_branch_may_not_have_brought_a_value() -> None:
    """Only one branch uploads x to the CPU, so the run after the branches uploads it, too."""
    made = program(("wasm", "x>a"), ("webgpu", "x>b"), ("wasm", "x>y"))
    then, other, last = made.steps
    body = [JumpUnless(3, "c"), then, Jump(4), other, last]
    planned = with_transfers(replace(made, segments=segments_of(body)), ["y"], "webgpu")
    assert crossings(planned) == [("x", ""), ("x", ""), ("x", "y")]


def test_a_constant_that_the_host_moves_is_read_back() -> None:
    made = program(("wasm", "xwc>y"), constants="w")
    body = [Move(("w",), ("c",), ((4,),)), *made.steps]
    planned = with_transfers(replace(made, segments=segments_of(body)), ["y"], "wasm")
    assert crossings(planned) == [("", "w"), ("xc", "y")]
