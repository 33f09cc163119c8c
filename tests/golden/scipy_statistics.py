"""Writes tests/golden/statistics.json: what SciPy and statsmodels compute, for crates/stats/tests/scipy.rs.

pip install scipy statsmodels
python tests/golden/scipy_statistics.py [--check]
"""

import json
import pathlib
import sys

import numpy as np
import scipy
import statsmodels
from scipy import stats
from statsmodels.stats.power import TTestPower

FILE = pathlib.Path(__file__).with_suffix(".json")


def pairs():
    generator = np.random.default_rng(36)
    for n in [2, 3, 4, 5, 6, 8, 12, 16]:
        seeds = 2 + 0.05 * generator.standard_normal(n)
        yield seeds + 0.01 * generator.standard_normal(n), seeds + 0.02 + 0.01 * generator.standard_normal(n)
    # Losses as a sweep has them: close values, one seed far off, negative ones, equal differences of both signs.
    yield np.array([1.9251, 1.9263, 1.9188, 1.9322]), np.array([1.9312, 2.2101, 1.9288, 2.0466])
    yield np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 1.0, 4.0, 3.0])
    yield np.array([-3.5, 2.25, -1.0]), np.array([-3.25, 2.0, -4.0])


def compare(a, b):
    difference = a - b
    n = len(a)
    t = stats.ttest_rel(a, b)
    interval = t.confidence_interval(0.95)
    signs = stats.permutation_test(
        (difference,), np.mean, permutation_type="samples", n_resamples=2**n + 1, alternative="two-sided"
    )
    mean = stats.t.interval(0.95, n - 1, loc=np.mean(a), scale=stats.sem(a))
    return {
        "a": list(a),
        "b": list(b),
        "mean": np.mean(a),
        "sd": np.std(a, ddof=1),
        "mean_interval": list(mean),
        "difference": np.mean(difference),
        "difference_sd": np.std(difference, ddof=1),
        "difference_interval": [interval.low, interval.high],
        "t": t.statistic,
        "t_p": t.pvalue,
        "permutation_p": signs.pvalue,
    }


def power(n, effect, alpha):
    return {"n": n, "effect": effect, "alpha": alpha, "power": TTestPower().power(effect, n, alpha)}


def main():
    powers = [
        power(n, effect, alpha)
        for n in [2, 3, 4, 5, 10, 30, 200]
        for effect in [0.0, 0.1, 0.8, 2.0]
        for alpha in [0.05, 0.005]
    ]
    result = {
        "versions": {"scipy": scipy.__version__, "statsmodels": statsmodels.__version__, "numpy": np.__version__},
        "pairs": [compare(a, b) for a, b in pairs()],
        # SciPy's series gives no number for some large critical values.
        "power": [case for case in powers if np.isfinite(case["power"])],
        "seeds": [
            {"effect": effect, "n": int(np.ceil(TTestPower().solve_power(effect, alpha=0.05, power=0.8)))}
            for effect in [0.1, 0.3, 0.5, 0.8, 1.5]
        ],
    }
    text = json.dumps(result, indent=1, default=float, allow_nan=False) + "\n"
    if "--check" in sys.argv:
        sys.exit(0 if FILE.read_text() == text else f"{FILE} differs")
    FILE.write_text(text)


main()
