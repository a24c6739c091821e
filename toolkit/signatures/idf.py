"""Inverse document frequency: how much an expert tells requests apart."""

import numpy as np

from toolkit.signatures.calibration import Counts, Floats


def idf_weights(counts: Counts) -> Floats:
    """`w[l, e] = log((|C| + 1) / (df[l, e] + 1))`, [L, E] float32, from counts [N, L, E].

    `df` is the number of the |C| = N requests in which expert e fires at layer l. An expert that
    every request uses weighs 0: it is loaded whichever requests share a batch. One that never
    fires weighs most and matters not, as its counts are 0. Source: ELDR, "Expert signature".
    """
    requests = len(counts)
    fires = np.zeros(counts.shape[1:], dtype=np.int64)
    # In pieces: the comparison's temporary is as large as the counts themselves.
    for start in range(0, requests, 1024):
        fires += np.count_nonzero(counts[start : start + 1024], axis=0)
    return np.log((requests + 1) / (fires + 1)).astype(np.float32)
