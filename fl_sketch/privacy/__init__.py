"""Privacy: bounds of messages, noise, mechanisms and accounting.

Nothing is imported here, so that `privacy.accounting` can be used without jax.
"""
