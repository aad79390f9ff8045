"""Plays random configs: python -m tests.fuzz COUNT SEED [FIRST]."""

import collections
import random
import sys
import time
import warnings

import jax

from tests.fuzz import drawn

FORGET = 40  # configs after which compiled programs are forgotten


def main(count, seed, first=0):
    """Plays `count` configs of a `seed` from the `first` on; prints those that fail."""
    warnings.simplefilter("ignore")
    begin, found = time.time(), collections.Counter()
    for number in range(first, first + count):
        own = random.Random(f"{seed} {number}")
        changes = drawn.changes_of(own.choice)
        kind, why = drawn.outcome(changes)
        found[kind] += 1
        if why:
            print(f"--- {number} {kind}: {changes}\n{why}", flush=True)
        if number % FORGET == FORGET - 1:
            jax.clear_caches()
            print(
                f"{number + 1}: {dict(found)}, {time.time() - begin:.0f} s", flush=True
            )
    print(f"{count} configs: {dict(found)} in {time.time() - begin:.0f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
