"""This package's version: a constant, so that a start does not search the installed distributions for it.

The underscore: ``ort_metainfer.version`` is onnxruntime's own version, as ``onnxruntime.version`` is.
"""

__all__ = ["VERSION"]

VERSION = "0.1.0"
