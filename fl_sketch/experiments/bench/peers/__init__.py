"""Programs that play the same rounds, each in a process of its own: see `serving`."""
