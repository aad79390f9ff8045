"""What every other part builds on: types, keys, trees, files and checks of input."""
