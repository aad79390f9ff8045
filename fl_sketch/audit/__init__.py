"""Audits: what a model and its messages give away, against what is claimed."""
