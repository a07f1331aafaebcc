"""Binary trees over the words of a sentence: constituents."""

from .tree import BinaryTree

__all__ = ["BinaryTree"]
