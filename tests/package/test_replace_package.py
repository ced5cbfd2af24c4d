"""A package replaces an older one whole, and nothing else."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from webmlc.core.errors import PackageError
from webmlc.package.replace_package import replaced_package

OLD = {"index.html": "old page", "weights": "old weights", "kernels": "old kernels"}
NEW = {"index.html": "new page", "weights": "new weights", "tokens": "new tokens"}


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def with_manifest(files: dict[str, str]) -> dict[str, str]:
    entries = {name: {"bytes": len(t), "sha256": hash_of(t)} for name, t in files.items()}
    return files | {"manifest.json": json.dumps({"format": "webmlc", "files": entries})}


def write(out: Path, files: dict[str, str], force: bool = False) -> None:
    with replaced_package(out, force=force) as staging:
        for name, text in with_manifest(files).items():
            (staging / name).write_text(text)


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_nothing_of_an_older_package_stays(tmp_path: Path) -> None:
    write(tmp_path, OLD)
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, NEW)
    assert texts(tmp_path) == with_manifest(NEW) | {"notes.txt": "mine"}


@pytest.mark.parametrize(
    "entry",
    [{}, None, [], "text", {"sha256": hash_of("other")}, {"sha256": ""}, {"sha256": 5}],
    ids=str,
)
def test_a_file_is_not_removed_because_a_manifest_names_it(tmp_path: Path, entry: object) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    files = {"thesis.txt": entry}
    (tmp_path / "manifest.json").write_text(json.dumps({"format": "webmlc", "files": files}))
    write(tmp_path, NEW)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["../thesis.txt", "/thesis.txt", "folder/thesis.txt", "..", ""])
def test_no_manifest_names_a_file_elsewhere(tmp_path: Path, name: str) -> None:
    out = tmp_path / "package"
    for folder in (tmp_path, out / "folder"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "thesis.txt").write_text("mine")
    name = str(tmp_path / "thesis.txt") if name.startswith("/") else name
    files = {name: {"sha256": hash_of("mine")}}
    (out / "manifest.json").write_text(json.dumps({"format": "webmlc", "files": files}))
    write(out, NEW)
    assert (tmp_path / "thesis.txt").exists() and (out / "folder" / "thesis.txt").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("manifest.json", '{"name": "my web app"}'),
        ("manifest.json", "[" * 100_000),
        ("index.html", "<h1>My page</h1>"),
    ],
    ids=["another manifest", "a deep manifest", "a page"],
)
def test_what_no_build_wrote_is_replaced_by_force_only(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(PackageError, match=rf"no build of webmlc wrote \({name}\).*--force"):
        write(tmp_path, NEW)
    assert texts(tmp_path) == {name: text}
    write(tmp_path, NEW, force=True)
    assert texts(tmp_path) == with_manifest(NEW)


def test_a_changed_file_of_the_older_package_is_replaced_by_force_only(tmp_path: Path) -> None:
    write(tmp_path, OLD)
    for name in ("index.html", "kernels"):
        (tmp_path / name).write_text("mine")
    before = texts(tmp_path)
    with pytest.raises(PackageError, match=r"\(index\.html\), or that were changed since"):
        write(tmp_path, NEW)
    assert texts(tmp_path) == before
    write(tmp_path, NEW, force=True)
    assert texts(tmp_path) == with_manifest(NEW) | {"kernels": "mine"}


def test_a_file_that_has_the_new_bytes_already_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(NEW["index.html"])
    write(tmp_path, NEW)
    assert texts(tmp_path) == with_manifest(NEW)


def test_a_package_of_another_version_is_replaced(tmp_path: Path) -> None:
    manifest = {"format": "webmlc", "version": 0, "files": {"old": {"sha256": hash_of("old")}}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "old").write_text("old")
    write(tmp_path, NEW)
    assert texts(tmp_path) == with_manifest(NEW)


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "tokens").mkdir()
    with pytest.raises(PackageError, match="tokens is a folder"):
        write(tmp_path, NEW, force)
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_links_are_replaced_and_what_they_name_stays(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "package", tmp_path / "elsewhere"
    elsewhere.mkdir()
    out.symlink_to(elsewhere)
    write(out, OLD)
    (elsewhere / "weights").rename(tmp_path / "weights")
    (elsewhere / "weights").symlink_to(tmp_path / "weights")
    write(out, NEW)
    assert out.is_symlink() and texts(elsewhere) == with_manifest(NEW)
    assert not (out / "weights").is_symlink()
    assert (tmp_path / "weights").read_text() == OLD["weights"]
    (out / "kernels").symlink_to("nothing")
    with pytest.raises(PackageError, match=r"\(kernels\)"):
        write(out, OLD)


def test_the_current_folder_holds_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path(), OLD)
    write(Path("."), NEW)
    assert texts(tmp_path) == with_manifest(NEW)


@pytest.fixture(params=[0, 1, 3])
def failing_move(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system on which one of the moves fails."""
    moves, replace = iter(range(100)), Path.replace

    def move(path: Path, target: Path) -> Path:
        if next(moves) == request.param:
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", move)


@pytest.mark.usefixtures("failing_move")
def test_a_failed_move_is_undone(tmp_path: Path) -> None:
    out = tmp_path / "package"
    out.mkdir()
    for name, text in with_manifest(OLD).items():
        (out / name).write_text(text)
    with pytest.raises(
        PackageError, match=r"cannot write a package here \(Device or resource busy"
    ):
        write(out, NEW)
    assert texts(out) == with_manifest(OLD)
    write(out, NEW)
    assert texts(out) == with_manifest(NEW)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EFBIG])
def test_a_full_disk_is_one_error_and_leaves_the_older_package(tmp_path: Path, error: int) -> None:
    out = tmp_path / "package"
    write(out, OLD)
    for folder in (out, tmp_path / "new" / "deeper"):
        with (
            pytest.raises(PackageError, match=os.strerror(error)),
            replaced_package(folder) as staging,
        ):
            (staging / "weights").write_text("half")
            raise OSError(error, os.strerror(error))
    assert texts(out) == with_manifest(OLD)
    assert not (tmp_path / "new").exists()


KILLED = """
import os, pathlib, sys
from tests.package.test_replace_package import NEW, write
replace, moves = pathlib.Path.replace, iter(range(100))
def dying(self, target):
    if next(moves) == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
    return replace(self, target)
pathlib.Path.replace = dying
write(pathlib.Path(sys.argv[1]), NEW)
"""


@pytest.mark.parametrize("moves", [0, 1, 3])
def test_the_next_build_puts_an_older_package_back(tmp_path: Path, moves: int) -> None:
    """A build is killed while it moves files; the next one fails after it has put them back."""
    write(tmp_path, OLD)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(moves)]
    killed = subprocess.run(command, timeout=60, check=False, cwd=root)
    assert killed.returncode == -signal.SIGKILL
    with pytest.raises(ZeroDivisionError), replaced_package(tmp_path):
        _ = 1 / 0
    assert texts(tmp_path) == with_manifest(OLD)


def test_builds_at_once_leave_the_package_of_one(tmp_path: Path) -> None:
    packages = [with_manifest(dict.fromkeys(f"{number}shared", f"{number}")) for number in "abcd"]

    def build(number: int) -> None:
        files = {name: t for name, t in packages[number].items() if name != "manifest.json"}
        write(tmp_path / "new" / "package", files)

    with ThreadPoolExecutor(4) as threads:
        for _ in range(10):
            list(threads.map(build, range(4)))
            assert texts(tmp_path / "new" / "package") in packages


def test_a_folder_that_vanishes_while_a_build_waits_is_made_again(tmp_path: Path) -> None:
    out = tmp_path / "package"

    def fail() -> None:
        with replaced_package(out) as staging:
            (staging / "weights").write_text("half")
            raise KeyError

    def results() -> Iterator[object]:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(20):
                failures = [threads.submit(fail) for _ in range(3)]
                threads.submit(write, out, NEW).result()
                yield from (type(failure.exception()) for failure in failures)

    assert set(results()) == {KeyError}
    assert texts(out) == with_manifest(NEW)
