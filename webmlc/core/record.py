"""The base class of the records that are stored as JSON. Other forms follow from their fields.

A field with its default value is not written, and a key that is no field is an error:

    >>> import msgspec
    >>> class Size(Record):
    ...     width: int
    ...     height: int = 1
    >>> msgspec.json.encode(Size(3))
    b'{"width":3}'

`package.manifest_schema` derives the checks of the JavaScript runtime and its types.
"""

from __future__ import annotations

from typing import dataclass_transform

from msgspec import Struct, field


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Record(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A record that msgspec reads and writes. Use `msgspec.structs.replace` to change a copy."""
