"""What crosses between CPU and GPU, on programs that go back and forth."""

from webmlc.core.dtypes import DType
from webmlc.core.expr import const
from webmlc.core.machine import Device
from webmlc.package.manifest import Buffer, Program, Step
from webmlc.package.resources import Resources
from webmlc.package.transfers import Stage, segments_of, stages

NOTHING = Resources(0, {}, None, None)


def program(*steps: tuple[Device, str], constants: str = "") -> Program:
    """`("wasm", "ab>c")` is a wasm step that reads a and b and writes c."""
    made = []
    for device, text in steps:
        reads, writes = text.split(">")
        made.append(Step(device, "k", (*reads, *writes), len(writes)))
    names = dict.fromkeys(a for s in made for a in s.arguments) | dict.fromkeys(constants)
    buffers = tuple(
        Buffer(n, DType.float32, (const(4),), "constant" if n in constants else "scratch")
        for n in names
    )
    return Program(buffers, tuple(made), segments_of(made, 10), NOTHING)


def crossings(result: tuple[Stage, ...]) -> list[tuple[str, str]]:
    return [("".join(s.uploads), "".join(s.downloads)) for s in result]


def test_segments_number_the_module_steps() -> None:
    made = program(("wasm", "x>a"), ("webgpu", "a>b"), ("wasm", "b>c"), ("wasm", "c>d"))
    assert [(s.device, s.first, s.last, s.module_first, s.module_last) for s in made.segments] == [
        ("wasm", 0, 1, 10, 11),
        ("webgpu", 1, 2, 0, 0),
        ("wasm", 2, 4, 11, 13),
    ]


def test_a_buffer_crosses_only_when_the_newest_copy_is_elsewhere() -> None:
    # a is made on the GPU, read twice on the CPU: one download, one upload.
    made = program(
        ("webgpu", "x>a"), ("wasm", "a>b"), ("webgpu", "ab>c"), ("wasm", "ac>d"), ("webgpu", "d>y")
    )
    assert crossings(stages(made, ["y"], "webgpu")) == [
        ("x", "a"),
        ("a", "b"),
        ("b", "c"),
        ("c", "d"),
        ("d", "y"),
    ]


def test_a_second_writer_needs_what_the_first_wrote() -> None:
    # Both steps write parts of y: the second device must have the first's part.
    made = program(("webgpu", "x>y"), ("wasm", "x>y"))
    assert crossings(stages(made, ["y"], "webgpu")) == [("x", "y"), ("xy", "y")]


def test_an_output_is_read_where_it_was_last_written() -> None:
    made = program(("webgpu", "x>a"), ("wasm", "x>b"))
    assert crossings(stages(made, ["a", "b"], "webgpu")) == [("x", "a"), ("x", "b")]


def test_constants_do_not_cross_but_can_be_outputs() -> None:
    made = program(("wasm", "wx>y"), constants="wv")
    assert crossings(stages(made, ["y", "v"], "wasm")) == [("x", "y"), ("", "v")]


def test_a_program_without_steps_has_nothing_to_run() -> None:
    assert stages(program(), ["x"], "wasm") == ()
