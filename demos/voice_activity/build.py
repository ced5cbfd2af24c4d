"""Build the page that shows where somebody speaks, from the model of the package `silero-vad`.

In: PyPI's `silero-vad` (MIT; the model has 1.2 MB), and as an example 11 seconds of Kennedy's
inaugural address (public domain) from npm's `nodejs-whisper`, both downloaded by name.
Out: `build/demos/voice_activity/`.

    python demos/voice_activity/build.py && webmlc serve build/demos
"""

import tarfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import onnx

from demos.packages import fetch_archive, fetch_wheel
from demos.website import SITE, write_package, write_page, write_shared

SILERO = "silero-vad==6.2.3"
MODEL = "silero_vad/data/silero_vad_16k_sequence.onnx"
"""The model that takes many windows of 16 kHz in one run."""
SPEECHES = "nodejs-whisper@0.3.1"
SPEECH = "package/cpp/whisper.cpp/bindings/go/samples/jfk.wav"


def build(site: Path = SITE, **options: Any) -> None:
    """Write the page and its package. `options` are those of `webmlc.build`."""
    with ZipFile(fetch_wheel(SILERO)) as wheel:
        model = onnx.load_from_string(wheel.read(MODEL))
    folder = write_page(Path(__file__).parent, site)
    with tarfile.open(fetch_archive(SPEECHES)) as archive:
        speech = archive.extractfile(SPEECH)
        assert speech is not None
        (folder / "speech.wav").write_bytes(speech.read())
    write_package(folder, "model", model, **options)


if __name__ == "__main__":
    write_shared(SITE)
    build()
