"""Keep the states of recurrent models in sessions.

In: a function after `use_states`. Out: the same function; `Module.state_ports` has further pairs of
an input and an output, whose state the output replaces after each run.

    func main(%input: float32[1, 576], %state: float32[2, 1, 128])
      ...                                                     ->   StatePort("state", "stateN", ...)
      return %output, %stateN                                      (is_replaced)

A pair is an input and an output that the model's author clearly meant as a state:
- The input and the output have one stem, which has a word of `_WORDS` or is one of `_LETTERS`. The
  input may add an affix such as `_in`, `0` or `past_`. The output adds one such as `N`, `_out` or
  `new_`.
- They have one type. A size that only the input has is the size of the output, which the next run
  reads.
- The model reads the input, and does not only return it as the output.
- The model has other inputs and other outputs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace

from webmlc.core.expr import Expr, Var
from webmlc.core.rewrite import substitute, variables
from webmlc.graph.ir import Function, Module, StatePort, TensorType, consumers, producers
from webmlc.graph.simplify.use_states import symbols_of

_PAST = ("", "in_", "past_", "prev_", "previous_", "old_", "initial_", "init_"), (
    "_in", "_past", "_prev", "_old", "_init", "_0", "0",
)  # fmt: skip
"""The prefixes and suffixes of inputs in the exporters and examples of PyTorch, Keras, NeMo, sherpa
and Silero. The name may also be the stem alone.
"""
_PRESENT = ("out_", "present_", "new_", "next_", "updated_", "final_"), (
    "_out", "_present", "_new", "_next", "_updated", "_n", "n",
)  # fmt: skip
"""The prefixes and suffixes of outputs. Each output has one, because the names of values are
unique.
"""
_WORDS = re.compile("state|hidden|cell|cache|mem|buf|carry|rnn|lstm|gru|past|hist|key|value")
"""Words in the stems of states."""
_LETTERS = frozenset({"h", "c", "hx", "cx"})
"""The stems of the hidden and the cell state of recurrent layers, as PyTorch names them."""
_MOVES = frozenset({"Identity", "View", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that return their first input, perhaps in another shape."""


def use_recurrent_states(module: Module) -> Module:
    """Add the pairs of `main`.

    needs: inferred types. guarantees: the functions are unchanged. `lower_module` replaces the
    states; until then, they are inputs and outputs.
    """
    main = module.main
    state_inputs = {port.past for port in module.state_ports}
    pairs = dict(_pairs(main, state_inputs))
    bound = symbols_of(main, set(main.inputs) - pairs.keys() - state_inputs)
    equal, ports = dict(module.equal_symbols), list[StatePort]()
    for _ in pairs:  # a size may be known by the size of another state
        for past, present in pairs.items():
            equal |= _sizes(main.type(past), main.type(present), bound, equal) or {}
    for past, present in pairs.items():
        if _sizes(main.type(past), main.type(present), bound, equal) is not None:
            type_ = main.type(present)
            shape = tuple(_known(size, equal) for size in type_.shape)
            ports.append(StatePort(past, present, past, replace(type_, shape=shape)))
    if len(ports) + len(state_inputs & set(main.inputs)) in (len(main.inputs), len(main.outputs)):
        return module
    return replace(module, state_ports=(*module.state_ports, *ports), equal_symbols=equal)


def _pairs(function: Function, state_inputs: Set[str]) -> Iterator[tuple[str, str]]:
    """The inputs and outputs with one stem each, of types that may be equal."""
    readers, makers = consumers(function), producers(function)
    names = [n for n in function.inputs if n in readers and n not in state_inputs]
    inputs = {name: set(_stems(name, *_PAST)) for name in names}
    outputs = {name: set(_stems(name, *_PRESENT)) for name in dict.fromkeys(function.outputs)}
    for past, stems in inputs.items():
        matches = [n for n, other in outputs.items() if _are_alike(function, past, n, stems, other)]
        if len(matches) != 1 or past in function.outputs:
            continue
        (present,) = matches
        same = outputs[present]
        pasts = [n for n in inputs if _are_alike(function, n, present, inputs[n], same)]
        source = present
        while (maker := makers.get(source)) is not None and maker.op in _MOVES:
            source = maker.inputs[0]
        if pasts == [past] and source != past:
            yield past, present


def _are_alike(
    function: Function, past: str, present: str, past_stems: set[str], present_stems: set[str]
) -> bool:
    """True if an input and an output have a stem in common, one element type and one rank."""
    a, b = function.type(past), function.type(present)
    return not past_stems.isdisjoint(present_stems) and a.dtype == b.dtype and a.rank == b.rank


def _stems(name: str, prefixes: tuple[str, ...], suffixes: tuple[str, ...]) -> Iterator[str]:
    """The possible stems of a name: the name without one of these affixes, in lower case."""
    name = name.lower()
    stems = [name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)]
    stems += [name.removesuffix(suffix) for suffix in suffixes if name.endswith(suffix)]
    yield from (stem for stem in stems if stem in _LETTERS or _WORDS.search(stem))


def _sizes(
    past: TensorType, present: TensorType, bound: set[str], equal: Mapping[str, str]
) -> dict[str, str] | None:
    """The symbols of the past, with the symbols of other inputs that are equal. `None` if the types
    are not equal, or if other inputs do not determine the sizes. `equal` are symbols known before.
    """
    sizes: dict[str, str] = {}
    for size, other in zip(past.shape, present.shape, strict=True):
        a, b = _known(size, {**equal, **sizes}), _known(other, equal)
        if not {v.name for v in variables(b)} <= bound:
            return None
        if a == b:
            continue
        if not isinstance(a, Var) or a.name in bound or not isinstance(b, Var):
            return None
        sizes[a.name] = b.name
    return sizes


def _known(size: Expr, equal: Mapping[str, str]) -> Expr:
    """A size, written with the symbols of other inputs."""
    return substitute(size, {Var(name): Var(other) for name, other in equal.items()})
