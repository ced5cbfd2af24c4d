"""Judge mutants, and report each one that is neither right nor refused.

    python -m tests.users.mutations --count 1000 --seed 7 [--first 400] [--device webgpu]
    python -m tests.users.mutations --seed 7 --only 412 --keep /tmp/mutant

`--only` judges one mutant and prints its outcome; `--keep` also writes its files into a folder. The
exit code is 1 if an outcome was not allowed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.users.mutations.families import FAMILIES
from tests.users.mutations.outcome import Outcome
from tests.users.mutations.worker import Worker, draw
from webmlc.core.machine import Device

SHOWN = 600
"""The characters of a message that the report shows."""
LIST = 'also list the mutants of these outcomes, such as "unjudged" and "refused, runs it"'


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--family", choices=FAMILIES, default="onnx")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first mutant")
    parser.add_argument("--device", choices=("wasm", "webgpu", "both"), default="both")
    parser.add_argument("--only", type=int, help="judge the mutant of this number")
    parser.add_argument("--keep", type=Path, help="write the files of --only into this folder")
    parser.add_argument("--list", nargs="*", default=[], metavar="KIND", help=LIST)
    arguments = parser.parse_args()
    family, seed = arguments.family, arguments.seed
    numbers = range(arguments.first, arguments.first + arguments.count)
    if arguments.only is not None:
        numbers = range(arguments.only, arguments.only + 1)
        if arguments.keep is not None:
            print(draw(family, seed, arguments.only).write(arguments.keep))
    counts: Counter[str] = Counter()
    worker, failures = Worker(family), 0
    for number in numbers:
        for device in devices(number, arguments.device):
            outcome = worker.judge(seed, number, device)
            key = outcome.kind + (f", {outcome.reference}" if outcome.reference else "")
            counts[key] += 1
            failures += not outcome.is_allowed
            is_shown = key in arguments.list
            if not outcome.is_allowed or is_shown or arguments.only is not None:
                print(_line(family, seed, number, device, outcome), flush=True)
    worker.close()
    print(f"{family}, seed {seed}, {sum(counts.values())} mutants: ", end="")
    print("; ".join(f"{count} {key}" for key, count in counts.most_common()))
    sys.exit(failures > 0)


def devices(number: int, choice: str) -> tuple[Device, ...]:
    """The device of a mutant: with "both", each third one runs on the GPU."""
    if choice == "both":
        return ("webgpu",) if number % 3 == 2 else ("wasm",)
    return ("webgpu",) if choice == "webgpu" else ("wasm",)


def _line(family: str, seed: int, number: int, device: Device, outcome: Outcome) -> str:
    title = draw(family, seed, number).title
    message = " ".join(outcome.message.split())[:SHOWN]
    place = f" at {outcome.place}" if outcome.place else ""
    reference = f" (the reference {outcome.reference})" if outcome.reference else ""
    return f"{number} {device} {outcome.kind}{reference}: {title}\n    {message}{place}"


if __name__ == "__main__":
    main()
