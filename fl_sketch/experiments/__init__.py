"""Experiments: claims of papers, attacks and audits, each measured."""
