"""Build the digits page and its package.

In: `digits.onnx` beside this file, which `train.py` writes.
Out: `build/digits/`, the page with the package in `model/`.

    python demos/digits/build.py && webmlc serve build/digits
"""

import shutil
from pathlib import Path

import webmlc
from demos.website import ROOT, SHARED, write_offline

HERE = Path(__file__).parent
SITE = ROOT / "build" / "digits"
"""The folder of the page."""
PAGE_FILES = ("index.html", "style.css", "icon.svg", "page.js", "pad.js", "preprocess.js")


def build(site: Path = SITE) -> Path:
    """Write the page and its package, and return the folder of the package."""
    site.mkdir(parents=True, exist_ok=True)
    for name in PAGE_FILES:
        shutil.copyfile(HERE / name, site / name)
    shutil.copyfile(SHARED / "downloads.js", site / "downloads.js")
    write_offline(site, site)
    webmlc.build(HERE / "digits.onnx", site / "model", target="both")
    return site / "model"


if __name__ == "__main__":
    build()
