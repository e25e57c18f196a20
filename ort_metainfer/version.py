"""This package's version: a constant, so that a start does not search the installed distributions for it."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
