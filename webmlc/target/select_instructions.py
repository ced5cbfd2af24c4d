"""Keep the calls of instructions that a machine has, and write the other calls out.

`select_instructions` begins a lowering: an instruction without a text for the device, or whose text
needs a feature that the machine lacks, becomes its meaning. `match_lanes` follows the vectors: a
call becomes its meaning if it has fewer lanes than the text, as in the remainder of a vector loop.
"""

from __future__ import annotations

from webmlc.core.instruction import INSTRUCTIONS, InstructionCall
from webmlc.core.machine import Machine
from webmlc.loops.ir import LoopFunction
from webmlc.loops.write_out_instructions import write_out_instructions


def instruction_features(machine: Machine) -> frozenset[str]:
    """The features of a machine that texts of instructions need. Machines with the same such
    features share the passes of a lowering.
    """
    texts = (row.text(machine.device) for row in INSTRUCTIONS.values())
    return machine.features & {text.feature for text in texts if text is not None}


def select_instructions(
    function: LoopFunction, device: str, features: frozenset[str]
) -> LoopFunction:
    """Write out the instructions that a machine of some features lacks."""

    def keeps(call: InstructionCall) -> bool:
        text = call.instruction.text(device)
        return text is not None and text.runs_with(features)

    return write_out_instructions(function, keeps)


def match_lanes(function: LoopFunction) -> LoopFunction:
    """Write out the calls with fewer lanes than their texts."""
    return write_out_instructions(function, lambda call: call.lanes >= call.instruction.lanes)
