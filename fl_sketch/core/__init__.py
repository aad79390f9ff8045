"""Basic parts that all others use: types, keys, trees, files and checks of input."""
