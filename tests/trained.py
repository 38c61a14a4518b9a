"""A checkpoint without training; see lively.py."""

from lively import tiny_checkpoint

__all__ = ["tiny_checkpoint"]
