"""Is a run right? What a device says of its inputs, beside what onnxruntime says.

both answer    equal, or `differs`: a silent difference
both refuse    refused
we refuse      `stricter`: allowed for what ONNX forbids (rules.STRICTER), else a bug
we answer      `looser`: allowed for what ONNX defines (rules.LOOSER), else a silent difference
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx

from tests.fuzz.graph import Array
from tests.fuzz.sizes import elements, rules
from tests.fuzz.sizes.inputs import Feeds
from tests.fuzz.sizes.processes import Failure

Outputs = dict[str, Array]
NUDGED_RUNS = 8
SPREAD = 8.0
HUGE_HALF = 1e4
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 3e-5, "float64": 3e-5}
"""Relative errors that are allowed before nudged runs say how ill-conditioned a run is."""
LONG_SUM = 1000
"""Terms of a sum from which the relative error grows with their number: each addition rounds. A
sum of 4,097 equal products, in order in float32, is off by 3.4e-5.
"""
SECOND_TERMS = 10 * LONG_SUM
"""Terms of a sum that are assumed when onnx.reference alone judges a run: no nudged runs say how
far an element that is nearly 0 may be off.
"""
TOO_LARGE = re.compile(r"more than|cannot allocate|beyond|GPU buffer of|binds at most")
"""Messages of runs that 32-bit memory or the GPU cannot hold."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`equal`, `refused`, `stricter`, `looser`, `limit`, `unjudged`, or a bug."""

    kind: str
    message: str = ""
    operator: str = ""

    @property
    def is_bug(self) -> bool:
        """True for what has to be mended."""
        return self.kind in BUGS


UNJUDGED = ("crash", "hang", "memory")
"""Failures of the judge that say nothing of a run."""

BUGS = ("differs", "looser", "stricter", "unnamed", "internal", "crash", "hang")


def judge_run(
    model: onnx.ModelProto,
    feeds: Feeds,
    ours: Outputs | Failure,
    judged: Outputs | Failure,
    nudge: Callable[[], Sequence[Outputs | Failure]],
    reference: Callable[[Sequence[str]], Outputs | Failure],
    on_gpu: bool = False,
    sum_magnitudes: Callable[[], Outputs | Failure] = lambda: Failure("refused", ""),
) -> Verdict:
    """The verdict on one run. `nudge` runs the judge on nudged inputs; `reference` is the second
    opinion on outputs; `sum_magnitudes` runs the judge on the magnitudes of inputs and constants.
    """
    if isinstance(judged, Failure) and judged.kind in UNJUDGED:
        return Verdict("unjudged", judged.message)
    first = str(model.graph.node[0].op_type)
    if isinstance(ours, Failure):
        if ours.kind in ("internal", "crash", "hang"):
            return Verdict(ours.kind, ours.message, first)
        if isinstance(judged, Failure):
            return Verdict("refused")
        if TOO_LARGE.search(ours.message):
            return Verdict("limit", ours.message)
        operator = _named_operator(model, ours.message)
        if operator and _is_empty(model, judged, operator):
            return Verdict("stricter by rule", ours.message, operator)
        kind = "unnamed" if operator is None else "stricter"
        allowed = _ruled(model, feeds, rules.STRICTER, rules.STRICTER_IF)
        return _by_rule(kind, ours.message, operator or first, allowed)
    if isinstance(judged, Failure):
        refused = _refused_operator(model, judged.message) or first
        if _is_empty(model, ours, refused):
            return Verdict("looser by rule", judged.message, refused)
        allowed = _ruled(model, feeds, rules.LOOSER, rules.LOOSER_IF)
        is_wild = any(_holds(feeds, lambda array: ~(np.abs(array) < rules.HUGE)))
        if refused in allowed and refused in rules.REFERENCE_DECIDES and not is_wild:
            opinion = reference(tuple(ours))
            second = {} if isinstance(opinion, Failure) else opinion
            if differences({name: ours[name] for name in second}, second, None, SECOND_TERMS):
                allowed = set()
        return _by_rule("looser", judged.message, refused, allowed)
    terms = max((n for array in feeds.values() for n in array.shape), default=1)
    disputed = differences(ours, judged, None, terms)
    others: list[Outputs] = []
    if disputed:
        answers = nudge()
        for answer in answers:
            if isinstance(answer, Failure) and answer.kind in UNJUDGED:
                return Verdict("unjudged", answer.message)
        others = [r for r in answers if not isinstance(r, Failure)]
        disputed = {
            name: text
            for name, text in differences(ours, judged, others, terms).items()
            if not _cancels(model, feeds, name, ours, judged)
        }
    if not disputed:
        return Verdict("equal")
    opinion = reference(tuple(disputed))
    second = {} if isinstance(opinion, Failure) else opinion
    either = {name: _either(ours[name], judged[name], array) for name, array in second.items()}
    right = either.keys() - differences(ours, either, None, terms).keys()
    if right >= disputed.keys():
        name, message = next(iter(disputed.items()))
        return Verdict("by reference", message, _makers(model, name)[0])
    disputed = {name: text for name, text in disputed.items() if name not in right}
    doubtful = {name: judged[name] for name in disputed}
    finite = _finite_differences(ours, doubtful, others, second)
    reasons = _allowed(model, feeds, judged, bool(finite), on_gpu)
    verdicts = []
    for name, message in disputed.items():
        makers = _makers(model, name)
        named = [maker for maker in makers if maker in reasons]
        wrong = _wrong_of(name, ours, judged, others, terms)
        if wrong is not None and _has_no_reason(model, feeds, name, wrong, sum_magnitudes):
            verdicts.append(Verdict("differs", message, makers[0]))
            continue
        verdicts.append(_by_rule("differs", message, (named or makers)[0], reasons))
    return next((verdict for verdict in verdicts if verdict.is_bug), verdicts[0])


def _cancels(
    model: onnx.ModelProto, feeds: Feeds, name: str, ours: Outputs, judged: Outputs
) -> bool:
    """True if the elements of an output are equal but for the rounding of what cancels."""
    errors = elements.rounding(model, _with_constants(model, feeds), name)
    got, want = (outputs[name].astype(np.float64) for outputs in (ours, judged))
    if errors is None or got.shape != want.shape or errors.shape != want.shape:
        return False
    with np.errstate(all="ignore"):
        equal = (got == want) | (np.isnan(got) & np.isnan(want))
        return bool((equal | (np.abs(got - want) <= errors)).all())


def _wrong_of(
    name: str, ours: Outputs, judged: Outputs, nudged: Sequence[Outputs], terms: int
) -> Array | None:
    """The elements of an output that are wrong; None if its shape is."""
    got, want = ours[name], judged[name]
    if got.dtype != want.dtype or got.shape != want.shape:
        return None
    return _wrong(got, want, [other[name] for other in nudged], terms)


def _has_no_reason(
    model: onnx.ModelProto,
    feeds: Feeds,
    name: str,
    wrong: Array,
    sum_magnitudes: Callable[[], Outputs | Failure],
) -> bool:
    """True if an element is wrong that a rule for its operator has no reason for."""
    allowed = elements.may_differ(model, _with_constants(model, feeds), name)
    if allowed is None and elements.is_linear(model, name):
        sums = sum_magnitudes()
        if not isinstance(sums, Failure):
            allowed = elements.may_overflow(sums[name])
    return allowed is not None and bool((wrong & ~allowed).any())


def _allowed(
    model: onnx.ModelProto, feeds: Feeds, judged: Outputs, finite_differ: bool, on_gpu: bool
) -> dict[str, str]:
    """The operators that may differ in a run. `finite_differ`: whether finite elements do."""
    allowed = dict(rules.DIFFERS)
    known = _with_constants(model, feeds)
    for node in model.graph.node:
        reason, condition = rules.DIFFERS_IF.get(node.op_type, ("", lambda *_: False))
        if condition(node, known):
            allowed[str(node.op_type)] = reason
    if any(_holds(feeds, np.isnan)):
        allowed |= rules.NAN
    if any(_holds(feeds, lambda array: np.abs(array) < rules.TINY)):
        allowed |= rules.ZERO
    is_huge = any(_holds(feeds, lambda array: ~(np.abs(array) < rules.HUGE)))
    if is_huge or _is_huge_half(feeds):
        allowed |= rules.WILD
    elif not _overflows(judged):
        return allowed
    if finite_differ:
        return allowed
    allowed |= rules.SUMS
    if on_gpu:
        allowed |= {o: r for o, r in rules.FINITE_ON_GPU.items() if _adds(model, o)}
    return allowed


def _adds(model: onnx.ModelProto, operator: str) -> bool:
    """True if such a node adds or subtracts, itself or in a body."""
    bodies = [a.g for n in model.graph.node if n.op_type == operator for a in n.attribute]
    added = {node.op_type for body in bodies for node in _all_nodes(body)}
    return bool({operator, *added} & {"Add", "Sub"})


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _all_nodes(attribute.g)


def _with_constants(model: onnx.ModelProto, feeds: Feeds) -> Feeds:
    """The inputs of a run, and the constants of the model."""
    constants = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    return {**constants, **feeds}


def _overflows(outputs: Outputs) -> bool:
    """True if a run reaches the largest number: onnxruntime stays there, or is infinite."""
    return any(
        bool((np.abs(array.astype(np.float64)) >= float(ml_dtypes.finfo(array.dtype).max)).any())
        for array in outputs.values()
        if array.dtype.name in TOLERANCES
    )


def _ruled(
    model: onnx.ModelProto,
    feeds: Feeds,
    reasons: Container[str],
    conditions: Mapping[str, rules.Condition],
) -> set[str]:
    """The operators of a model that a table of `rules` has a reason for, if the condition of the
    reason holds in this run.
    """
    return {
        str(node.op_type)
        for node in model.graph.node
        if node.op_type in reasons and conditions.get(node.op_type, lambda *_: True)(node, feeds)
    }


def _by_rule(kind: str, message: str, operator: str, allowed: Container[str]) -> Verdict:
    return Verdict(f"{kind} by rule" if operator in allowed else kind, message, operator)


def _is_empty(model: onnx.ModelProto, outputs: Outputs, operator: str) -> bool:
    """True where nothing that is computed of such nodes has elements."""
    results = [array for name, array in outputs.items() if operator in _makers(model, name)]
    return bool(results) and all(array.size == 0 for array in results)


def _makers(model: onnx.ModelProto, name: str) -> list[str]:
    """The operators that an output is computed by, the last one first."""
    makers, names = [], {name}
    for node in reversed(model.graph.node):
        if names.intersection(node.output):
            makers.append(str(node.op_type))
            names.update(node.input)
    return makers


def _holds(feeds: Feeds, condition: Callable[[Array], Array]) -> Iterator[bool]:
    """For each float input, whether an element fulfils a condition."""
    for array in feeds.values():
        if array.dtype.name in TOLERANCES:
            with np.errstate(all="ignore"):
                yield bool(condition(array.astype(np.float64)).any())


def _is_huge_half(feeds: Feeds) -> bool:
    """True where a float16 input holds numbers near the end of its range."""
    halves = {name: array for name, array in feeds.items() if array.dtype == np.float16}
    return any(_holds(halves, lambda array: np.abs(array) >= HUGE_HALF))


def _refused_operator(model: onnx.ModelProto, message: str) -> str | None:
    """The operator of the node that onnxruntime refuses to run. If that is a node of the body of an
    ONNX function, it is the only operator of the model that is such a function.
    """
    match = re.search(r"running (\w+) node", message)
    operators = {str(node.op_type) for node in model.graph.node}
    if match is None or match[1] in operators:
        return match and match[1]
    opset = model.opset_import[0].version
    functions = [op for op in operators if _is_function(op, opset)]
    return functions[0] if len(functions) == 1 else None


def _is_function(operator: str, opset: int) -> bool:
    """True if ONNX defines an operator by other operators."""
    if not onnx.defs.has(operator):
        return False
    schema: Any = onnx.defs.get_schema(operator, opset)
    return bool(schema.has_function or schema.has_context_dependent_function)


def _named_operator(model: onnx.ModelProto, message: str) -> str | None:
    """The operator of the node that an error names."""
    match = re.search(r"node ['\"]([^'\"]*)['\"]", message)
    for node in model.graph.node if match else ():
        if match is not None and match[1] in (node.name, *node.output):
            return str(node.op_type)
    return None


def differences(
    ours: Outputs, judged: Outputs, nudged: Sequence[Outputs] | None, terms: int = 1
) -> dict[str, str]:
    """How each output differs that does. `terms`: how many numbers a sum may add."""
    result = {}
    for name, want in judged.items():
        got = ours[name]
        others = None if nudged is None else [n[name] for n in nudged]
        if got.dtype != want.dtype or got.shape != want.shape:
            if not any(_is_equal(got, other) for other in others or ()):
                types = (f"{a.dtype}{list(a.shape)}" for a in (got, want))
                result[name] = f"{name} is {', not '.join(types)}"
            continue
        wrong = _wrong(got, want, others, terms)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            count = f"{int(wrong.sum())} of {wrong.size} elements"
            first = f"first at {list(at)}: {got[at]}, not {want[at]}"
            result[name] = f"{count} of {name} differ, {first}"
    return result


def _either(got: Array, judged: Array, second: Array) -> Array:
    """The second opinion on a result, but where onnxruntime agrees with us."""
    if (
        not got.dtype == judged.dtype == second.dtype
        or not got.shape == judged.shape == second.shape
    ):
        return second
    return np.where(_wrong(got, judged, None), second, judged)


def _is_equal(got: Array, want: Array) -> bool:
    """True for equal results. Data may decide a shape, so that a nudged run has another one."""
    return got.dtype == want.dtype and got.shape == want.shape and not _wrong(got, want, None).any()


def _finite_differences(
    ours: Outputs, judged: Outputs, nudged: Sequence[Outputs], second: Outputs
) -> list[str]:
    """The outputs with an element that is finite on both sides and that neither judge has.

    Outputs of integers are left out: an integer may come of a number that is not finite.
    """
    names = []
    for name, want in judged.items():
        got = ours[name]
        if got.dtype != want.dtype or got.shape != want.shape:
            names.append(name)
        elif want.dtype.name in TOLERANCES:
            wrong = _wrong(got, want, [n[name] for n in nudged])
            wrong &= np.isfinite(got.astype(np.float64)) & np.isfinite(want.astype(np.float64))
            if name in second and second[name].shape == got.shape:
                wrong &= _wrong(got, second[name].astype(want.dtype), None)
            if wrong.any():
                names.append(name)
    return names


def _wrong(got: Array, want: Array, nudged: Sequence[Array] | None, terms: int = 1) -> Array:
    """Where an element is off by more than rounding can explain."""
    if want.dtype.name not in TOLERANCES:
        wrong = np.asarray(got != want)
        for other in nudged or ():
            wrong &= (other == want) if other.shape == want.shape else False
        return wrong
    a, b = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        off = np.abs(a - b)
        finite = np.abs(b[np.isfinite(b)])
        scale = np.max(finite, initial=0.0)
        tiny = float(ml_dtypes.finfo(want.dtype).tiny)
        tolerance = TOLERANCES[want.dtype.name] * max(1.0, terms / LONG_SUM)
        allowed = tolerance * np.maximum(np.abs(b), 1e-2 * scale) + 2 * tiny
        undetermined = np.zeros(want.shape, bool)
        for other in nudged or ():
            if other.shape != want.shape:
                return np.zeros(want.shape, bool)
            moved = other.astype(np.float64)
            allowed = np.fmax(allowed, SPREAD * np.abs(moved - b))
            undetermined |= np.isfinite(moved) != np.isfinite(b)
        wrong = ~(off <= allowed) & ~undetermined
        return wrong & ~((a == b) | (np.isnan(a) & np.isnan(b)))


def describe(feeds: Feeds) -> str:
    """The shapes of a run, on one line."""
    return ", ".join(f"{n}: {a.dtype}{list(a.shape)}" for n, a in feeds.items())
