"""The limits of one kernel, which differ from device to device.

Each target has one record, and the passes of `graph/fuse` keep to it:

    FusionLimits(buffers=8, binding_bytes=128 << 20, pads="always")
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from webmlc.core.expr import as_int
from webmlc.graph.ir import TensorType

MAX_NODES = 64
"""The most nodes of one kernel. Build time and code grow at least in proportion to it. The largest
kernel of the tested models has 58 nodes (a quantised LSTM).
"""


@dataclass(frozen=True, slots=True)
class FusionLimits:
    """The limits of one kernel.

    `nodes` bounds its code, `buffers` its parameters (8 storage buffers on a default WebGPU
    device), `binding_bytes` the bytes of each. `pads` tells when a contraction or reduction writes
    into the padded feature map that its consumer reads. "chosen": where `choose_padding` says so,
    if nothing else reads the result. "always": wherever the other consumers of the result can read
    it there; and pools pad their own inputs. `quantises_rows` lets the kernel that quantises blocks
    of rows compute these rows, norms of rows included, if nothing else reads them. `joins_operands`
    lets products of block-quantised weights compute the nodes that `is_operand` accepts.
    `joins_transposes` lets attention transpose its operands and its result. `binds_once`: a kernel
    cannot bind a buffer twice, to read one part of it and to write another. `copied_parts` bounds
    the parts of a Concat that separate kernels copy to their places.
    """

    nodes: int = MAX_NODES
    buffers: int = 64
    binding_bytes: int = 1 << 32
    pads: Literal["never", "chosen", "always"] = "never"
    quantises_rows: bool = False
    joins_operands: bool = False
    joins_transposes: bool = False
    binds_once: bool = False
    copied_parts: int = 64

    def can_bind(self, type_: TensorType) -> bool:
        """True if a kernel can bind a buffer of this type. Sizes known only at run time count as
        1.
        """
        elements = prod(as_int(size) or 1 for size in type_.shape)
        return elements * type_.dtype.bytes <= self.binding_bytes
