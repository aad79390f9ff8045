"""Audits: attacks on messages and models, and tests of privacy claims."""
