"""The walkthrough says what the compiler prints, and names what exists."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import docs.walkthrough as script
import webmlc
from docs.walkthrough import (
    COMMAND,
    DOCUMENT,
    KERNEL,
    TEMPLATE,
    Compilation,
    compile_walkthrough,
    cut_repetitions,
    fill,
    walkthrough_model,
)
from tests.docs.prose import ROOT, code_blocks, code_spans, is_path, named_paths

GUIDES = ("CONTRIBUTING.md", "docs/compile.md", "docs/command_line.md")
"""Documents that explain commands and options."""

pytestmark = pytest.mark.xdist_group("walkthrough")  # one worker builds what the tests share


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("docs") / "walkthrough"


@pytest.fixture(scope="module")
def compilation(package: Path) -> Compilation:
    return compile_walkthrough(package)


def test_the_document_is_up_to_date(compilation: Compilation) -> None:
    expected = fill(TEMPLATE.read_text("utf-8"), compilation)
    if DOCUMENT.read_text("utf-8") != expected:
        pytest.fail(
            f"docs/walkthrough.md is not what the compiler prints now: run `{COMMAND}`, read the "
            "difference, and mend the sentences of docs/walkthrough.template.md that it makes false"
        )


def test_every_code_span_exists(compilation: Compilation) -> None:
    """A code span is a path, or occurs in a stage, in a file that the page names, or in a guide."""
    document = DOCUMENT.read_text("utf-8")
    paths = named_paths(document)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    sources = [ROOT / path for path in {*paths, *GUIDES}]
    texts = [*(text for _, text in code_blocks(document)), *compilation.texts.values()]
    texts += [path.read_text("utf-8") for path in sources if path.is_file()]
    spans = [span for span in code_spans(document) if not is_path(span)]
    assert [span for span in spans if not any(span in text for text in texts)] == []


def test_passes_that_are_said_to_do_nothing_do_nothing(compilation: Compilation) -> None:
    assert compilation.stage("normalise") == compilation.stage("frontend")
    inferred = compilation.stage("infer shapes")
    titles = ("fold constants", "simplify", "check indices", "check bodies", "compute in integers")
    for title in titles:
        assert compilation.stage(title) == inferred, title


def test_both_targets_have_the_same_groups_and_loop_nest(compilation: Compilation) -> None:
    assert compilation.stage("webgpu: fuse") == compilation.stage("wasm: fuse")
    loops = compilation.stage("gpu: loops", KERNEL)
    assert loops == compilation.stage("relaxed: loops", KERNEL)


def test_the_package_computes_what_onnxruntime_does(
    compilation: Compilation, package: Path
) -> None:
    model = walkthrough_model()
    image = np.random.default_rng(0).normal(size=(1, 3, 12, 12)).astype(np.float32)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"image": image})
    loaded = webmlc.load(package, "wasm", threads=2)
    actual = loaded.run({"image": image})["feature_map"]
    loaded.dispose()
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= 1e-5 * np.abs(expected).max()


def test_the_examples_of_the_script_hold() -> None:
    failures, count = doctest.testmod(script)
    assert count > 0
    assert failures == 0


def test_a_block_that_repeats_begins_at_its_load() -> None:
    lines = [f"a{i} = load(p + {i})\nuse(a{i}, b)\nuse(a{i}, c)" for i in range(1, 5)]
    cut = cut_repetitions("use(a0, b)\n" + "\n".join(lines) + "\nend", "#")
    assert cut == f"use(a0, b)\n{lines[0]}\n# ... 9 more lines of this form\nend"


def test_lines_that_differ_by_more_than_numbers_stay() -> None:
    text = "\n".join(f"{name} = 0" for name in "abcdef")
    assert cut_repetitions(text, "#") == text


def test_slots_without_a_text_are_refused(compilation: Compilation) -> None:
    with pytest.raises(ValueError, match=r"slots \['weather'\] are not those of SLOTS"):
        fill("{{weather}}\n", compilation)
