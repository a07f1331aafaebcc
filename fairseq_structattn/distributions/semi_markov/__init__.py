"""Semi-Markov segmentations: attention to segments, and semi-Markov conditional random fields."""

from .segmentation import MAX_SEGMENT_LENGTH, SemiMarkov

__all__ = ["MAX_SEGMENT_LENGTH", "SemiMarkov"]
