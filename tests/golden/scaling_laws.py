"""Scaling laws fitted by SciPy: the fixture of crates/stats/tests/scaling_laws.rs. Needs numpy and scipy; run it in this folder."""

import itertools
import json

import numpy as np
from scipy.optimize import least_squares

DELTA = 1e-3  # as in Hoffmann et al. 2022


def log_loss(parameters, log_scales):
    terms = [parameters[1 + 2 * k] - parameters[2 + 2 * k] * x for k, x in enumerate(log_scales.T)]
    return np.logaddexp.reduce([np.full(len(log_scales), parameters[0]), *terms])


def fit(scales, losses):
    """The best of many starts; scales relative to their geometric means."""
    references = np.exp(np.log(scales).mean(axis=0))
    log_scales = np.log(scales / references)
    terms = scales.shape[1]
    best = None
    for share, *exponents in itertools.product([0.1, 0.5, 0.9], *[[0.05, 0.2, 0.5, 1.0]] * terms):
        start = [np.log(share * losses.min())]
        for exponent in exponents:
            start += [np.log((losses.mean() - share * losses.min()) / terms), exponent]
        lower, upper = [-12] + [-40, 1e-3] * terms, [6] + [40, 3] * terms
        found = least_squares(
            lambda p: log_loss(p, log_scales) - np.log(losses), start, bounds=(lower, upper), loss="huber", f_scale=DELTA,
            x_scale="jac", xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=5000,
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
    losses = losses * np.exp(noise * rng.standard_normal(len(scales)))
    return {"scales": scales.tolist(), "losses": losses.tolist(), "fit": fit(scales, losses)}


compute = [[10**x] for x in np.repeat(np.linspace(12, 15, 6), 2)]
grid = [[n, n * ratio] for n in np.logspace(5, 7.5, 5) for ratio in [5, 20, 80]]
cases = [
    case((1.7, [(60.0, 0.14)]), compute, 0.004, 1),
    case((0.4, [(30.0, 0.09)]), compute, 0.002, 2),
    case((1.69, [(406.4, 0.34), (410.7, 0.28)]), grid, 0.003, 3),
]
with open("scaling_laws.json", "w") as out:
    json.dump({"delta": DELTA, "cases": cases}, out, indent=1)
    out.write("\n")
