"""Linear chains: segmentation attention, and conditional random fields with K states."""

from .chain import LinearChain

__all__ = ["LinearChain"]
