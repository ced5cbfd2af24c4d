"""The addresses of the control area, at the start of a model's memory.

The module, the hosts in Python and the JavaScript runtime (`runtime_js/manifest_records.js`) use
them. All words are 32-bit integers, but for the offer; they are 0 at first.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class ControlArea(NamedTuple):
    """The addresses, in bytes. `target.wasm.threads` explains the words of parallel loops."""

    offer: int
    """The current offer of a parallel loop: 64 bits."""
    done: int
    """The number of chunks that helpers have finished."""
    running: int
    """1 while helpers should take chunks. The host sets it before a run. The leader clears it at
    the end, and the host clears it where a helper failed."""
    awake: int
    """1 where the leader may not sleep, as on a page's main thread. The host sets it before a
    run."""
    loop: int
    """The index of the offered loop in the table."""
    trips: int
    """The iterations of the offered loop."""
    chunks: int
    """The chunks of the offered loop."""
    scratch: int
    """The address of the first thread's scratch memory. The host sets it."""
    scratch_stride: int
    """The bytes from one thread's scratch memory to the next thread's. The host sets it."""
    machine: int
    """The number of this machine's class (`core.machine_class`), or 0 if it has no class. The
    host sets it."""
    arguments: int
    """The outer values that a loop's body reads. The leader writes them before it offers the
    loop."""
    slots: int
    """The slot table, behind the control area: slot s holds the address of buffer s or the value
    of a symbol, at `slots` + 4·s. The host sets it."""


CONTROL: Final = ControlArea(
    offer=0,
    done=64,
    running=128,
    awake=132,
    loop=192,
    trips=196,
    chunks=200,
    scratch=256,
    scratch_stride=260,
    machine=264,
    arguments=320,
    slots=1024,
)
"""The layout of the control area. Words that threads poll have a cache line of their own."""
