"""The examples in docstrings of public classes print what stands there."""

import doctest

import pytest
import torch

from fairseq_structattn import distributions

CLASSES = [cls for cls in map(distributions.__dict__.get, distributions.__all__) if isinstance(cls, type)]


@pytest.mark.parametrize("cls", CLASSES)
def test_examples(cls):
    if issubclass(cls, distributions.SparseCategorical):
        pytest.importorskip("entmax")
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(cls, cls.__name__, globs={"torch": torch, **vars(distributions)}):
        runner.run(example)
    assert runner.failures == 0
    bases = (distributions.SparseCategorical, distributions.StructuredDistribution)
    assert runner.tries > 0 or cls in bases, "a public class shows what it gives"
