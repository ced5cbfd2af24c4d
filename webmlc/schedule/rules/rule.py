"""A rule: the schedules that one class of kernels may have, and its schedule without a search.

    facts = rule.match(function, machine)         # the kernel's facts; None: another class
    space = rule.space(facts, machine)            # the parameters to choose from
    parameters = rule.default(facts, machine)     # the choice of a cost model
    rule.build(schedule, facts, parameters)       # the same parameters, the same steps

Another choice is a member of the space in place of the default:

    rule.build(schedule, facts, space.random(Random(0)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from webmlc.core.errors import InternalError
from webmlc.core.machine import Gpu, Machine
from webmlc.loops.ir import LoopFunction
from webmlc.loops.thread_iterations import longest_thread
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.instructions import tensorize_blocks
from webmlc.schedule.rules.space import Product
from webmlc.schedule.schedule import Schedule

F = TypeVar("F")
P = TypeVar("P")
M = TypeVar("M", bound=Machine)
M_contra = TypeVar("M_contra", bound=Machine, contravariant=True)


@dataclass(frozen=True, slots=True)
class Rule(Generic[F, P, M]):
    """The row of one class of kernels, on the machines `M` of one device.

    `match` returns the facts `F` of a kernel (a frozen dataclass), or `None` for a kernel of
    another class. `space` has the parameters `P` (frozen `msgspec.Struct` records) that a kernel
    may have. `default` is the member that the machine's numbers suggest. `build` applies primitives
    to a schedule without steps. The primitives depend only on the facts and the parameters.

    A rule that `is_product` gives a thread the whole depth of a product, however deep: a product of
    many results has enough threads, and the depth of other products is divided before
    (`target.factor_reductions`). If a rule `needs_proof`, facts alone cannot tell what can be
    built: a kernel is of its class, and a choice a member of its space, only if primitives accept
    every step. If they refuse a step of the default, `weaker` may return facts that permit less.
    """

    name: str
    match: Callable[[LoopFunction, M], F | None]
    space: Callable[[F, M], Product[P]]
    default: Callable[[F, M], P]
    build: Callable[[Schedule, F, P], None]
    is_product: bool = False
    needs_proof: bool = False
    weaker: Callable[[F], F | None] = lambda _: None


AnyRule = Rule[Any, Any, Any]


class NoParameters(Struct, frozen=True):
    """The parameters of a rule that leaves nothing to choose."""


class Kernel(Protocol[P, M_contra]):
    """Facts that know what may be built of them: of a whole kernel, or of a stage of others."""

    def space(self, machine: M_contra) -> Product[P]:
        """The parameters to choose from."""

    def default(self, machine: M_contra) -> P:
        """The parameters without a search."""

    def build(self, schedule: Schedule, parameters: P) -> None:
        """Apply primitives to a schedule."""


def rule_of(
    name: str, match: Callable[[LoopFunction, M], Kernel[P, M] | None], needs_proof: bool = False
) -> Rule[Kernel[P, M], P, M]:
    """The rule whose facts know what may be built of them."""
    return Rule(
        name,
        match,
        lambda facts, machine: facts.space(machine),
        lambda facts, machine: facts.default(machine),
        lambda schedule, facts, parameters: facts.build(schedule, parameters),
        needs_proof=needs_proof,
    )


@dataclass(frozen=True, slots=True)
class Match:
    """A kernel's rule, with the rule's facts of the kernel. `built`: the default schedule, once it
    is built. `iterations`: the iterations of one thread of the default schedule, if the machine
    bounds them; else 0.
    """

    function: LoopFunction
    rule: AnyRule
    facts: Any
    machine: Machine
    built: Schedule | None = None
    iterations: int = 0

    @property
    def is_bounded(self) -> bool:
        """True if no thread takes more iterations than the machine allows."""
        machine = self.machine
        return not isinstance(machine, Gpu) or self.iterations <= machine.thread_iterations

    def space(self) -> Product[Any]:
        """The parameters that the kernel's schedule may have.

        Where only primitives can tell whether a step is legal, a member of the space must build.
        """
        if not self.needs_proof:
            return self.choices()
        return replace(self.choices(), proof=lambda x: accepts(lambda: self.attempt(x)))

    def choices(self) -> Product[Any]:
        """The parameters that meet the constraints of the rule, buildable or not."""
        return self.rule.space(self.facts, self.machine)

    @property
    def needs_proof(self) -> bool:
        """True if legality depends on a proof: always, if the kernel has symbolic sizes."""
        return bool(self.function.symbols) or self.rule.needs_proof

    def default(self) -> Any:
        """The parameters without a search."""
        return self.rule.default(self.facts, self.machine)

    def build(self, parameters: Any) -> Schedule:
        """The schedule of a member. Raises `InternalError` if a primitive refuses a step."""
        try:
            return self.attempt(parameters)
        except ScheduleError as error:
            rule = f"rule {self.rule.name!r} ({self.machine.device})"
            message = f"{rule} cannot build {self.function.name!r} with {parameters}: {error}"
            raise InternalError(message) from error

    def attempt(self, parameters: Any) -> Schedule:
        """The schedule of some parameters. Raises `ScheduleError` if a primitive refuses a step."""
        schedule = Schedule(self.function)
        self.rule.build(schedule, self.facts, parameters)
        tensorize_blocks(schedule, self.machine)
        return schedule

    def default_schedule(self) -> Schedule:
        """The schedule without a search."""
        return self.build(self.default()) if self.built is None else self.built.copy()


def match_rules(rules: Iterable[AnyRule], function: LoopFunction, machine: Machine) -> Match | None:
    """The first rule that matches a function and whose threads take no more iterations than the
    machine allows. If all matching rules exceed this limit, the rule whose threads take the fewest
    iterations. `None` if no rule matches.

    Where legality depends on a proof, a kernel is of a rule's class only if the primitives accept
    the steps of its default schedule. Else numbers decide every step: a refusal is a bug.
    """
    longer: list[Match] = []
    for rule in rules:
        match = _match_with_schedule(rule, function, machine)
        if match is None:
            continue
        if match.is_bounded or rule.is_product:
            return match
        longer.append(match)
    return min(longer, key=lambda match: match.iterations, default=None)


def _match_with_schedule(rule: AnyRule, function: LoopFunction, machine: Machine) -> Match | None:
    """The match of a rule with its default schedule, by the strongest facts that build one."""
    facts = rule.match(function, machine)
    while facts is not None:
        match = Match(function, rule, facts, machine)
        build = match.attempt if match.needs_proof else match.build
        try:
            schedule = build(match.default())
        except ScheduleError:
            facts = rule.weaker(facts)
            continue
        iterations = longest_thread(schedule.function) if isinstance(machine, Gpu) else 0
        return replace(match, built=schedule, iterations=iterations)
    return None


def accepts(steps: Callable[[], object]) -> bool:
    """True if primitives accept some steps."""
    try:
        steps()
    except ScheduleError:
        return False
    return True
