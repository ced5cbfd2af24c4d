"""The page of a language model, used as a person would, over a stub of the runtime."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.browser.firefox import visit_twice
from tests.browser.pages import Page, open_pages
from webmlc.package.runtime_files import runtime_files

HERE = Path(__file__).parent
DRIVER = str(HERE / "chat.mjs")
PICTURES = os.environ.get("WEBMLC_PICTURES")
"""A folder for pictures of the page, to look at."""
DESKTOP = {"viewport": {"width": 1200, "height": 850}}
PHONE = {"viewport": {"width": 360, "height": 740}, "hasTouch": True, "isMobile": True}
DARK = {"colorScheme": "dark", "reducedMotion": "reduce"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a language model's package, with a stub in the place of webmlc.js."""
    folder = tmp_path_factory.mktemp("chat")
    for name, data in runtime_files(is_language_model=True).items():
        (folder / name).write_bytes(data)
    shutil.copy(HERE / "chat_model.js", folder / "webmlc.js")
    weights = {"weights.safetensors": {"bytes": 4, "sha256": "abc"}}
    (folder / "manifest.json").write_text(json.dumps({"files": weights}))
    (folder / "weights.safetensors").write_bytes(b"abcd")
    return folder


def talk(site: Path, context: dict[str, Any], path: str = "/", **arg: Any) -> Any:
    """Use the page, and return what it showed. Nothing may be wrong on the console."""
    arg = {"pictures": PICTURES, **arg}
    [report] = open_pages({"/": site}, Page(path, script=DRIVER, arg=arg, context=context))
    assert report.errors == []
    return report


def test_a_conversation_by_mouse_and_keyboard(site: Path) -> None:
    report = talk(site, DESKTOP, name="desktop", offline=True)
    shown = report.value
    assert shown["first"] == ["WHY IS\nTHE SKY BLUE?"]
    assert "of 2,048 tokens" in shown["figures"] and "42.5 tokens/s" in shown["figures"]
    assert shown["title"] == "SmolLM2 135M Instruct"
    for line in (
        "98 MB",
        "Works offline\nyes",
        "2 logical cores",
        "Memory of this page\nmodel 123 MB, scripts ",
    ):
        assert line in shown["details"]
    assert shown["stopped"].startswith("PLENTY OF")
    assert len(shown["stopped"]) < 200
    assert shown["regenerates"] == 1
    first, *_, third, again = shown["calls"]
    assert first == {"temperature": 0.7, "limit": 512, "roles": "user"}
    assert third["roles"] == "system user assistant user assistant user"
    assert again == third | {"temperature": 0}
    assert shown["markup"] == "<IMG SRC=X ONERROR=ALERT(1)> <B>BOLD</B>"
    assert shown["elements"] == 0
    assert shown["markdown"] == (
        "<h4>STEPS</h4><p>FIRST <em>THIS</em>:</p>"
        "<ol><li><strong>ONE</strong> ITEM</li><li><code>TWO</code></li></ol>"
        "<pre><code>LET X = '&lt;B&gt;';</code></pre>"
    )
    assert shown["back"] == "too long"
    assert shown["left"] == 0
    assert shown["offline"]
    paths = [request["path"] for request in report.requests]
    assert paths.count("/weights.safetensors") == 1


def test_a_dark_phone(site: Path) -> None:
    shown = talk(site, {**PHONE, **DARK}, name="phone").value
    assert shown["overflow"] <= 0
    assert shown["stopped"].startswith("PLENTY OF")


def test_a_model_without_a_template_completes_texts(site: Path) -> None:
    assert talk(site, DESKTOP, "/?complete", completes=True).value["suggestions"] == 0


def test_a_question_can_be_written_while_the_model_loads(site: Path) -> None:
    """The page shows the download meanwhile."""
    shown = talk(site, DESKTOP, "/?slow", name="desktop", slow=True).value
    assert shown["waiting"] == "why is the sky blue?"
    assert shown["first"] == ["WHY IS THE SKY BLUE?"]


def test_firefox_chats_without_a_server(site: Path) -> None:
    [visit] = visit_twice({"/": site}, ("/", "chat"))
    assert visit.online == visit.offline == "WHY IS THE SKY BLUE?"
