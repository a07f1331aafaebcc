"""What attention takes from a distribution over structures: its expectation, or one structure."""

from typing import Dict, Type

from torch import Tensor

from fairseq_structattn.distributions import StructuredDistribution

EXPECTATION, SAMPLE, ARGMAX = "expectation", "sample", "argmax"
STRAIGHT_THROUGH, RSAMPLE = "straight-through", "rsample"
ESTIMATORS: Dict[str, str] = {
    EXPECTATION: "marginals, with their exact gradient",
    SAMPLE: "an exact sample, without a gradient for the scores",
    STRAIGHT_THROUGH: "an exact sample, with the gradient of the marginals",
    RSAMPLE: "a sample of softmax, chains, spans, segments or trees, with the gradient of its relaxation",
    ARGMAX: "the most likely structure, without a gradient for the scores",
}


def estimators_help(when: str) -> str:
    """The text of an option that chooses among :data:`ESTIMATORS`."""
    return f"what attention weights are in {when}: " + "; ".join(
        f"{name} ({text})" for name, text in ESTIMATORS.items()
    )


class Estimator:
    """What is taken in training and in evaluation.

    Straight-through: Bengio, Léonard & Courville, "Estimating or Propagating Gradients Through Stochastic Neurons"
    (2013), section 4. Its gradient is biased, unless the loss is linear in the structure.

    Args:
        training, generation: keys of :data:`ESTIMATORS`

    Raises:
        ValueError: another name
    """

    def __init__(self, training: str = EXPECTATION, generation: str = EXPECTATION):
        for name, value in (("estimator", training), ("generation_estimator", generation)):
            if value not in ESTIMATORS:
                raise ValueError(f"{name} is {value!r}; choose one of: {', '.join(ESTIMATORS)}")
        self.training, self.generation = training, generation

    def check(self, name: str, distribution: Type[StructuredDistribution]) -> None:
        """Raises ValueError if the distribution registered as `name` has no ``rsample``, and that is asked for."""
        if RSAMPLE in (self.training, self.generation) and not distribution.has_rsample:
            raise ValueError(f"estimator is {RSAMPLE!r}, which {name} does not have; choose {STRAIGHT_THROUGH}")

    def name(self, is_training: bool) -> str:
        """The key of :data:`ESTIMATORS` that is in use."""
        return self.training if is_training else self.generation

    def positions(self, distribution: StructuredDistribution, is_training: bool) -> Tensor:
        """How much each position is selected, ``[*batch, n]``: probabilities, or 0 and 1; over arcs, numbers of
        dependents."""
        name = self.name(is_training)
        if name == EXPECTATION:
            return distribution.position_marginals
        selected = distribution.selected_positions(_structure(distribution, name))
        return _with_gradient(selected, distribution.position_marginals) if name == STRAIGHT_THROUGH else selected

    def parts(self, distribution: StructuredDistribution, is_training: bool) -> Tensor:
        """Marginals, or a structure of the same shape."""
        name = self.name(is_training)
        if name == EXPECTATION:
            return distribution.marginals
        structure = _structure(distribution, name)
        return _with_gradient(structure, distribution.marginals) if name == STRAIGHT_THROUGH else structure


def _structure(distribution: StructuredDistribution, name: str) -> Tensor:
    if name == ARGMAX:
        return distribution.argmax
    return distribution.rsample() if name == RSAMPLE else distribution.sample()


def _with_gradient(value: Tensor, of: Tensor) -> Tensor:
    """`value` with the gradient of `of`."""
    return value + (of - of.detach())
