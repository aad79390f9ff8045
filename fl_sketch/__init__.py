"""fl_sketch: federated learning in which clients send sketches of their updates.

Read it from the ground up. A file imports only from what comes before its own layer:

- `protocols` (the types), `wire` (the bytes), `sketch` (linear maps to a few numbers
  and back), `theory` (what theorems promise) and `compressors` (nonlinear messages);
- `channels` (from updates to an estimate of their mean), `transforms` (the same parts
  for optax), `local` (what a client does), `data` and `models`;
- `privacy` (bounds, noise and accounts) and `algorithms` (one file a method);
- `engine` (rounds as one program), `gossip` (the same without a server) and `audit`
  (what messages give away);
- `config` (what keys may say), `run` (one config), `sweep` (many), `publish`, `studies`
  (what papers claim) and `bench` (what parts cost).
"""

__version__ = "0.1.0"
