"""Tell from the path of a method in the plane how it ends: it converges, goes round a limit cycle, leaves, or moves."""

import numpy as np

from sihg.report.read.evaluations import Floats

SAME_SIZE = 0.02  # two parts of a path whose sizes differ by less do not spiral in or out
STANDS_STILL = 1e-6  # times the size of the whole path
AWAY, BACK = 0.3, 0.02  # distances from the end, over the size of the cycle


def find_limit_cycle(path: Floats) -> Floats | None:
    """Return the last round of a path that goes round and round at one size; None if it does not.

    The third and the last quarter of the path must have the same size within 2 %. The path must have come back to its
    end, within a step, after it was away.
    """
    if len(path) < 40 or not np.isfinite(path).all():
        return None
    third, last = np.array_split(path[len(path) // 2 :], 2)
    size = _size(last)
    if size <= STANDS_STILL * max(_size(path), float(np.finfo(np.float64).tiny)):
        return None
    if abs(size / max(_size(third), 1e-300) - 1) > SAME_SIZE:
        return None
    step = float(np.hypot(*np.diff(last, axis=0).T).max())
    distance = np.hypot(*(last - last[-1]).T)
    away = np.flatnonzero(distance > AWAY * size)
    if not len(away):
        return None
    back = np.flatnonzero(distance[: away[-1]] <= max(BACK * size, step / 2))
    if not len(back):
        return None
    # Of the points of the last visit, begin at the nearest.
    before = away[away < back[-1]]
    visit = back[back > before[-1]] if len(before) else back
    return np.asarray(last[visit[np.argmin(distance[visit])] :])


def _size(points: Floats) -> float:
    return float(np.ptp(points, axis=0).max())
