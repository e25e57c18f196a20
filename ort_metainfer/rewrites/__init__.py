"""Rewrites of a model: each takes a file and writes another one, or refuses with the reason; the original stays."""
