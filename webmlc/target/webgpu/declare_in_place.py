"""Find the registers that a shader declares where it first stores to them.

In: a function ready to print. Out: the stores that declare a register.

    var r: f32;
    r = x_0[i];    ->    let r = x_0[i];
"""

from __future__ import annotations

from webmlc.loops.ir import LoopFunction, Seq, Store, loads, stores, walk_statements


def declared_in_place(function: LoopFunction) -> dict[int, str]:
    """The stores that can declare their register. Such a store is the register's first, in a
    sequence whose later statements hold all uses of the register.

    Maps the identity of the store to `let` where it is the register's only store, else to `var`.
    """
    access_counts: dict[str, int] = {}
    store_counts: dict[str, int] = {}
    for load in loads(function.body):
        access_counts[load.buffer.name] = access_counts.get(load.buffer.name, 0) + 1
    for store in stores(function.body):
        name = store.buffer.name
        access_counts[name] = access_counts.get(name, 0) + 1
        store_counts[name] = store_counts.get(name, 0) + 1
    declarations: dict[int, str] = {}
    for stmt in walk_statements(function.body):
        if isinstance(stmt, Seq):
            declarations |= _declared_in(stmt, access_counts, store_counts)
    return declarations


def _declared_in(
    sequence: Seq,
    access_counts: dict[str, int],
    store_counts: dict[str, int],
) -> dict[int, str]:
    """The declaring stores that stand directly in `sequence`."""
    first_stores: dict[str, Store] = {}
    counts_here: dict[str, int] = {}
    for stmt in sequence.statements:
        if isinstance(stmt, Store) and stmt.buffer.storage == "register":
            first_stores.setdefault(stmt.buffer.name, stmt)
        names = [load.buffer.name for load in loads(stmt)] + [s.buffer.name for s in stores(stmt)]
        for name in names:
            counts_here[name] = counts_here.get(name, 0) + (name in first_stores)
    return {
        id(store): "let" if store_counts[name] == 1 else "var"
        for name, store in first_stores.items()
        if counts_here[name] == access_counts[name]
    }
