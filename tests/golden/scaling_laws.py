"""Scaling laws fitted by SciPy: the fixture of crates/stats/tests/scaling_laws.rs. Needs numpy and scipy; run it in this folder."""

import itertools
import json

import numpy as np
from scipy.optimize import least_squares

LEAST_DELTA = 1e-3  # as in Hoffmann et al. 2022


def huber_delta(scales, losses):
    """1.345 standard deviations of the runs of a rung, if there are several."""
    _, rungs = np.unique(scales, axis=0, return_inverse=True)
    rungs = rungs.ravel()
    logs, count = np.log(losses), rungs.max() + 1
    if len(logs) == count:
        return LEAST_DELTA
    within = sum(((logs[rungs == r] - logs[rungs == r].mean()) ** 2).sum() for r in range(count))
    return max(LEAST_DELTA, 1.345 * np.sqrt(within / (len(logs) - count)))


def log_loss(parameters, log_scales):
    terms = [parameters[1 + 2 * k] - parameters[2 + 2 * k] * x for k, x in enumerate(log_scales.T)]
    return np.logaddexp.reduce([np.full(len(log_scales), parameters[0]), *terms])


def fit(scales, losses):
    """The best of many starts; scales relative to their geometric means."""
    delta = huber_delta(scales, losses)
    references = np.exp(np.log(scales).mean(axis=0))
    log_scales = np.log(scales / references)
    terms = scales.shape[1]
    best = None
    lower, upper = [-12] + [-40, 1e-3] * terms, [6] + [40, 3] * terms
    starts = []
    for share, *exponents in itertools.product([0.1, 0.5, 0.9], *[[0.05, 0.2, 0.5, 1.0]] * terms):
        starts.append([np.log(share * losses.min())])
        for exponent in exponents:
            starts[-1] += [np.log((losses.mean() - share * losses.min()) / terms), exponent]
    # Minima in which a term matters at the smallest rungs only are reached from none of these.
    rng = np.random.default_rng(len(losses))
    for _ in range(20):
        starts.append([rng.uniform(-6, np.log(losses.min()))])
        for k in range(terms):
            exponent = rng.uniform(0.01, 2.9)
            starts[-1] += [rng.uniform(-7, 1) + exponent * log_scales[:, k].min(), exponent]
    for start in starts:
        found = least_squares(
            lambda p: log_loss(p, log_scales) - np.log(losses), start, bounds=(lower, upper), loss="huber", f_scale=delta,
            x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=1000,
        )
        if best is None or found.cost < best.cost:
            best = found
    p = best.x
    return {
        "cost": best.cost,
        "irreducible": np.exp(p[0]),
        "exponents": list(p[2::2]),
        "coefficients": list(np.exp(p[1::2] + p[2::2] * np.log(references))),
        "predicted": [float(np.exp(log_loss(p, np.log(np.array([scale]) / references))[0])) for scale in scales.tolist() + [list(scales.max(axis=0) * 4)]],
    }


def case(truth, scales, noise, seed):
    rng = np.random.default_rng(seed)
    scales = np.array(scales, dtype=float)
    losses = truth[0] + sum(a * x**-alpha for (a, alpha), x in zip(truth[1], scales.T))
    return case_of(scales, losses * np.exp(noise * rng.standard_normal(len(scales))))


def case_of(scales, losses):
    return {"delta": huber_delta(scales, losses), "scales": scales.tolist(), "losses": losses.tolist(), "fit": fit(scales, losses)}


compute = [[10**x] for x in np.repeat(np.linspace(12, 15, 6), 2)]
grid = [[n, n * ratio] for n in np.logspace(5, 7.5, 5) for ratio in [5, 20, 80]]
# Relative to the middle of the scales, so that terms of any exponent are of the size of a loss.
small_grid = [[x, y] for x in [0.25, 1, 4] for y in [0.3, 1.1, 3.7]]
ladder = [[x] for x in np.repeat([0.1, 0.3, 1, 3, 10], 2)]
cases = [
    case((1.7, [(60.0, 0.14)]), compute, 0.004, 1),
    case((0.4, [(30.0, 0.09)]), compute, 0.002, 2),
    case((1.69, [(406.4, 0.34), (410.7, 0.28)]), grid, 0.003, 3),
    # Exponents beyond the upper bound: of the only term, of one of two, of both.
    case((1.0, [(0.5, 4.0)]), ladder, 0.002, 4),
    case((1.0, [(0.5, 4.0), (0.5, 0.2)]), small_grid, 0.01, 5),
    case((1.0, [(0.5, 4.0), (0.5, 4.0)]), small_grid, 0.02, 6),
    # No irreducible loss.
    case((0.0, [(2.0, 0.05)]), ladder, 0.002, 7),
    case((0.0, [(1.0, 0.1), (1.0, 0.1)]), small_grid, 0.002, 8),
    # A loss that rises, or does not depend on a scale: the exponent is at the lower bound, or there is no term.
    case((1.0, [(1.0, -0.05)]), ladder, 0.002, 9),
    case((1.0, [(0.5, -0.1), (0.5, 0.3)]), small_grid, 0.01, 10),
    case((0.0, [(1.0, 0.0), (0.5, 4.0)]), small_grid, 0.01, 11),
    # A loss that falls faster and faster, but hardly: no exponent above the lower bound is as slow.
    case_of(np.array(ladder), 2 - 5e-4 * np.log(ladder)[:, 0] - 3e-4 * np.log(ladder)[:, 0] ** 2),
    # The smallest rungs are apart from a law of the others: a local minimum is near.
    case((0.2, [(1.0, 0.1), (1.0, 0.1)]), small_grid, 0.1, 12),
]
with open("scaling_laws.json", "w") as out:
    json.dump({"cases": cases}, out, indent=1)
    out.write("\n")
