"""A map of the reasoning of one prompt's responses: points in a plane that a page can show.

N = responses on the map, D = embedding width. Classical multidimensional scaling of the chord
distances sqrt(2 (1 - cos)), which for unit vectors is the same as their principal components.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# The map's size in its own units, as templates/eval/card.html has it; its edge where no point lies;
# and how near two points may come.
_WIDTH, _HEIGHT, _EDGE, _APART = 100.0, 72.0, 7.0, 4.6
# Turn from one place of the spiral to the next: no two of them share a direction.
_GOLDEN_ANGLE = math.pi * (3.0 - math.sqrt(5.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """Where responses lie in the plane that shows most of their differences."""

    places: Floats
    """[N, 2], centred; distances in the plane are at most the chord distances."""
    variance_frac: float
    """Share of the variance that the plane shows; 1 where the responses do not differ at all."""


def plane(embeddings: Floats | NDArray[np.float32]) -> Plane:
    """The plane of most variance through unit vectors.

    Args:
        embeddings: [N, D], rows of any length but 0 (such a row lies at the middle of the sphere).
    """
    rows = np.asarray(embeddings, np.float64)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    centred = unit - unit.mean(0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    values = np.maximum(values[::-1], 0.0)
    total = float(values.sum())
    # Fewer than three points always fit; equal ones have no direction that could be shown.
    fits = total < 1e-9 or len(rows) < 3
    places = np.zeros((len(rows), 2))
    axes = vectors[:, ::-1][:, :2] * np.sqrt(values[:2])
    # An axis has no sign of its own: its farthest point counts as positive.
    far = np.argmax(np.round(np.abs(axes), 9), axis=0)
    signs = np.where(axes[far, np.arange(axes.shape[1])] < 0.0, -1.0, 1.0)
    places[:, : axes.shape[1]] = axes * signs
    return Plane(places=places, variance_frac=1.0 if fits else float(values[:2].sum()) / total)


def reach(places: Floats) -> float:
    """Half the side that a map must have to hold these places, in their unit."""
    if not len(places):
        return 0.0
    return float(max(np.abs(places[:, 0]).max(), np.abs(places[:, 1]).max() * _WIDTH / _HEIGHT))


def spread(places: Floats, extent: float) -> Floats:
    """Places on the map, those that would cover each other moved apart.

    Each keeps its place or takes the nearest free one on a spiral around it.

    Args:
        places: [N, 2] in the plane.
        extent: what lies at the left and the right edge of the map, as `reach` gives it.

    Returns:
        [N, 2] in units of the map, from its upper left corner.
    """
    scale = (_WIDTH / 2 - _EDGE) / max(extent, 1e-9)
    middle = np.array([_WIDTH / 2, _HEIGHT / 2])
    wanted = middle + places * np.array([scale, -scale])
    taken = np.empty((0, 2))
    for place in wanted:
        taken = np.vstack([taken, _free(place, taken)])
    return taken


def centres(places: Floats, groups: NDArray[np.int64]) -> Floats:
    """[N, 2] middle of the group of each place."""
    return np.array([places[groups == group].mean(0) for group in groups]).reshape(-1, 2)


def _free(place: Floats, taken: Floats) -> Floats:
    for turn in range(4 * len(taken) + 1):
        radius = 0.55 * _APART * math.sqrt(turn)
        angle = turn * _GOLDEN_ANGLE
        tried = place + radius * np.array([math.cos(angle), math.sin(angle)])
        tried = np.clip(tried, _EDGE / 2, [_WIDTH - _EDGE / 2, _HEIGHT - _EDGE / 2])
        if not len(taken) or np.linalg.norm(taken - tried, axis=1).min() >= _APART * 0.98:
            return np.asarray(tried)
    return place  # The map is full: this one covers another.
