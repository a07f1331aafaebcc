"""Distributions over structures, with exact inference: the latent variables of attention. Needs torch only."""

from .backend import use_backend
from .bernoulli import Bernoulli
from .binary_tree import BinaryTree
from .categorical import Categorical
from .independent_heads import IndependentHeads
from .linear_chain import LinearChain
from .one_span import OneSpan
from .projective_tree import ProjectiveTree
from .registry import distribution_names, get_distribution, register_distribution
from .semi_markov import SemiMarkov
from .spanning_tree import SpanningTree
from .sparse import Entmax, Entmax15, SparseCategorical, Sparsemax
from .structured import StructuredDistribution

__all__ = [
    "Bernoulli",
    "BinaryTree",
    "Categorical",
    "Entmax",
    "Entmax15",
    "IndependentHeads",
    "LinearChain",
    "OneSpan",
    "ProjectiveTree",
    "SemiMarkov",
    "SpanningTree",
    "SparseCategorical",
    "Sparsemax",
    "StructuredDistribution",
    "distribution_names",
    "get_distribution",
    "register_distribution",
    "use_backend",
]
