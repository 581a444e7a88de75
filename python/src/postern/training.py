"""Small helpers for the arithmetic between rewards and a training step. Plain Python: they work on lists and need no numpy."""

from __future__ import annotations

import math
from typing import List, Optional, Sequence, overload


@overload
def advantages(rewards: Sequence[float], scale: bool = ..., epsilon: float = ...) -> List[float]: ...
@overload
def advantages(rewards: Sequence[Optional[float]], scale: bool = ..., epsilon: float = ...) -> List[Optional[float]]: ...


def advantages(rewards: Sequence[Optional[float]], scale: bool = True, epsilon: float = 1e-6) -> List[Optional[float]]:  # type: ignore[misc]
    """Group-relative advantages, as GRPO has them: the distance of each reward from the group's mean, in standard deviations
    (`scale=False`: as it is). A reward of None belongs to a rollout that infrastructure broke: it counts for nothing, and
    its advantage is None. A group whose rewards are all the same teaches nothing: zeros."""
    known = [float(reward) for reward in rewards if reward is not None]
    for reward in known:
        if not math.isfinite(reward):
            raise ValueError(f"a reward is {reward}")
    if not known:
        return [None] * len(rewards)
    mean = math.fsum(known) / len(known)
    spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in known) / len(known))
    unit = spread + epsilon if scale else 1.0
    if spread <= 1e-12 * max(1.0, abs(mean)):
        return [None if reward is None else 0.0 for reward in rewards]
    return [None if reward is None else (float(reward) - mean) / unit for reward in rewards]
