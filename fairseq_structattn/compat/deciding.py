"""Repairs that need a trial of the installed version, which is made when the repaired function is first used."""

import logging
import threading
from typing import Callable, Optional

logger = logging.getLogger(__package__)


def announce(*names: str) -> None:
    """Writes to the log which repairs are active from now on."""
    logger.info(f"repaired in fairseq: {', '.join(names)} (STRUCTATTN_COMPAT=0 leaves it as it is)")


class AtFirstUse:
    """Whether a repair is needed, decided by the first call.

    Args:
        name: of the repair, for the log
        is_defective: tries the installed version. The trial may call repaired functions, which then behave as if no
            repair were needed
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
            return self._decide() if self._decision is None else self._decision

    def _decide(self) -> bool:
        self._is_trying = True
        try:
            self._decision = needed = self.is_defective()
        finally:
            self._is_trying = False
        if needed:
            announce(self.name)
        return needed


def put_in_place(owner, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replaces the function `name` of `owner` by ``make(function)``, unless it has been replaced already."""
    stock = getattr(owner, name)
    if not hasattr(stock, "is_repair"):
        repaired = make(stock)
        repaired.is_repair = True  # type: ignore[attr-defined]
        setattr(owner, name, repaired)
