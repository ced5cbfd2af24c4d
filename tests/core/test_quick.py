"""A quick constructor builds what that of the dataclass builds."""

import pickle
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from webmlc.core.interning import quick


@quick
@dataclass(frozen=True, slots=True)
class Quick:
    """A record with a default, which stores one field in another form."""

    first: int
    second: str = "two"

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", self.first + 1)


@dataclass(frozen=True, slots=True)
class Plain:
    """The same fields with the constructor of `dataclass`."""

    first: int
    second: str = "two"

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", self.first + 1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((1,), {}), ((1, "b"), {}), ((1,), {"second": "b"}), ((), {"second": "b", "first": 1})],
)
def test_arguments_become_the_same_fields(
    arguments: tuple[int, str], named: dict[str, str]
) -> None:
    plain = Plain(*arguments, **named)  # type: ignore[arg-type]
    record = Quick(*arguments, **named)  # type: ignore[arg-type]
    assert (record.first, record.second) == (plain.first, plain.second)
    assert replace(record, second="c") == Quick(plain.first, "c")
    assert pickle.loads(pickle.dumps(record)) == record


@pytest.mark.parametrize("arguments", [(), (1, "b", 2)])
def test_a_wrong_number_of_arguments_is_refused(arguments: tuple[int, ...]) -> None:
    with pytest.raises(TypeError, match="argument"):
        Quick(*arguments)  # type: ignore[arg-type]


def test_the_record_stays_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Quick(1).first = 2  # type: ignore[misc]
