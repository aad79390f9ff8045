"""Studies beside the package: in a clone, python -m experiments.NAME."""
