"""Download the files that packages on PyPI and npm carry, by the name of the package.

In: a requirement, such as "magika==1.0.3" or "nodejs-whisper@0.3.1". Out: the wheel or the archive,
downloaded once into `build/downloads`.

    with ZipFile(fetch_wheel("magika==1.0.3")) as wheel:
        model = wheel.read("magika/models/standard_v3_3/model.onnx")
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOWNLOADS = Path(__file__).parents[1] / "build" / "downloads"
"""The folder of what was downloaded. Another run uses it again."""


def fetch_wheel(requirement: str, folder: Path = DOWNLOADS) -> Path:
    """Download the wheel of a pinned requirement, without what it depends on, unless it is there.

    Raises `CalledProcessError` if pip, which prints the reason, cannot download it.
    """
    name, _, version = requirement.partition("==")
    pattern = f"{re.sub(r'[-_.]+', '_', name)}-{version}-*.whl"
    pip = [sys.executable, "-m", "pip", "download", "--quiet"]
    return _fetch(pattern, folder, [*pip, "--no-deps", requirement, "--dest"])


def fetch_archive(requirement: str, folder: Path = DOWNLOADS) -> Path:
    """Download the archive of a pinned package of npm, which has no scope, unless it is there.

    Raises `CalledProcessError` if npm, which prints the reason, cannot download it.
    """
    command = ["npm", "pack", "--silent", requirement, "--pack-destination"]
    return _fetch(f"{requirement.replace('@', '-')}.tgz", folder, command)


def _fetch(pattern: str, folder: Path, command: list[str]) -> Path:
    """The file in the folder; if there is none, the one that the command writes into a new folder.

    It is moved when it is whole, because several processes may want it at the same time.
    """
    for file in folder.glob(pattern):
        return file
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as part:
        subprocess.run([*command, part], check=True, stdout=subprocess.DEVNULL)
        file = next(Path(part).glob(pattern))
        return file.replace(folder / file.name)
