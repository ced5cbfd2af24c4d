"""The reason why a kernel does not have its default schedule. Apart from the rules, which take long
to import, because every manifest is read with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from webmlc.core.record import Record


class Tuning(Record):
    """The result of a search.

    - `changes`: the parameters that differ from the default.
    - `platform`: where the changes were measured.
    - `ratio`: the measured time over the time of the default schedule.
    """

    changes: Mapping[str, Any]
    platform: str
    ratio: float
