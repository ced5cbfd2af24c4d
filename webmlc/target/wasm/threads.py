"""Emit the functions by which threads share parallel loops.

In: nothing. Out: WAT text, which uses words of the control area (`core.control_area`).

Thread 0 is the leader: it runs the program. Where a kernel has a parallel loop, it offers the
iterations in chunks to all threads. The leader takes chunks from the front and the helpers take
them from the back. In every kernel a thread therefore works on much of the data that it produced in
the previous kernel. A thread takes several chunks at a time: half of its share of the remaining
chunks (guided self-scheduling, Polychronopoulos and Kuck, 1987). The first turns are long, so that
threads seldom meet at the offer. The last turns are short, so that all threads end together. A
helper that arrives late, or not at all, causes no delay: the leader waits for chunks that helpers
took, never for helpers. If the operating system runs two threads on one core, they soon stop
spinning.

    $parallel   leader: runs all iterations of loop `$loop` of the module's table
    $help       helper: takes chunks until the run is over
    $claim      both: takes chunks and runs them, if any are left; returns their number
    $chunks     both: runs consecutive chunks of a loop

An offer is one i64, `turn << 32 | front << 16 | left`: the chunks front ... front + left - 1 are
free. A thread that lowers `left` by compare-and-exchange owns this number of chunks. The turn
distinguishes offers. The words that describe an offer do not change until all its chunks are done.
"""

from __future__ import annotations

from webmlc.core.control_area import CONTROL as AT

_BYTES = {"i32": 4, "f32": 4, "i64": 8, "f64": 8, "v128": 16}
"""The size of each WASM type, in bytes."""
_MAX_CHUNKS = 64
"""The chunks that a parallel loop is divided into, at most. With this many, engines optimise the
loop's function during its first run, and the leader waits little for the last chunk. Chosen by
hand.
"""
_MIN_NAP, _MAX_NAP = 200_000, 3_200_000
"""The first and the longest time, in nanoseconds, that a helper without chunks sleeps: a spinning
helper may occupy the leader's core. The time doubles with each sleep. Chosen by hand.
"""
_LEADER_NAP = 50_000
"""The time, in nanoseconds, that the leader sleeps before it checks again whether helpers are done.
Helpers do not wake it: some systems move a woken thread to the core of the thread that woke it, for
the whole run. Chosen by hand.
"""
_MAX_SPINS, _MIN_SPINS, _SPINS_REGAINED = 1 << 18, 1 << 16, 1 << 12
"""The number of polls for another thread's progress before a thread sleeps: at most, at least, and
the rise of this number after each successful wait.

The most polls take some tenths of a millisecond. After each wait in vain the number falls to a
quarter, because the other thread does not run, or shares this thread's core. The fewest polls take
as long as a usual chunk, because some systems sleep for milliseconds even when asked for less.
Chosen by hand.
"""

THREADS = f"""(type $loop (func (param i32) (param i32)))
(global $tid (mut i32) (i32.const 0))
(global $threads (mut i32) (i32.const 1))
(global $patience (mut i32) (i32.const {_MAX_SPINS}))
(func $trust
  (if (i32.lt_u (global.get $patience) (i32.const {_MAX_SPINS})) (then
    (global.set $patience (i32.add (global.get $patience) (i32.const {_SPINS_REGAINED}))))))
(func $distrust
  (if (i32.gt_u (global.get $patience) (i32.const {_MIN_SPINS})) (then
    (global.set $patience (i32.shr_u (global.get $patience) (i32.const 2))))))
(func $start (param $extent i32) (param $chunks i32) (param $i i32) (result i32) (local $more i32)
  (local.set $more (i32.rem_u (local.get $extent) (local.get $chunks)))
  (i32.add (i32.mul (local.get $i) (i32.div_u (local.get $extent) (local.get $chunks)))
    (select (local.get $i) (local.get $more) (i32.lt_u (local.get $i) (local.get $more)))))
(func $chunks (param $loop i32) (param $extent i32) (param $chunks i32) (param $i i32)
    (param $count i32)
  (call_indirect (type $loop)
    (call $start (local.get $extent) (local.get $chunks) (local.get $i))
    (call $start (local.get $extent) (local.get $chunks)
      (i32.add (local.get $i) (local.get $count)))
    (local.get $loop)))
(func $claim (result i32) (local $offer i64) (local $seen i64) (local $word i32)
    (local $left i32) (local $count i32)
  (local.set $seen (i64.atomic.load offset={AT.offer} (i32.const 0)))
  (loop $again
    (local.set $offer (local.get $seen))
    (local.set $word (i32.wrap_i64 (local.get $offer)))
    (local.set $left (i32.and (local.get $word) (i32.const 0xffff)))
    (if (i32.eqz (local.get $left)) (then (return (i32.const 0))))
    (local.set $count (i32.div_u (local.get $left)
      (i32.shl (global.get $threads) (i32.const 1))))
    (local.set $count (select (local.get $count) (i32.const 1) (local.get $count)))
    (local.set $seen (i64.atomic.rmw.cmpxchg offset={AT.offer} (i32.const 0) (local.get $offer)
      (i64.add (local.get $offer)
        (i64.mul (i64.extend_i32_u (local.get $count))
          (select (i64.const -1) (i64.const 0xffff) (global.get $tid))))))
    (br_if $again (i64.ne (local.get $seen) (local.get $offer))))
  (call $chunks (i32.load offset={AT.loop} (i32.const 0)) (i32.load offset={AT.trips} (i32.const 0))
    (i32.load offset={AT.chunks} (i32.const 0))
    (i32.add (i32.shr_u (local.get $word) (i32.const 16))
      (select (i32.sub (local.get $left) (local.get $count)) (i32.const 0) (global.get $tid)))
    (local.get $count))
  (local.get $count))
(func $parallel (param $loop i32) (param $extent i32)
    (local $chunks i32) (local $own i32) (local $theirs i32) (local $done i32) (local $spins i32)
    (local $count i32)
  (if (i32.le_s (local.get $extent) (i32.const 0)) (then (return)))
  (local.set $chunks (select (local.get $extent) (i32.const {_MAX_CHUNKS})
    (i32.lt_u (local.get $extent) (i32.const {_MAX_CHUNKS}))))
  (if (i32.or (i32.eq (global.get $threads) (i32.const 1))
              (i32.eq (local.get $chunks) (i32.const 1)))
    (then
      (loop $next
        (call $chunks
          (local.get $loop) (local.get $extent) (local.get $chunks) (local.get $own) (i32.const 1))
        (br_if $next (i32.lt_u
          (local.tee $own (i32.add (local.get $own) (i32.const 1))) (local.get $chunks))))
      (return)))
  (i32.store offset={AT.loop} (i32.const 0) (local.get $loop))
  (i32.store offset={AT.trips} (i32.const 0) (local.get $extent))
  (i32.store offset={AT.chunks} (i32.const 0) (local.get $chunks))
  (i32.atomic.store offset={AT.done} (i32.const 0) (i32.const 0))
  (i64.atomic.store offset={AT.offer} (i32.const 0)
    (i64.or (i64.extend_i32_u (local.get $chunks))
      (i64.shl (i64.add (i64.const 1)
          (i64.shr_u (i64.atomic.load offset={AT.offer} (i32.const 0)) (i64.const 32)))
        (i64.const 32))))
  (loop $next
    (if (local.tee $count (call $claim)) (then
      (local.set $own (i32.add (local.get $own) (local.get $count)))
      (br $next))))
  (local.set $theirs (i32.sub (local.get $chunks) (local.get $own)))
  (local.set $spins (global.get $patience))
  (loop $spin
    (if (i32.eq (i32.atomic.load offset={AT.done} (i32.const 0)) (local.get $theirs))
      (then (call $trust) (return)))
    (br_if $spin (local.tee $spins (i32.sub (local.get $spins) (i32.const 1)))))
  (call $distrust)
  (loop $wait
    (local.set $done (i32.atomic.load offset={AT.done} (i32.const 0)))
    (if (i32.ne (local.get $done) (local.get $theirs)) (then
      (if (i32.eqz (i32.atomic.load offset={AT.running} (i32.const 0))) (then (unreachable)))
      (if (i32.eqz (i32.load offset={AT.awake} (i32.const 0))) (then
        (drop (memory.atomic.wait32 offset={AT.done}
          (i32.const 0) (local.get $done) (i64.const {_LEADER_NAP})))))
      (br $wait)))))
(func $help (local $spins i32) (local $nap i64) (local $count i32)
  (local.set $spins (global.get $patience))
  (local.set $nap (i64.const {_MIN_NAP}))
  (loop $on
    (if (i32.eqz (i32.atomic.load offset={AT.running} (i32.const 0))) (then (return)))
    (if (local.tee $count (call $claim))
      (then
        (drop (i32.atomic.rmw.add offset={AT.done} (i32.const 0) (local.get $count)))
        (call $trust)
        (local.set $spins (global.get $patience))
        (local.set $nap (i64.const {_MIN_NAP})))
      (else
        (if (i32.eqz (local.tee $spins (i32.sub (local.get $spins) (i32.const 1)))) (then
          (call $distrust)
          (drop (memory.atomic.wait32 offset={AT.running}
            (i32.const 0) (i32.const 1) (local.get $nap)))
          (if (i64.lt_u (local.get $nap) (i64.const {_MAX_NAP})) (then
            (local.set $nap (i64.shl (local.get $nap) (i64.const 1)))))
          (local.set $spins (global.get $patience))))))
    (br $on)))"""
"""The types, globals and functions that every module contains."""


def argument_addresses(kinds: list[str]) -> list[int] | None:
    """Addresses for values of these types, one after the other; None where they do not fit."""
    addresses = []
    top = AT.arguments
    for kind in kinds:
        size = _BYTES[kind]
        start = -(-top // size) * size
        addresses.append(start)
        top = start + size
    return addresses if top <= AT.slots else None
