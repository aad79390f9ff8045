"""Exit codes of commands that fail or are stopped."""

WRONG, LOST_A_PEER = 2, 3  # its input is wrong; another process of the run has ended
STOPPED = 130  # the one that shells take for Ctrl-C
INTERRUPTED = "interrupted; results that were saved before are kept"
