"""The options of a generation, with the names that Hugging Face's transformers uses.

In: the arguments of `model.generate`, and the package's `generation_config.json`. Out: `Options`,
whose values are checked. `runtime_js/language/options.js` is the twin.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any, TypedDict

from webmlc.core.errors import InputError
from webmlc.generate.random_numbers import SEED_LIMIT

MAX_NEW_TOKENS = 512
"""The tokens of an answer, unless the caller or the package says otherwise."""


class GenerateOptions(TypedDict, total=False):
    """The arguments of `model.generate`. `Options` says what they mean."""

    max_new_tokens: int
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    stop: str | Sequence[str]
    capacity: int
    template_arguments: Mapping[str, Any]
    streamer: Callable[[str], object]
    is_interrupted: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one generation.

    - `max_new_tokens`: the most tokens of the answer.
    - `do_sample`: draw tokens at random; else take the most likely ones. The default is the
      package's. A `temperature` in the arguments turns it on, and 0 turns it off.
    - `temperature`: above 1, unlikely tokens become more likely; below 1, less likely.
    - `top_k`: the number of most likely tokens to draw among; 0 for all tokens.
    - `top_p`: draw among the fewest tokens whose probabilities sum up to this.
    - `min_p`: draw among tokens that are at least this likely, relative to the most likely one.
    - `repetition_penalty`: above 1, tokens of the prompt and of the answer become less likely.
    - `seed`: the same seed draws the same tokens. The default is random.
    - `stop`: strings that end the answer. The answer does not contain them.
    - `capacity`: the tokens for which the session has memory, at most the model's context. By
      default, the capacity grows when needed, up to the model's context.
    - `template_arguments`: more variables of the chat template, such as `enable_thinking`.
    - `streamer`: is called with every piece of text.
    - `is_interrupted`: is called before every run; True ends the generation.
    """

    max_new_tokens: int
    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    stop: tuple[str, ...]
    capacity: int | None
    template_arguments: Mapping[str, Any]
    streamer: Callable[[str], object] | None
    is_interrupted: Callable[[], bool] | None


def read_options(config: Mapping[str, Any], arguments: Mapping[str, Any]) -> Options:
    """Fill in the defaults, and check every value.

    The defaults come from `generation_config.json`, and then from transformers. Raises
    `InputError`.
    """
    for name in arguments:
        if name not in GenerateOptions.__annotations__:
            names = ", ".join(GenerateOptions.__annotations__)
            raise InputError(f"generate has no option {name!r}; it has {names}")

    def value(name: str, default: Any) -> Any:
        for source in (arguments, config):
            if source.get(name) is not None:
                return source[name]
        return default

    temperature = value("temperature", 1.0)
    is_sampling = value("do_sample", False)
    if arguments.get("do_sample") is None and arguments.get("temperature") is not None:
        is_sampling = True
    if not isinstance(is_sampling, bool):
        raise InputError(f"do_sample is {is_sampling!r}, expected True or False")
    stop, seed = value("stop", ()), value("seed", None)
    options = Options(
        max_new_tokens=value("max_new_tokens", MAX_NEW_TOKENS),
        do_sample=is_sampling and temperature != 0,
        temperature=temperature,
        top_k=value("top_k", 50),
        top_p=value("top_p", 1.0),
        min_p=value("min_p", 0.0),
        repetition_penalty=value("repetition_penalty", 1.0),
        seed=secrets.randbits(32) if seed is None else seed,
        stop=tuple(stop) if isinstance(stop, list | tuple) else (stop,),
        capacity=arguments.get("capacity"),
        template_arguments=value("template_arguments", {}),
        streamer=arguments.get("streamer"),
        is_interrupted=arguments.get("is_interrupted"),
    )
    _check(options)
    return options


def _check(options: Options) -> None:
    """Raise `InputError` for the first value that is out of range, or of another type."""
    for name, least in (("max_new_tokens", 1), ("top_k", 0), ("seed", 0), ("capacity", 1)):
        whole = getattr(options, name)
        if name == "capacity" and whole is None:
            continue
        if not isinstance(whole, Integral) or isinstance(whole, bool) or int(whole) < least:
            raise InputError(f"{name} is {whole!r}, expected a whole number of at least {least}")
    if options.seed >= SEED_LIMIT:
        raise InputError(f"seed is {options.seed}, expected a number below 2³²")
    for name, fits, expected in _NUMBERS:
        number = getattr(options, name)
        is_number = isinstance(number, Real) and not isinstance(number, bool)
        if not is_number or not isfinite(number) or not fits(number):
            raise InputError(f"{name} is {number!r}, expected a number {expected}")
    if not all(isinstance(text, str) and text for text in options.stop):
        raise InputError(f"stop is {options.stop!r}, expected strings that are not empty")
    if not isinstance(options.template_arguments, Mapping):
        raise InputError(f"template_arguments is {options.template_arguments!r}, expected a dict")
    for name in ("streamer", "is_interrupted"):
        function = getattr(options, name)
        if function is not None and not callable(function):
            raise InputError(f"{name} is {function!r}, expected a function")


_NUMBERS: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("temperature", lambda x: x >= 0, "of at least 0"),
    ("top_p", lambda x: 0 < x <= 1, "above 0, and at most 1"),
    ("min_p", lambda x: 0 <= x <= 1, "from 0 to 1"),
    ("repetition_penalty", lambda x: x > 0, "above 0"),
)
"""The options that are finite numbers, with their ranges."""
