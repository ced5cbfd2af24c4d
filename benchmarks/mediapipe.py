"""Get MediaPipe's models: the TensorFlow Lite files in its wheel.

In: nothing. Out: the path of each file, in `build/mediapipe/`. pip downloads the wheel once.

    mediapipe_files()["palm_detection_lite"]
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "build" / "mediapipe"
"""The folder of the wheel and of its models."""
WHEEL = "mediapipe==0.10.14"
"""The version whose 14 models are measured. Later wheels contain fewer models."""
NAMES = (
    "face_detection_full_range_sparse",
    "face_detection_short_range",
    "face_landmark",
    "face_landmark_with_attention",
    "hand_landmark_full",
    "hand_landmark_lite",
    "hand_recrop",
    "iris_landmark",
    "palm_detection_full",
    "palm_detection_lite",
    "pose_detection",
    "pose_landmark_full",
    "selfie_segmentation",
    "selfie_segmentation_landscape",
)
"""The models in the wheel."""


def mediapipe_files() -> Mapping[str, Path]:
    """The files by the names of the models. Raises `FileNotFoundError` if pip cannot download the
    wheel.
    """
    files = {name: FOLDER / f"{name}.tflite" for name in NAMES}
    if not all(file.is_file() for file in files.values()):
        FOLDER.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(_wheel()) as archive:
            for member in archive.namelist():
                if (name := Path(member).stem) in files and member.endswith(".tflite"):
                    files[name].write_bytes(archive.read(member))
    return files


def _wheel() -> Path:
    """The wheel, which pip downloads if it is missing. Any platform's wheel has the models."""
    pattern = f"{WHEEL.replace('==', '-')}-*.whl"
    if not list(FOLDER.glob(pattern)):
        platform = ["--python-version", "3.11", "--platform", "manylinux2014_x86_64"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *platform]
        run = subprocess.run([*command, "--dest", str(FOLDER), WHEEL], check=False)
        if run.returncode:
            raise FileNotFoundError(f"pip cannot download {WHEEL}")
    return next(FOLDER.glob(pattern))
