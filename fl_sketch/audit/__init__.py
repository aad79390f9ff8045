"""Audits: what an attacker can tell, against what is claimed."""
