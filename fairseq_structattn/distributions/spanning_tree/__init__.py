"""Non-projective dependency trees."""

from .tree import SpanningTree

__all__ = ["SpanningTree"]
