"""Whole rounds of the engine, timed in turn with the same round written by hand.

python -m benchmarks.engine --only=W2
python -m benchmarks.engine --only=W1 --peers=engine --other=PATH

Every form of `jax_rounds` is a peer, see there; with --other so are the engine's rounds
of another checkout. The first is the unit of the ratios.
"""

from benchmarks import jax_rounds, peers

if __name__ == "__main__":
    peers.main(jax_rounds.FORMS)
