"""A term of the loss of one's own: attention should not go back in the source."""

from typing import Tuple

import torch
from torch import Tensor, nn

import fairseq_structattn  # noqa: F401  (registers the models and the criterion)
from fairseq_structattn.criterions.terms import Term, register_term


@register_term
class Monotony(Term):
    """Σ_t max(0, m_{t−1} − m_t − slack), where m_t is the mean position that step t attends to."""

    name = "monotony"
    description = "weight of the penalty on attention that goes back in the source"
    further_options = [("monotony_slack", float, 0.0, "positions that attention may go back without a penalty")]

    def value(self, model: nn.Module, sample: dict, extra: dict) -> Tuple[Tensor, Tensor]:
        """See the contract, :class:`Term`; over all target words."""
        weights = self.attended(extra["attn"][0]).float()
        positions = torch.arange(weights.size(-1), device=weights.device).float()
        total = weights.sum(-1)
        mean = weights @ positions / total.clamp(min=torch.finfo(total.dtype).tiny)
        back = (mean[:, :-1] - mean[:, 1:] - self.options["monotony_slack"]).clamp(min=0)
        counted = sample["target"].ne(self.task.target_dictionary.pad())
        return back.masked_fill(~counted[:, 1:], 0).sum(), counted.sum()
