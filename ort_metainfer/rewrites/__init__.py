"""Rewrites of a model: each takes a file and writes another one, or refuses with the reason; the original stays."""

__all__ = ["FIXED_SHAPES_VERSION"]

FIXED_SHAPES_VERSION = 2
"""A rewrite's version is raised when the same parameters give another model than before."""
