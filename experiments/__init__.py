"""The studies behind results/: one file each, `python -m experiments` lists them."""
