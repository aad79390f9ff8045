"""Experiments: measurements of papers' claims, attacks and audits."""
