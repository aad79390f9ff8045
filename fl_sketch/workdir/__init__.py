"""What a run leaves in its folder: config, rows, checkpoints, secrets, a model."""
