"""Why a kernel has another schedule than the default one. Apart from the rules, which take long to
import, because every manifest is read with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from webmlc.schedule.rules.space import Value


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of a search.

    - `changes`: the parameters that differ from the default ones.
    - `platform`: what they were measured on.
    - `ratio`: the measured time, relative to that of the default schedule.
    """

    changes: Mapping[str, Value]
    platform: str
    ratio: float
