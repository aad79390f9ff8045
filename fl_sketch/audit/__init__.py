"""Audits: what a trained model and its messages give away about themselves."""
