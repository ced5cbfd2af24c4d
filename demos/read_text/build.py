"""Build the page that reads text in pictures, from the models of the package `rapidocr`.

In: PyPI's `rapidocr` (Apache-2.0; PP-OCRv6, 31 MB), downloaded by name.
Out: `build/demos/read_text/`.

    python demos/read_text/build.py && webmlc serve build/demos
"""

from pathlib import Path
from typing import Any
from zipfile import ZipFile

import onnx
from onnx import TensorProto, helper

from demos.packages import fetch_wheel
from demos.website import SITE, write_package, write_page, write_shared

RAPIDOCR = "rapidocr==3.10.0"
MODELS = "rapidocr/models"


def build(site: Path = SITE, **options: Any) -> None:
    """Write the page and its packages. `options` are those of `webmlc.build`."""
    with ZipFile(fetch_wheel(RAPIDOCR)) as wheel:
        detector = onnx.load_from_string(wheel.read(f"{MODELS}/PP-OCRv6_det_small.onnx"))
        recogniser = onnx.load_from_string(wheel.read(f"{MODELS}/PP-OCRv6_rec_small.onnx"))
    folder = write_page(Path(__file__).parent, site)
    (metadata,) = (p.value for p in recogniser.metadata_props if p.key == "character")
    characters = ["", *metadata.splitlines(), " "]
    for model, output in ((detector, "probability"), (recogniser, "text")):
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
        model.graph.node.append(helper.make_node("Identity", ["fetch_name_0"], [output]))
        model.graph.output[0].name = output
    write_package(folder, "detector", detector, **options)
    decoding = {"ctc": True, "scores": "none", "labels": characters}
    original = with_best_class(recogniser)
    options = {"outputs": {"text": decoding}, **options}
    write_package(folder, "recogniser", recogniser, original, **options)


def with_best_class(recogniser: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the best class of each step and its score, instead of the scores of all
    classes: ONNX Runtime Web would need longer to copy these than to find the best ones.
    """
    model = onnx.ModelProto()
    model.CopyFrom(recogniser)
    (scores,) = (output.name for output in model.graph.output)
    best = helper.make_node("ArgMax", [scores], ["class"], axis=-1, keepdims=0)
    score = helper.make_node("ReduceMax", [scores], ["score"], axes=[-1], keepdims=0)
    model.graph.node.extend((best, score))
    del model.graph.output[:]
    for name, dtype in (("class", TensorProto.INT64), ("score", TensorProto.FLOAT)):
        model.graph.output.append(helper.make_tensor_value_info(name, dtype, [1, "steps"]))
    return model


if __name__ == "__main__":
    write_shared(SITE)
    build()
