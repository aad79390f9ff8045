"""Programs that run the same rounds, each in its own process: see `serving`."""
