"""``structattn_adagrad``: Adagrad whose sums of squared gradients need not start at 0."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Dict, List

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II


@dataclass
class AdagradOptions(FairseqDataclass):
    """Options of :class:`StructuredAdagrad`."""

    initial_accumulator_value: float = field(
        default=0.1, metadata={"help": "initial sum of squared gradients of each parameter"}
    )
    weight_decay: float = field(default=0.0, metadata={"help": "weight decay"})
    lr: List[float] = II("optimization.lr")


@register_optimizer("structattn_adagrad", dataclass=AdagradOptions)
class StructuredAdagrad(FairseqOptimizer):
    """Adagrad (Duchi, Hazan, Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization",
    JMLR 2011): a step is ``lr·g / √(a + Σg²)`` with the initial value a, 0.1 in the published code of Kim et al. 2017.

    fairseq's ``adagrad`` has a = 0, so that the first update moves every parameter by the whole of ``lr``, however
    small its gradient.

    Args:
        cfg: options of the optimizer
        params: the parameters to train

    Raises:
        ValueError: a negative initial value
    """

    def __init__(self, cfg: AdagradOptions, params):
        super().__init__(cfg)
        if cfg.initial_accumulator_value < 0:
            raise ValueError(f"--initial-accumulator-value {cfg.initial_accumulator_value}: must be at least 0")
        self._optimizer = torch.optim.Adagrad(
            params, initial_accumulator_value=cfg.initial_accumulator_value, **self.optimizer_config
        )

    @property
    def optimizer_config(self) -> Dict[str, Any]:
        """Settings that a resumed training takes from its options and not from the checkpoint."""
        lr = self.cfg.lr
        return {"lr": next(iter(lr)) if isinstance(lr, Collection) else lr, "weight_decay": self.cfg.weight_decay}

    @property
    def supports_flat_params(self) -> bool:
        """Parameters may be one flat vector, since the update is elementwise."""
        return True
