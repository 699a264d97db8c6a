"""The coefficients that explain observed steps best, none of them negative.

Least absolute relative error: a pause of the machine then counts by how far it is off and not by its square, and a
step of 1 ms as much as one of 100 ms. It is reached by least squares, done again and again with weights of one over
the last error (iteratively reweighted least squares). What the observations do not tell apart (requests from tokens,
while everybody decodes) stays as it was before, by a weak spring on every coefficient; and where nothing was before,
it is split evenly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple
from itertools import combinations

from policies.step_time.model import StepTimeModel
from policies.step_time.observation import Observation

ERROR_RATIO_MIN = 0.01  # below it an error weighs no more: it is the clock's
SPRING_OBSERVATIONS = 0.1  # what is held to counts as so many observations, in every coefficient
SPRING_OBSERVATIONS_UNKNOWN = 0.01  # where nothing is known: only so that there is one solution
COEFFICIENTS = range(4)

Equation = tuple[float, float, float, float]  # times the coefficients, it should be 1


def equation(observation: Observation) -> Equation:
    """Divide by the time taken, which makes errors relative."""
    over_s = 1.0 / observation.seconds
    return (
        observation.steps * over_s,
        observation.new_tokens * over_s,
        observation.context_token_steps * over_s,
        observation.request_steps * over_s,
    )


ROUNDS_FROM_NOTHING = 20


def fit_all(observations: Iterable[Observation]) -> StepTimeModel | None:
    """Fit what was observed, when all of it is there and nothing is known before; None where it says nothing."""
    equations = [equation(each) for each in observations if each.is_possible]
    return fit(equations, None, believed=None, rounds=ROUNDS_FROM_NOTHING)


def fit(
    equations: Sequence[Equation], held_to: StepTimeModel | None, *, believed: StepTimeModel | None, rounds: int
) -> StepTimeModel | None:
    """Fit the equations. `held_to` is what stays where they say nothing, None: nothing is known.

    It is done in rounds of one pass each, the first with weights as of what is `believed`. None where the equations
    say nothing and nothing is known.
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
    """Solve the normal equations in units in which every column has a mean square of 1: the spring is then as strong
    for what is measured in microseconds as for what is measured in nanoseconds.
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
    """The weighted sums of products of columns, and of columns (the right side of every equation is 1)."""
    columns = list(zip(*equations, strict=True)) or [()] * len(COEFFICIENTS)
    weighted = [[w * x for w, x in zip(weights, column, strict=True)] for column in columns]
    matrix = [[sum(map(float.__mul__, row, column)) for column in columns] for row in weighted]
    return matrix, [sum(row) for row in weighted]


def not_negative(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Minimise x'Mx / 2 - r'x over x >= 0, for a positive definite M of at most 4 rows.

    The minimum is that of the unconstrained problem in those variables that are not zero in it. With four of them all
    sixteen choices can be looked at; nearly always the first, of all four, is the one.
    """
    size = len(right)
    best, best_gain = [0.0] * size, 0.0
    for count in range(size, 0, -1):
        for chosen in combinations(range(size), count):
            values = _solve([[matrix[i][j] for j in chosen] for i in chosen], [right[i] for i in chosen])
            if min(values) < 0.0:
                continue
            gain = sum(right[i] * value for i, value in zip(chosen, values, strict=True))  # twice what it lowers
            if gain > best_gain:
                best, best_gain = [0.0] * size, gain
                for i, value in zip(chosen, values, strict=True):
                    best[i] = value
        if count == size and best_gain > 0.0:
            return best
    return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gauss, without pivoting: the matrix is positive definite."""
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
