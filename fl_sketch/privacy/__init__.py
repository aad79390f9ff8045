"""Privacy: what bounds a message, what hides it, and what is left to say of it.

Nothing is imported here, so that `privacy.accounting` can be used without jax.
"""
