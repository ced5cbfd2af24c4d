"""A rule: the schedules that one class of kernels may have, and its schedule without a search.

    facts = rule.match(function, machine) # the kernel's facts; None: another class space =
    rule.space(facts, machine) # the parameters to choose from parameters = rule.default(facts,
    machine) # the choice of a cost model rule.build(schedule, facts, parameters) # the same
    parameters, the same steps

Another choice is a member of the space in place of the default:

    rule.build(schedule, facts, space.random(Random(0)))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from msgspec import Struct

from webmlc.core.errors import InternalError
from webmlc.core.machine import Gpu, Machine
from webmlc.loops.ir import LoopFunction
from webmlc.loops.thread_iterations import longest_thread
from webmlc.schedule.errors import ScheduleError
from webmlc.schedule.rules.space import Product
from webmlc.schedule.schedule import Schedule

F = TypeVar("F")
P = TypeVar("P")
M = TypeVar("M", bound=Machine)


@dataclass(frozen=True, slots=True)
class Rule(Generic[F, P, M]):
    """The row of one class of kernels, on the machines `M` of one device.

    `match` returns the facts `F` of a kernel (a frozen dataclass), or `None` for a kernel of
    another class. It asks primitives whether they can be applied, so that `build` never raises. A
    rule that `is_product` gives a thread the whole depth of a product, however deep: a product of
    many results has enough threads, and the depth of other products is divided before
    (`target.factor_reductions`). `space` has the parameters `P` (frozen `msgspec.Struct` records)
    that a kernel may have. `default` is the member that the machine's numbers suggest. `build`
    applies primitives to a schedule without steps. The primitives depend only on the facts and the
    parameters.
    """

    name: str
    match: Callable[[LoopFunction, M], F | None]
    space: Callable[[F, M], Product[P]]
    default: Callable[[F, M], P]
    build: Callable[[Schedule, F, P], None]
    is_product: bool = False


AnyRule = Rule[Any, Any, Any]


class NoParameters(Struct, frozen=True):
    """The parameters of a rule that leaves nothing to choose."""


@dataclass(frozen=True, slots=True)
class Match:
    """A kernel's rule, with the rule's facts of the kernel. `proof`: the default schedule, if it
    was built to prove that the kernel is of the rule's class. `iterations`: the iterations of one
    thread of the default schedule, if the machine bounds them; else 0.
    """

    function: LoopFunction
    rule: AnyRule
    facts: Any
    machine: Machine
    proof: Schedule | None = None
    iterations: int = 0

    @property
    def is_bounded(self) -> bool:
        """True if no thread takes more iterations than the machine allows."""
        return _allows(self.machine, self.iterations)

    def space(self) -> Product[Any]:
        """The parameters that the kernel's schedule may have.

        If legality depends on a proof about symbolic sizes, only primitives can tell whether a step
        is legal: in a kernel with symbols, a member of the space must build.
        """
        space = self.rule.space(self.facts, self.machine)
        if not self.function.symbols:
            return space
        return proven(space, self.function, self.rule.build, self.facts)

    def default(self) -> Any:
        """The parameters without a search."""
        return self.rule.default(self.facts, self.machine)

    def build(self, parameters: Any) -> Schedule:
        """The schedule of some parameters. Raises `InternalError` if a primitive refuses a step:
        a member of the space always builds.
        """
        schedule = Schedule(self.function)
        try:
            self.rule.build(schedule, self.facts, parameters)
        except ScheduleError as error:
            rule = f"rule {self.rule.name!r} ({self.machine.device})"
            message = f"{rule} cannot build {self.function.name!r} with {parameters}: {error}"
            raise InternalError(message) from error
        return schedule

    def default_schedule(self) -> Schedule:
        """The schedule without a search."""
        return self.build(self.default()) if self.proof is None else self.proof.copy()


def match_rules(rules: Iterable[AnyRule], function: LoopFunction, machine: Machine) -> Match | None:
    """The first rule that matches a function and whose threads take no more iterations than the
    machine allows. If all matching rules exceed this limit, the rule whose threads take the fewest
    iterations. `None` if no rule matches.

    A kernel with symbols is of a rule's class only if the primitives can prove the steps of its
    default schedule. In other kernels, numbers decide every step: a refusal is a bug.
    """
    longer: list[Match] = []
    for rule in rules:
        facts = rule.match(function, machine)
        if facts is None:
            continue
        match = Match(function, rule, facts, machine)
        if function.symbols:
            try:
                proof = Schedule(function)
                rule.build(proof, facts, match.default())
            except ScheduleError:
                continue
            match = replace(match, proof=proof)
        if not isinstance(machine, Gpu):
            return match
        schedule = match.proof or match.default_schedule()
        match = replace(match, proof=schedule, iterations=longest_thread(schedule.function))
        if match.is_bounded or rule.is_product:
            return match
        longer.append(match)
    return min(longer, key=lambda match: match.iterations, default=None)


def _allows(machine: Machine, iterations: int) -> bool:
    """True if one thread of a machine may take this many iterations: any number on a CPU."""
    return not isinstance(machine, Gpu) or iterations <= machine.thread_iterations


def proven(
    space: Product[P],
    function: LoopFunction,
    build: Callable[[Schedule, F, P], None],
    facts: F,
) -> Product[P]:
    """The members of a space that primitives build."""
    return space.that(
        "primitives prove every step",
        lambda chosen: accepts(lambda: build(Schedule(function), facts, chosen)),
    )


def accepts(steps: Callable[[], object]) -> bool:
    """True if primitives accept some steps. `match` asks this where only the primitives' proofs
    can tell whether a kernel is of its class.
    """
    try:
        steps()
    except ScheduleError:
        return False
    return True
