"""``structattn_adam``: fairseq's ``adam`` with one operation for all parameters in place of eight for each."""

import math
from collections import defaultdict
from typing import Dict, List

import torch
from fairseq.optim import register_optimizer
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from torch import Tensor


@register_optimizer("structattn_adam", dataclass=FairseqAdamConfig)
class StructuredAdam(FairseqAdam):
    """Adam with decoupled weight decay (Kingma & Ba, ICLR 2015; Loshchilov & Hutter, ICLR 2019), by the fused kernel of
    PyTorch. Options, updates and checkpoints are those of fairseq's ``adam``: a training may be resumed with the other.

    Args:
        cfg: options of the optimizer
        params: the parameters to train

    Raises:
        ValueError: an option that chooses another implementation
    """

    def __init__(self, cfg: FairseqAdamConfig, params):
        super(FairseqAdam, self).__init__(cfg)
        for option in ("use_old_adam", "fp16_adam_stats"):
            if getattr(cfg, option, False):
                flag = "--" + option.replace("_", "-")
                raise ValueError(f"{flag} chooses an implementation of Adam: leave it out, or use --optimizer adam")
        self._optimizer = FusedAdam(params, **self.optimizer_config)

    def clip_grad_norm(self, max_norm, aggregate_norm_fn=None) -> Tensor:
        """The norm of all gradients, which are scaled down to the norm `max_norm` if that is smaller and not 0."""
        params = list(self.params)
        grads = [parameter.grad for parameter in params if parameter.grad is not None]
        if any(hasattr(parameter, "expert") for parameter in params) or not _one_kind(grads):
            return super().clip_grad_norm(max_norm, aggregate_norm_fn)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        norm = norm if aggregate_norm_fn is None else aggregate_norm_fn(norm)
        if max_norm > 0:
            torch._foreach_mul_(grads, (float(max_norm) / (norm + 1e-6)).clamp(max=1))
        return norm


# fairseq resumes a checkpoint only with an optimizer of the same class name.
StructuredAdam.__name__ = FairseqAdam.__name__


class FusedAdam(Adam):
    """fairseq's Adam, whose updates and states it has; for arguments see :class:`torch.optim.AdamW`."""

    def step(self, closure=None):
        """One update of all parameters that have a gradient."""
        params = [parameter for group in self.param_groups for parameter in group["params"]]
        params = [parameter for parameter in params if parameter.grad is not None]
        # Parameters in half precision are updated by way of copies.
        if not _one_kind([tensor for parameter in params for tensor in (parameter, parameter.grad)]):
            return super().step(closure)
        loss = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                self._update(group)
        return loss

    def _update(self, group: Dict) -> None:
        by_step: Dict[int, List[Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                state = self.state[parameter]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
                state["step"] += 1
                by_step[state["step"]].append(parameter)
        for step, params in by_step.items():
            self._update_together(group, step, params)

    def _update_together(self, group: Dict, step: int, params: List[Tensor]) -> None:
        means, squares = ([self.state[parameter][name] for parameter in params] for name in ("exp_avg", "exp_avg_sq"))
        first, second = group["betas"]
        steps = [torch.full((), float(step), device=params[0].device)] * len(params)
        torch._fused_adamw_(
            params,
            [parameter.grad for parameter in params if parameter.grad is not None],
            means,
            squares,
            [],
            steps,
            lr=float(group["lr"]),
            beta1=first,
            beta2=second,
            weight_decay=group["weight_decay"],
            # fairseq adds epsilon before the correction of the bias of the second moment, PyTorch after it.
            eps=group["eps"] / math.sqrt(1 - second**step),
            amsgrad=False,
            maximize=False,
        )


def _one_kind(tensors: List[Tensor]) -> bool:
    """Whether the kernels of PyTorch take all of them together: dense, in float32, on one device."""
    kinds = {(tensor.dtype, tensor.layout, tensor.device) for tensor in tensors}
    if len(kinds) != 1:
        return False
    ((dtype, layout, device),) = kinds
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key("aten::_fused_adamw_", device.type.upper())
    return dtype == torch.float32 and layout == torch.strided and has_kernel
