"""Fit of the step-time model: the non-negative coefficients that explain the observed steps best.

The fit minimises the absolute relative error: a pause of the machine counts by its error and not by its square, and a
step of 1 ms counts as much as one of 100 ms. The method is iteratively reweighted least squares: least squares are
repeated with weights of one over the last error. Coefficients that the observations cannot tell apart (requests from
tokens, while all requests decode) keep their previous values, by a weak ridge penalty towards these; without previous
values the cost is split evenly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple
from itertools import combinations

from policies.step_time.model import StepTimeModel
from policies.step_time.observation import Observation

ERROR_RATIO_MIN = 0.01  # smaller errors do not raise the weight further: they are the clock's
SPRING_OBSERVATIONS = 0.1  # weight of the previous values, in observations, for every coefficient
SPRING_OBSERVATIONS_UNKNOWN = 0.01  # without previous values: only to make the solution unique
COEFFICIENTS = range(4)

Equation = tuple[float, float, float, float]  # its scalar product with the coefficients should be 1


def equation(observation: Observation) -> Equation:
    """The observation divided by its seconds, which makes errors relative; requires `is_possible`."""
    over_s = 1.0 / observation.seconds
    return (
        observation.steps * over_s,
        observation.new_tokens * over_s,
        observation.context_token_steps * over_s,
        observation.request_steps * over_s,
    )


ROUNDS_FROM_NOTHING = 20


def fit_all(observations: Iterable[Observation]) -> StepTimeModel | None:
    """Fit a complete set of observations without a previous model; None where they determine no coefficient. Impossible
    observations are ignored.
    """
    equations = [equation(each) for each in observations if each.is_possible]
    return fit(equations, None, believed=None, rounds=ROUNDS_FROM_NOTHING)


def fit(
    equations: Sequence[Equation], held_to: StepTimeModel | None, *, believed: StepTimeModel | None, rounds: int
) -> StepTimeModel | None:
    """Fit the equations; None where they determine no coefficient and `held_to` is None. `held_to` gives the
    coefficients that the equations do not determine; None: no previous model. Each of the `rounds` solves one weighted
    least squares problem. The first takes its weights from the errors of `believed`; None: equal weights.
    """
    for _ in range(rounds):
        believed = _least_squares(equations, _weights(equations, believed), held_to)
    return believed


def _weights(equations: Sequence[Equation], model: StepTimeModel | None) -> list[float]:
    if model is None:
        return [1.0] * len(equations)
    a, b, c, d = astuple(model)
    return [1.0 / max(abs(1.0 - a * s - b * n - c * x - d * r), ERROR_RATIO_MIN) for s, n, x, r in equations]


def _least_squares(
    equations: Sequence[Equation], weights: Sequence[float], held_to: StepTimeModel | None
) -> StepTimeModel | None:
    """Solve the normal equations in units in which every column has a mean square of 1: the penalty is then as strong
    for a coefficient of microseconds as for one of nanoseconds.
    """
    matrix, right = _normal(equations, weights)
    total = sum(weights)
    seen = [i for i in COEFFICIENTS if matrix[i][i] > 0.0]
    scale = [(matrix[i][i] / total) ** 0.5 for i in seen]
    rest = [0.0] * len(COEFFICIENTS) if held_to is None else list(astuple(held_to))
    strength = SPRING_OBSERVATIONS_UNKNOWN if held_to is None else SPRING_OBSERVATIONS
    spring = strength * total / max(len(equations), 1)
    columns = range(len(seen))
    scaled = [
        [matrix[seen[i]][seen[j]] / (scale[i] * scale[j]) + (spring if i == j else 0.0) for j in columns]
        for i in columns
    ]
    pulled = [right[seen[i]] / scale[i] + spring * rest[seen[i]] * scale[i] for i in columns]
    for i, value in enumerate(not_negative(scaled, pulled)):
        rest[seen[i]] = value / scale[i]
    return StepTimeModel(*rest) if any(rest) else None


def _normal(equations: Sequence[Equation], weights: Sequence[float]) -> tuple[list[list[float]], list[float]]:
    """The normal matrix and its right side: weighted sums of products of columns, and of columns. The right side of
    each equation is 1.
    """
    columns = list(zip(*equations, strict=True)) or [()] * len(COEFFICIENTS)
    weighted = [[w * x for w, x in zip(weights, column, strict=True)] for column in columns]
    matrix = [[sum(map(float.__mul__, row, column)) for column in columns] for row in weighted]
    return matrix, [sum(row) for row in weighted]


def not_negative(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Minimise x'Mx / 2 - r'x over x >= 0, for a positive definite M of at most 4 rows.

    The minimum solves the unconstrained problem in the variables that are not zero in it. Four variables have only
    sixteen subsets, so all are tried; nearly always the first, all four, is the solution.
    """
    size = len(right)
    best, best_gain = [0.0] * size, 0.0
    for count in range(size, 0, -1):
        for chosen in combinations(range(size), count):
            values = _solve([[matrix[i][j] for j in chosen] for i in chosen], [right[i] for i in chosen])
            if min(values) < 0.0:
                continue
            gain = sum(right[i] * value for i, value in zip(chosen, values, strict=True))  # twice the decrease
            if gain > best_gain:
                best, best_gain = [0.0] * size, gain
                for i, value in zip(chosen, values, strict=True):
                    best[i] = value
        if count == size and best_gain > 0.0:
            return best
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination without pivoting: the matrix is positive definite. Changes its arguments."""
    size = len(right)
    for k in range(size):
        for i in range(k + 1, size):
            factor = matrix[i][k] / matrix[k][k]
            for j in range(k, size):
                matrix[i][j] -= factor * matrix[k][j]
            right[i] -= factor * right[k]
    solution = [0.0] * size
    for i in reversed(range(size)):
        known = sum(matrix[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (right[i] - known) / matrix[i][i]
    return solution
