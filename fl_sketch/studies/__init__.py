"""Studies: what papers claim, and what an attacker finds."""
