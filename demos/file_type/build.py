"""Build the page that says what a file is, from the model of the package `magika`.

In: PyPI's `magika` (Apache-2.0; the model has 3.2 MB), downloaded by name.
Out: `build/demos/file_type/`.

    python demos/file_type/build.py && webmlc serve build/demos
"""

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import onnx

from demos.packages import fetch_wheel
from demos.website import SITE, write_package, write_page, write_shared

MAGIKA = "magika==1.0.3"
MODEL = "magika/models/standard_v3_3"
TYPES = "magika/config/content_types_kb.min.json"
GENERAL_TYPES = ("empty", "txt", "unknown")
"""The types of files that the model does not see, or about which it is not sure."""


def build(site: Path = SITE, **options: Any) -> None:
    """Write the page and its package. `options` are those of `webmlc.build`."""
    with ZipFile(fetch_wheel(MAGIKA)) as wheel:
        model = onnx.load_from_string(wheel.read(f"{MODEL}/model.onnx"))
        configuration = json.loads(wheel.read(f"{MODEL}/config.min.json"))
        types = json.loads(wheel.read(TYPES))
    folder = write_page(Path(__file__).parent, site)
    names = {*configuration["target_labels_space"], *GENERAL_TYPES}
    names.update(configuration["overwrite_map"].values())
    answers = {
        "configuration": configuration,
        "types": {name: types[name] for name in sorted(names)},
    }
    (folder / "types.json").write_text(json.dumps(answers, indent=1))
    write_package(folder, "model", model, **options)


if __name__ == "__main__":
    write_shared(SITE)
    build()
