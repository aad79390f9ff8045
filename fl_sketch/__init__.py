"""fl_sketch: simulates federated learning with compressed, private updates.

A file imports only from packages that are listed before its own:

- `core` (types, keys, trees, checks of input);
- `sketch` (sketch operators and compressors), `theory` (bounds of theorems), `data` and
  `models`;
- `channels` (from updates to an estimate of their mean) and `transforms` (local work,
  and sketches as optax transformations);
- `privacy` (bounds, noise and accounting);
- `algorithms` (one file for each method);
- `engine` (a run: rounds as one program, their bytes and their privacy) and `workdir`
  (the files of a run);
- `config` (the keys of a config);
- `run` (one call or one config, in a folder), `sweep` (many configs), `network` (sites
  that keep their data)
  and `audit` (audits of privacy claims, attacks on messages, Hessian spectra).
"""

__version__ = "0.1.0"
