"""Numbers of the special tokens, which data sets of texts have and models know."""

PAD, UNKNOWN, START = 0, 1, 2  # after the end, not in the vocabulary, the beginning
SPECIAL = 3  # tokens that are no units of a text: the first unit has this number
