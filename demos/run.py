"""Build the demos and their gallery, and serve them on this machine.

In: packages on PyPI and npm, downloaded by name. Out: `build/demos/`, whose page is the gallery.

    python demos/run.py                       # prints an address; Ctrl-C stops
    python demos/run.py file_type digits      # builds only these demos
    python demos/run.py --no-serve
"""

import argparse
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rich.console import Console

import demos.chat.run
import demos.digits.build
import demos.file_type.build
import demos.kernels.build
import demos.read_text.build
import demos.semantic_search.build
import demos.voice_activity.build
import webmlc
from demos.website import ROOT, SITE, write_gallery, write_shared
from webmlc.host.serve import serve

BUILDS: dict[str, Callable[[Path], object]] = {
    "digits": lambda site: demos.digits.build.build(site / "digits"),
    "file_type": demos.file_type.build.build,
    "kernels": demos.kernels.build.build,
    "read_text": demos.read_text.build.build,
    "semantic_search": demos.semantic_search.build.build,
    "voice_activity": demos.voice_activity.build.build,
    "chat": lambda site: webmlc.build(demos.chat.run.fetch_model(), site / "chat"),
}
"""The function that builds each demo into the folder of the site."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Build the demos and their gallery, and serve them."
    )
    parser.add_argument("demos", nargs="*", metavar="DEMO", help=f"some of: {', '.join(BUILDS)}")
    parser.add_argument("--no-serve", action="store_true", help="only build")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.demos) - BUILDS.keys()):
        parser.error(f"no such demo: {', '.join(unknown)}")
    console = Console()
    write_shared(SITE)
    for name in arguments.demos or BUILDS:
        with console.status(f"building {name}"):
            BUILDS[name](SITE)
        write_gallery(SITE)
        console.print(f"built {(SITE / name).relative_to(ROOT)}")
    if arguments.no_serve:
        return
    with serve(SITE, quiet=True) as server, suppress(KeyboardInterrupt):
        console.print(f"Demos at [bold]{server.url}[/] (Ctrl-C stops)")
        server.serve_forever()


if __name__ == "__main__":
    main()
