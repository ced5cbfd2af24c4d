"""Download the files that packages on PyPI and npm carry, by the name of the package.

In: a requirement, such as "magika==1.0.3" or "nodejs-whisper@0.3.1". Out: the wheel or the archive,
downloaded once into `build/downloads`.

    with ZipFile(fetch_wheel("magika==1.0.3")) as wheel:
        model = wheel.read("magika/models/standard_v3_3/model.onnx")
"""

import re
import subprocess
import sys
from pathlib import Path

DOWNLOADS = Path(__file__).parents[1] / "build" / "downloads"
"""The folder of what was downloaded. Another run uses it again."""


def fetch_wheel(requirement: str, folder: Path = DOWNLOADS) -> Path:
    """Download the wheel of a pinned requirement, without what it depends on, unless it is there.

    Raises `CalledProcessError` if pip, which prints the reason, cannot download it.
    """
    name, _, version = requirement.partition("==")
    pattern = f"{re.sub(r'[-_.]+', '_', name)}-{version}-*.whl"
    if not any(folder.glob(pattern)):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", requirement]
        subprocess.run([*command, "--dest", str(folder)], check=True)
    return next(folder.glob(pattern))


def fetch_archive(requirement: str, folder: Path = DOWNLOADS) -> Path:
    """Download the archive of a pinned package of npm, which has no scope, unless it is there.

    Raises `CalledProcessError` if npm, which prints the reason, cannot download it.
    """
    archive = folder / f"{requirement.replace('@', '-')}.tgz"
    if not archive.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), requirement]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return archive
