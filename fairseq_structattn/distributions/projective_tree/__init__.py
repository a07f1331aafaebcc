"""Projective dependency trees: syntactic attention."""

from .tree import ProjectiveTree

__all__ = ["ProjectiveTree"]
