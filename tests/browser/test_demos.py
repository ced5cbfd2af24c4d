"""The demos with weights from registries, used as a person would.

The expected answers are those of the models' own packages: magika 1.0.3 for file types, silero-vad
6.2.3 for speech, and transformers' BertModel with mean pooling for the search.
"""

from __future__ import annotations

import struct
import wave
import zlib
from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demos.chat.run
import demos.file_type.build
import demos.read_text.build
import demos.semantic_search.build
import demos.voice_activity.build
import webmlc
from demos.website import write_gallery, write_shared
from tests.browser.firefox import visit_twice
from tests.browser.pages import Page, PageReport, open_pages

DRIVER = Path(__file__).with_name("demos.mjs")
DESKTOP = {"viewport": {"width": 1000, "height": 700}}
DARK_PHONE = {
    "viewport": {"width": 360, "height": 740},
    "hasTouch": True,
    "isMobile": True,
    "colorScheme": "dark",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demos")
    write_shared(folder)
    write_gallery(folder)
    return folder


@pytest.fixture(scope="module")
def file_type(site: Path) -> Path:
    demos.file_type.build.build(site)
    return site


@pytest.fixture(scope="module")
def read_text(site: Path) -> Path:
    demos.read_text.build.build(site, target="wasm")
    return site


@pytest.fixture(scope="module")
def semantic_search(site: Path) -> Path:
    demos.semantic_search.build.build(site, target="wasm")
    return site


@pytest.fixture(scope="module")
def voice_activity(site: Path) -> Path:
    demos.voice_activity.build.build(site, target="wasm")
    return site


@pytest.fixture(scope="module")
def chat(site: Path) -> Path:
    webmlc.build(demos.chat.run.fetch_model(), site / "chat", target="wasm")
    write_gallery(site)
    return site


def use(
    site: Path,
    demo: str,
    context: dict[str, Any] = DESKTOP,
    query: str = "",
    delays: dict[str, float] | None = None,
    **arg: Any,
) -> PageReport:
    """Use a demo's page. No error may be on the console."""
    page = Page(f"/{demo}/{query}", script=str(DRIVER), arg={"demo": demo, **arg}, context=context)
    isolated = context is not DARK_PHONE
    [report] = open_pages({"/": site}, page, isolated=isolated, delays=delays)
    assert report.errors == []
    return report


def file(name: str, data: bytes) -> dict[str, str]:
    return {"name": name, "base64": b64encode(data).decode()}


def png() -> bytes:
    """A picture of 8 by 8 grey pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(range(8)) * 9)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    )


WASM = bytes.fromhex("0061736d0100000001070160027f7f017f03020100070701036164640000")
FILES = {
    "fibonacci": (
        b"def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n"
        b'    return a\n\n\nif __name__ == "__main__":\n'
        b"    print([fibonacci(n) for n in range(10)])\n"
    ),
    "table.txt": (
        b"city,country,population\nParis,France,2103000\nLyon,France,520000\n"
        b"Turin,Italy,841000\nGhent,Belgium,265000\n"
    ),
    "picture": png(),
    "bytes": bytes(range(1, 256)),
    "short": b"hello",
    "nothing": b"",
    "add.bin": WASM + bytes.fromhex("0a09010700200020016a0b"),
    "query": (
        b"  \n SELECT name, population FROM cities WHERE country = 'France'"
        b" ORDER BY population DESC LIMIT 10;\n\n"
    ),
}
"""Files whose names say nothing."""
TYPES: dict[str, tuple[str, float | None]] = {
    "fibonacci": ("python", 0.9998),
    "table.txt": ("csv", 0.9999),
    "picture": ("png", 1.0),
    "bytes": ("unknown", 0.1277),
    "short": ("txt", None),
    "nothing": ("empty", None),
    "add.bin": ("wasm", 1.0),
    "query": ("sql", 0.9999),
}
"""The type and the best score of each file. The model does not see a file of few bytes."""


@pytest.mark.parametrize("device", ["wasm", "webgpu"])
def test_file_types_are_those_of_magika(file_type: Path, device: str) -> None:
    files = [file(name, data) for name, data in FILES.items()]
    report = use(file_type, "file_type", query=f"?device={device}", files=files)
    answers = dict(zip(FILES, report.value["answers"], strict=True))
    assert {name: label for name, (label, _) in answers.items()} == {
        name: label for name, (label, _) in TYPES.items()
    }
    for name, (_, score) in TYPES.items():
        assert answers[name][1] == (score and pytest.approx(score, abs=2e-4)), name
    assert report.value["webmlc"][0].startswith("GPU" if device == "webgpu" else "CPU")
    assert not any(request["path"].startswith("/onnxruntime/") for request in report.requests)


def test_onnx_runtime_web_gives_the_same_answers_at_a_click(file_type: Path) -> None:
    shown = use(file_type, "file_type", examples=True, compare=True).value
    assert "differ by at most" in shown["status"]
    difference = float(shown["status"].partition("at most ")[2].split()[0])
    assert 0 < difference < 1e-5
    for column in ("webmlc", "onnxruntime"):
        device, time, download = shown[column]
        assert device == "CPU, 2 threads" and time.endswith(" ms") and download.endswith(" MB")
    sizes = [float(shown[column][2].split()[0]) for column in ("webmlc", "onnxruntime")]
    assert sizes[0] < 4 and sizes[1] > 17


def test_a_dark_phone_without_network_or_isolation(file_type: Path) -> None:
    shown = use(file_type, "file_type", DARK_PHONE, examples=True, reload=True).value
    labels = [label for label, _ in shown["answers"]]
    assert labels == ["javascript", "css", "json", "zlibstream", "svg", "html"]
    assert shown["webmlc"][0] == "CPU, 1 thread"
    assert shown["offline"].endswith("Works offline: yes.")
    assert shown["overflow"] <= 0


CARDS = """async () => {
  const cards = [...document.querySelectorAll(".gallery a")];
  const decode = (card) => card.querySelector("img").decode().then(() => true);
  const images = await Promise.all(cards.map(decode));
  const found = await Promise.all(cards.map(async (card) => (await fetch(card.href)).ok));
  return { demos: cards.map((card) => card.getAttribute("href")), images, found };
}"""


@pytest.mark.parametrize("width", [390, 1280])
def test_the_gallery_shows_the_demos_that_are_built(tmp_path: Path, width: int) -> None:
    write_shared(tmp_path)
    for demo in ("digits", "file_type"):
        (tmp_path / demo).mkdir()
        (tmp_path / demo / "index.html").write_text("<!doctype html>")
    (tmp_path / "chat").mkdir()  # whose build was broken off
    write_gallery(tmp_path)
    page = Page("/", CARDS, context={"viewport": {"width": width, "height": 800}})
    [report] = open_pages({"/": tmp_path}, page)
    assert report.value == {
        "demos": ["file_type/", "digits/"],
        "images": [True, True],
        "found": [True, True],
    }


SPEECH = ["0.32 – 2.27 s", "3.27 – 4.45 s", "5.38 – 7.68 s", "8.16 – 10.62 s"]
"""The spans of `get_speech_timestamps` in the page's example."""
MICROPHONE = {**DESKTOP, "permissions": ["microphone"]}


def test_speech_is_where_silero_hears_it(voice_activity: Path) -> None:
    shown = use(voice_activity, "voice_activity", compare=True).value
    assert shown["answers"] == SPEECH
    assert float(shown["status"].partition("at most ")[2].split()[0]) < 1e-4


def test_noise_on_a_phone_without_network_is_no_speech(voice_activity: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 3000, 32_000).astype("<i2").tobytes()
    with BytesIO() as buffer:
        with wave.open(buffer, "wb") as writer:
            writer.setparams((1, 2, 16_000, 0, "NONE", ""))
            writer.writeframes(noise)
        recording = file("noise.wav", buffer.getvalue())
    shown = use(voice_activity, "voice_activity", DARK_PHONE, reload=True, file=recording).value
    assert shown["answers"] == []
    assert shown["webmlc"][0] == "CPU, 1 thread"
    assert shown["overflow"] <= 0


def test_the_microphone_is_heard_until_it_is_stopped(voice_activity: Path) -> None:
    shown = use(voice_activity, "voice_activity", MICROPHONE, microphone=True).value
    assert " per 32 ms" in shown["heard"]


SEARCHES = {
    "I can't sign in": ("Forgot your login?", 0.5805),
    "I want a refund": ("To send an item back,", 0.3192),
    "my tablet is dead": ("If the screen stays black,", 0.4081),
    "Is there a discount for pupils?": ("Students and teachers", 0.4831),
}
"""The beginning of the best passage for a query, and its cosine."""


def test_the_best_passages_are_those_of_transformers(semantic_search: Path) -> None:
    shown = use(semantic_search, "semantic_search", queries=list(SEARCHES)).value
    for (passage, score), (text, cosine) in zip(shown["answers"], SEARCHES.values(), strict=True):
        assert passage.startswith(text)
        assert score == pytest.approx(cosine, abs=0.01)


TYPE_EARLY = """export default async ({ page, arg }) => {
  await page.keyboard.insertText(arg.query); // the field has the focus
  const before = await page.locator("#results li").count();
  const isBest = (passage) =>
    document.querySelector("#results li p")?.textContent.startsWith(passage);
  await page.waitForFunction(isBest, arg.passage); // first results come before all passages
  return { before, typed: await page.locator("#query").inputValue() };
};"""


def test_keys_are_taken_while_the_search_loads(semantic_search: Path, tmp_path: Path) -> None:
    script = tmp_path / "type_early.mjs"
    script.write_text(TYPE_EARLY)
    query, (passage, _) = next(iter(SEARCHES.items()))
    page = Page(
        "/semantic_search/",
        script=str(script),
        arg={"query": query, "passage": passage},
        context=DESKTOP,
    )
    delays = {"/semantic_search/model/manifest.json": 1500}
    [report] = open_pages({"/": semantic_search}, page, delays=delays)
    assert report.errors == []
    assert (report.value["before"], report.value["typed"]) == (0, query)


def test_an_own_text_is_searched_on_a_phone_without_network(semantic_search: Path) -> None:
    text = b"Rain is expected in the north.\n\nThe goalkeeper saved a penalty.\n\nShares fell."
    shown = use(
        semantic_search,
        "semantic_search",
        DARK_PHONE,
        delays={"/semantic_search/tokenizer.json": 3000},  # the service worker has control earlier
        reload=True,
        file=file("news.txt", text),
        queries=["weather", "football", "stock market"],
    ).value
    assert [passage.split()[0] for passage, _ in shown["answers"]] == ["Rain", "The", "Shares"]
    assert shown["webmlc"][0] == "CPU, 1 thread"
    assert shown["overflow"] <= 0


NOTICE = [
    "CITY LIBRARY",
    "Open Tuesday to Saturday",
    "from 9:30 am to 6 pm",
    "New books!",
    "Reading room: second floor",
    "Telephone 030 555 0142",
    "Free entry. No dogs, please.",
]
"""The text of the notice that the page draws, in several sizes, colours and angles."""
QUESTION = "Which planet is closest to the sun?"
"""A question to SmolLM2-135M-Instruct. Its answer is short and wrong."""
RECEIPT = """<body style="font: 28px monospace; background: #fffbe8; margin: 40px">
<p>Total: 42.90 EUR</p><p style="font: bold 40px serif">Thank you</p><p>Invoice No. 2031</p>"""


def test_text_is_read_as_it_was_written(read_text: Path) -> None:
    shown = use(read_text, "read_text", text=RECEIPT, compare=True).value
    assert shown["answers"] == ["Total: 42.90 EUR", "Thank you", "Invoice No. 2031"]
    assert shown["webmlc"][0] == "CPU, 2 threads"
    assert float(shown["status"].partition("at most ")[2].split()[0]) < 1e-3


def test_a_notice_is_read_on_a_phone_without_network(read_text: Path) -> None:
    shown = use(read_text, "read_text", DARK_PHONE, reload=True).value
    assert sorted(shown["answers"]) == sorted(NOTICE)
    assert shown["webmlc"][0] == "CPU, 1 thread"
    assert shown["overflow"] <= 0


def likeliest_answer(package: Path, question: str) -> str:
    """The answer of the package in Python."""
    model = webmlc.load(package, device="wasm", threads=2)
    answer = "".join(model.generate([{"role": "user", "content": question}], temperature=0))
    model.dispose()
    return answer


def test_a_chat_of_the_gallery_on_a_phone_without_network(chat: Path) -> None:
    arg = {"question": QUESTION}
    script = str(DRIVER.with_name("chat_demo.mjs"))
    page = Page("/", script=script, arg=arg, context=DARK_PHONE)
    [report] = open_pages({"/": chat}, page, isolated=False)
    assert report.errors == []
    answer = likeliest_answer(chat / "chat", QUESTION)
    assert answer.startswith("The planet closest to the sun is")
    assert report.value["online"] == report.value["offline"] == answer
    assert report.value["overflow"] <= 0


@pytest.mark.usefixtures("file_type", "voice_activity", "semantic_search", "read_text", "chat")
def test_firefox_uses_every_page_without_a_server(site: Path) -> None:
    types, speech, passage, lines, answer = visit_twice(
        {"/": site},
        ("/file_type/", "fileTypes"),
        ("/voice_activity/", "speech"),
        ("/semantic_search/", "search"),
        ("/read_text/", "readText"),
        ("/chat/", "planet"),
    )
    expected = ["html", "svg", "zlibstream", "json", "css", "javascript"]
    assert types.online == types.offline == expected
    assert speech.online == speech.offline == SPEECH
    for text in (passage.online, passage.offline):
        assert text.startswith("Forgot your login?")
    for texts in (lines.online, lines.offline):
        assert sorted(texts) == sorted(NOTICE)
    assert answer.online == answer.offline == likeliest_answer(site / "chat", QUESTION)
