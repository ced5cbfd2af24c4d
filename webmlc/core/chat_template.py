"""The environment of chat templates, as transformers has it.

In: nothing. Out: an environment of Jinja, which parses and renders the templates of models. The
extra `chat` of webmlc installs Jinja.

    template_environment().from_string("{% for m in messages %}...").render(messages=messages)
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


def template_environment() -> Environment:
    """An environment whose sandbox hides Python's internals: a template comes with the model, so it
    is not trusted.
    """
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        # The filter of Jinja escapes HTML.
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return environment
