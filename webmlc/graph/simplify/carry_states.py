"""Let sessions carry the keys and values of a merged decoder from run to run.

In: a function in which an If chooses between a decoder with a past and a decoder without one, as
optimum exports them. Out: the same function; `Module.carried` pairs each past with its present. The
inputs and outputs stay. A session passes the presents of a run to the next run as pasts.

    func main(%input_ids, %past_key_values.0.key, %use_cache_branch)
      %logits, %present.0.key = webmlc.If(%use_cache_branch, ...)
                                    ->   carried = {"past_key_values.0.key": "present.0.key"}

Such presents are no rows that a run appends to its pasts (`use_states`): the branch without a past
begins again. So the states are values on the host, of any size.
"""

from __future__ import annotations

import re
from dataclasses import replace

from webmlc.core.expr import Var, as_int
from webmlc.core.rewrite import variables
from webmlc.graph.ir import Module, producers
from webmlc.graph.ops.control import CONTROL
from webmlc.graph.simplify.use_states import source_of, symbols_of

_PAST = re.compile(r"past(?:_key_values?)?[._](.+)")
_PRESENT = re.compile(r"present(?:_key_values?)?[._](.+)")
"""The names of pasts and presents in the exporters of transformers. The group is their stem."""


def carry_states(module: Module) -> Module:
    """Add the pairs of `main`, if control flow computes one of their presents.

    needs: inferred types. guarantees: the functions are unchanged. The other inputs determine the
    sizes of a past that are not zero at first.
    """
    main, makers = module.main, producers(module.main)
    inputs = {m[1]: name for name in main.inputs if (m := _PAST.fullmatch(name))}
    outputs = {m[1]: name for name in main.outputs if (m := _PRESENT.fullmatch(name))}
    pairs = {inputs[stem]: outputs[stem] for stem in inputs if stem in outputs}
    sources = (source_of(present, makers) for present in pairs.values())
    is_merged = any(node is not None and node.operator in CONTROL for node in sources)
    if module.state_ports or not is_merged:
        return module
    bound = symbols_of(main, set(main.inputs) - pairs.keys())
    for past, present in pairs.items():
        type_, result = main.type(past), main.type(present)
        if (type_.dtype, type_.rank) != (result.dtype, result.rank):
            return module
        for size in type_.shape:
            is_free = isinstance(size, Var) or as_int(size) is not None
            if not is_free and not {v.name for v in variables(size)} <= bound:
                return module
    return replace(module, carried=pairs)
