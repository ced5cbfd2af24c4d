"""Replace the states of a session at the end of a run.

In: a lowered `main`. Some of its inputs are states, and some of its outputs are their next values.
Out: the function without these inputs and outputs. Its last kernels copy the next values to the
states.

    func main(%x, %state)                     func main(%x)
      %h = call_kernel lstm(%x, %state)   ->    %h = call_kernel lstm(%x, %state)
      return %y, %h                             %state = call_kernel copy(%h)
                                                return %y

A state is on one device: the device of the kernels that read it. If kernels on the GPU and on the
CPU read it, they read a copy that is made at the start of the run. A next value that is itself a
state is copied aside, before any state is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from webmlc.graph.ir import Function, Node, StatePort
from webmlc.loops.copies import copy_node, view_roots
from webmlc.loops.kernel_form import KernelForm
from webmlc.loops.kernels import Kernels


def replace_states(
    main: Function, ports: Sequence[StatePort], table: Kernels, form: KernelForm
) -> Function:
    """Replace the states of `ports`, and add the kernels that this takes to the table."""
    states = {port.state for port in ports}
    presents = {port.present for port in ports}
    roots = view_roots(main)
    first, aside, last = list[Node](), list[Node](), list[Node]()
    types, renamed = dict(main.types), dict[str, str]()
    for port in ports:
        state, value, home, reason = port.state, port.present, form, None
        readers = _readers(main, state, roots)
        devices = {node.attributes["device"] for node in readers}
        if len(devices) > 1:
            renamed[state] = f"{state}.start"
            first.append(table.call(copy_node(state, renamed[state], main), main, home))
            types[renamed[state]] = types[state]
        elif form.fallback is not None and devices == {form.fallback.device}:
            home = form.fallback
            reason = str(readers[0].attributes.get("reason", "")) or None
        if roots.get(value, value) in states:
            copy = copy_node(value, f"{state}.next", main)
            aside.append(table.call(copy, main, home, reason))
            types |= copy.attributes["body"].types
            last.append(copy_node(f"{state}.next", state, main, value))
        else:
            last.append(copy_node(value, state, main))
        last[-1] = table.call(last[-1], main, home, reason)
    nodes = (replace(n, inputs=tuple(renamed.get(i, i) for i in n.inputs)) for n in main.nodes)
    return replace(
        main,
        inputs=tuple(name for name in main.inputs if name not in states),
        outputs=tuple(name for name in main.outputs if name not in presents),
        nodes=(*first, *nodes, *aside, *last),
        types=types,
    )


def _readers(main: Function, state: str, roots: dict[str, str]) -> list[Node]:
    """The nodes that run on a device and read a state, or a view of it."""
    return [
        node
        for node in main.nodes
        if "device" in node.attributes and state in {roots.get(i, i) for i in node.inputs}
    ]
