"""Refuse a model with a name that is not valid text.

In: a parsed model. Out: nothing, or a `ModelError` that names the field. Protobuf's Python library
returns a name that is not UTF-8 as bytes. Descriptions may be any bytes: nothing reads them, and
exporters copy paths of any encoding into them.
"""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

from webmlc.core.errors import ModelError

STRING, MESSAGE = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE
UNREAD = frozenset(
    {"doc_string", "metadata_props", "producer_name", "producer_version", "training_info"}
)
"""The fields of descriptions, and other fields that inference does not need."""


def check_texts(message: Message) -> None:
    """Raise `ModelError` for the first name that is not UTF-8."""
    pending = [message]
    while pending:
        part = pending.pop()
        for field, value in part.ListFields():
            if field.name in UNREAD or field.type not in (STRING, MESSAGE):
                continue
            values = (value,) if isinstance(value, Message | str | bytes) else value
            if field.type == MESSAGE:
                pending.extend(values)
                continue
            for text in values:
                if isinstance(text, bytes):
                    raise ModelError(
                        f"the {field.name} {text!r} of a {part.DESCRIPTOR.name} is not UTF-8. "
                        "Export the model again, or rename it with onnx"
                    )
