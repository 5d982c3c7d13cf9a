"""The parts of OpenDP and diffprivlib in `private_statistics.py`. Imports nothing of fedpriv: any interpreter runs it.

Each library releases a mean, a standard deviation and three quartiles of a column. Each of these five numbers has a
fifth of the budget. Deviations in OpenDP come from the mean of squares around the middle of the bounds: its variance
has four times the sensitivity. The tree of OpenDP uses the whole budget for one noisy tree of counts, from which all
five numbers follow.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffprivlib
import numpy as np
import opendp.prelude as dp
from diffprivlib import BudgetAccountant, tools

dp.enable_features("contrib", "honest-but-curious", "idealized-numerics")
warnings.simplefilter("ignore")
QUARTILES = (0.25, 0.5, 0.75)
NUMBERS = 2 + len(QUARTILES)
REPLACED = 2  # in OpenDP's symmetric distance, one replaced row is one removed and one added
BRANCHES = 16  # of 2, 4, 6 and 16, the one with the smallest errors in the table
Numbers = list[float]
Draw = Callable[[], Numbers]


def diffprivlib_numbers(column: dict[str, Any], epsilon: float) -> Draw:
    """Returns a function that draws mean, deviation and quartiles."""
    x, bounds = np.array(column["values"]), tuple(column["bounds"])

    def draw() -> Numbers:
        budget = {"epsilon": epsilon / NUMBERS, "bounds": bounds, "accountant": BudgetAccountant(epsilon * 1.0001, 0)}
        quartiles = (float(tools.quantile(x, q, **budget)) for q in QUARTILES)
        return [float(tools.mean(x, **budget)), float(tools.std(x, **budget)), *quartiles]

    return draw


def opendp_numbers(column: dict[str, Any], epsilon: float, delta: float) -> Draw:
    """Returns a function that draws mean, deviation and quartiles, with pure epsilon or, for a positive delta, zCDP."""
    (low, high), x = column["bounds"], column["values"]
    middle = (low + high) / 2
    squares = [(value - middle) ** 2 for value in x]
    price = budget_of_each(epsilon, delta)
    if delta:
        measure, noise = dp.zero_concentrated_divergence(), dp.m.then_gaussian
    else:
        measure, noise = dp.max_divergence(), dp.m.then_laplace
    draw_mean = noised(mean_of(len(x), (low, high)), x, noise, price)
    draw_square = noised(mean_of(len(x), (0.0, (high - low) ** 2 / 4)), squares, noise, price)
    draw_quartiles = [selected(column, q, measure, price) for q in QUARTILES]

    def draw() -> Numbers:
        center = draw_mean()
        sd = math.sqrt(max(draw_square() - (center - middle) ** 2, 0.0))
        return [center, sd, *(draw_quartile() for draw_quartile in draw_quartiles)]

    return draw


def budget_of_each(epsilon: float, delta: float) -> float:
    """Returns a fifth of epsilon, or, for a positive delta, of the largest rho that OpenDP converts to epsilon."""
    if not delta:
        return epsilon / NUMBERS
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)

    def converted(rho: float) -> float:
        # five Gaussians of sensitivity 1, each with a fifth of rho
        each = [space >> dp.m.then_gaussian(math.sqrt(NUMBERS / (2 * rho))) for _ in range(NUMBERS)]
        curve = dp.c.make_zCDP_to_approxDP(dp.c.make_composition(each))
        return dp.c.make_fix_delta(curve, delta).map(1.0)[0]

    rho = dp.binary_search(lambda rho: converted(rho) <= epsilon, bounds=(1e-8, 10.0))
    return rho / NUMBERS


def rows(n: int, bounds: tuple[float, float]) -> tuple[Any, Any]:
    """Returns OpenDP's space of `n` numbers within bounds; `n` is public."""
    return dp.vector_domain(dp.atom_domain(bounds=bounds, nan=False), size=n), dp.symmetric_distance()


def mean_of(n: int, bounds: tuple[float, float]) -> Any:
    """Returns the mean of `n` numbers."""
    return rows(n, bounds) >> dp.t.then_mean()


def noised(transformation: Any, x: Numbers, noise: Any, price: float) -> Callable[[], float]:
    """Returns a function that draws a noised value; the value without noise is computed once."""
    scale = dp.binary_search_param(lambda scale: transformation >> noise(scale), d_in=REPLACED, d_out=price)
    measurement = (transformation.output_domain, transformation.output_metric) >> noise(scale)
    value = transformation(x)
    return lambda: measurement(value)


def selected(column: dict[str, Any], q: float, measure: Any, price: float) -> Callable[[], float]:
    """Returns a function that draws a quantile from the candidates, as `make_private_quantile` does."""
    candidates = column["candidates"]
    scores = dp.t.make_quantile_score_candidates(*rows(len(column["values"]), tuple(column["bounds"])), candidates, q)

    def choice(scale: float) -> Any:
        return dp.m.make_noisy_max(scores.output_domain, scores.output_metric, measure, scale, negate=True)

    distance = scores.map(REPLACED)
    scale = dp.binary_search(lambda scale: choice(scale).map(distance) <= price, bounds=(1e-3, 1e9))
    measurement, exact = choice(scale), scores(column["values"])
    return lambda: candidates[measurement(exact)]


def opendp_tree(column: dict[str, Any], epsilon: float) -> Draw:
    """Returns a function that draws a tree of counts with noise, and five numbers that follow from it."""
    edges = np.array(column["edges"])
    bins, middles = len(edges) - 1, (edges[:-1] + edges[1:]) / 2
    positions = np.clip(np.searchsorted(edges, column["values"]) - 1, 0, bins - 1).tolist()
    space = dp.vector_domain(dp.atom_domain(T=int), size=len(positions)), dp.symmetric_distance()
    counts = space >> dp.t.then_count_by_categories(categories=list(range(bins - 1)), null_category=True)
    tree = counts >> dp.t.then_b_ary_tree(leaf_count=bins, branching_factor=BRANCHES)
    scale = dp.binary_search_param(lambda scale: tree >> dp.m.then_laplace(scale), d_in=REPLACED, d_out=epsilon)
    measurement = (tree.output_domain, tree.output_metric) >> dp.m.then_laplace(scale)
    exact, consistent = tree(positions), dp.t.make_consistent_b_ary_tree(BRANCHES)
    quantiles = dp.t.make_quantiles_from_counts(edges.tolist(), alphas=list(QUARTILES))

    def draw() -> Numbers:
        leaves = np.array(consistent(measurement(exact))[-bins:])
        shares = leaves / len(positions)
        center = float(shares @ middles)
        variance = max(float(shares @ (middles - center) ** 2), 0.0)
        return [center, math.sqrt(variance), *quantiles(np.clip(leaves, 0, None).tolist())]

    return draw


def contenders(column: dict[str, Any], epsilon: float, delta: float) -> Iterator[tuple[str, Draw]]:
    """Yields the name and a function that draws five numbers."""
    yield "OpenDP", opendp_numbers(column, epsilon, 0.0)
    yield "OpenDP, zCDP", opendp_numbers(column, epsilon, delta)
    yield "OpenDP, tree", opendp_tree(column, epsilon)
    yield "diffprivlib", diffprivlib_numbers(column, epsilon)


def alone(column: dict[str, Any], epsilon: float) -> Iterator[tuple[str, list[float]]]:
    """Yields means that have the whole budget."""
    x, bounds = column["values"], tuple(column["bounds"])
    mean = noised(mean_of(len(x), bounds), x, dp.m.then_laplace, epsilon)
    yield "OpenDP", [mean() for _ in range(column["times"])]
    draws = (tools.mean(np.array(x), epsilon, bounds, accountant=BudgetAccountant()) for _ in range(column["times"]))
    yield "diffprivlib", [float(number) for number in draws]


def main() -> None:
    """Prints the draws as JSON: `[column][epsilon][library]`, for tables of five numbers and for lone means."""
    task = json.loads(Path(sys.argv[1]).read_text())
    tables, means = {}, {}
    for name, column in task["columns"].items():
        column["times"] = task["times"]
        tables[name] = {
            str(epsilon): {
                library: [draw() for _ in range(task["times"])]
                for library, draw in contenders(column, epsilon, task["delta"])
            }
            for epsilon in task["epsilons"]
        }
        means[name] = {str(epsilon): dict(alone(column, epsilon)) for epsilon in task["epsilons"]}
    versions = {"OpenDP": dp.__version__, "diffprivlib": diffprivlib.__version__}
    print(json.dumps({"versions": versions, "tables": tables, "means": means}))


if __name__ == "__main__":
    main()
