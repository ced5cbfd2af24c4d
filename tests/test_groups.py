"""One worker of pytest-xdist runs all tests of a group, so that they share what they build."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("shared")
def test_the_name_of_a_test_ends_with_its_group(request: pytest.FixtureRequest) -> None:
    """pytest-xdist reads the group there, with `--dist loadgroup` only. Where it is missing, each
    worker builds what the tests of a group share, and nothing else shows it.
    """
    uses_groups = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@shared") == uses_groups
