"""What may be published of a private run."""
