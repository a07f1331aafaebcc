"""Repairs whose need is not known before a trial: it is made when what they are for is first used."""

import logging
import threading
from typing import Callable, Optional

logger = logging.getLogger(__package__)


def announce(*names: str) -> None:
    """Tells the log which repairs are at work from now on."""
    logger.info(f"repaired in fairseq: {', '.join(names)} (STRUCTATTN_COMPAT=0 leaves it as it is)")


class AtFirstUse:
    """Whether a repair is needed, found out by the first who asks.

    Args:
        name: what is repaired, for the log
        is_defective: tries the installed version out. It may come by the functions that are repaired: during the trial
            none is needed
    """

    def __init__(self, name: str, is_defective: Callable[[], bool]):
        self.name, self.is_defective = name, is_defective
        self._decision: Optional[bool] = None
        self._is_trying = False
        self._lock = threading.RLock()

    def is_needed(self) -> bool:
        """The decision. Other threads wait until it is made."""
        with self._lock:
            if self._is_trying:
                return False
            if self._decision is None:
                self._decide()
            return self._decision

    def _decide(self) -> None:
        self._is_trying = True
        try:
            self._decision = self.is_defective()
        finally:
            self._is_trying = False
        if self._decision:
            announce(self.name)


def put_in_place(owner, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replaces the function `name` of `owner` by ``make`` of it, unless that has been done already."""
    stock = getattr(owner, name)
    if not hasattr(stock, "is_repair"):
        repaired = make(stock)
        repaired.is_repair = True  # type: ignore[attr-defined]
        setattr(owner, name, repaired)
