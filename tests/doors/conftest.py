"""The option that chooses architectures, and the end of a session.

The process ends by the result of the tests, before Python takes its modules apart. A process that
exports with Keras on TensorFlow 2.21 and then runs a package can abort when Python ends (`free():
invalid pointer`), after all tests have passed. The cause is not known; either alone ends well.
"""

import os
import sys

import pytest

STATUS = pytest.StashKey[int]()
"""The exit status of the session."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--architectures", default="", help="all, or names of tests/doors/architectures.py"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "architecture" in metafunc.fixturenames:
        from tests.doors.architectures import ARCHITECTURES, REPRESENTATIVE

        names = metafunc.config.getoption("architectures")
        chosen = ARCHITECTURES if names == "all" else names.split(",") if names else REPRESENTATIVE
        metafunc.parametrize("architecture", list(chosen))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[STATUS] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(config.stash.get(STATUS, 1))
