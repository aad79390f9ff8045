"""fl_sketch: federated learning in which clients send sketches of their updates.

Read it from the ground up. A file imports only from floors below its own:

- `core` (types, keys, trees, checks of input);
- `sketch` (linear maps to a few numbers and back, and other compressors), `theory`
  (what theorems promise), `data` and `models`;
- `channels` (from updates to an estimate of their mean) and `transforms` (what a client
  does, and sketches as optax transformations);
- `privacy` (bounds, noise and accounts);
- `algorithms` (one file a method) and `workdir` (the folder of a run);
- `engine` (rounds as one program, with a server or without);
- `audit` (attacks on messages and models) and `config` (what keys may say);
- `run` (one config), above it `sweep` (many), and above that `experiments` (what papers
  claim, what parts cost).
"""

__version__ = "0.1.0"
