"""Audits of privacy claims, attacks on messages, and Hessian spectra of runs."""
