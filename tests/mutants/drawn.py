"""What share of mutants that nobody chose do the tests of their area notice? Draws them, and tells.

    python -m tests.mutants.drawn [--seed 1] [--count 60] [--list]

A mutant is one operator, one constant or one early return changed, in a file of an area below; a seed draws the same
ones as long as these files stay as they are. Each mutant runs with the tests that `make test` runs of its area; one
that survives runs with all of them: 60 mutants take about half an hour. Some change nothing that can be noticed, so
the share is compared with that of another version of the tests, and no exit code depends on it.
"""

import argparse
import ast
from collections.abc import Iterator
from random import Random

from tests.calm.table import ROOT
from tests.mutants.sources import Mutant, run_all

UNIT, INTEGRATION = "tests/unit/gateway", "tests/integration"
AREAS = {  # a folder, and the tests of it that `make test` runs, from the quickest to the slowest
    "policies": (
        "tests/unit/policies",
        "tests/unit/simulate/test_exposure.py",
        "tests/conformance",
        "tests/simulation",
        "tests/properties",
    ),
    "gateway/cluster": (f"{UNIT}/cluster", f"{UNIT}/shared_order", "tests/simulation/test_cluster.py"),
    "gateway/continuation": (
        f"{UNIT}/continuation",
        "tests/unit/backends/meters",
        f"{INTEGRATION}/gateway/test_gateway_continuation.py",
    ),
    "gateway/budgets/money": (
        f"{UNIT}/test_price_lists.py",
        f"{UNIT}/test_usage_tables.py",
        f"{UNIT}/budgets/test_money_budgets.py",
        f"{INTEGRATION}/admin/test_admin_prices.py",
        f"{INTEGRATION}/admin/test_admin_usage_export.py",
        f"{INTEGRATION}/admin/test_admin_usage_sums.py",
    ),
}
SHORT = "not long"
HANGS_S = 1800.0  # all tests of an area; one that hangs is ended by the limit of pytest
OPERATORS: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip
LEAVES = (ast.Return, ast.Continue, ast.Raise)


def changes(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Expressions of a module, and what stands in their place in a mutant of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
            yield node, f"({left}) {OPERATORS[type(node.ops[0])]} ({right})"
        elif isinstance(node, ast.BoolOp):
            yield node, f" {OPERATORS[type(node.op)]} ".join(f"({ast.unparse(value)})" for value in node.values)
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            yield node, f"({ast.unparse(node.left)}) {OPERATORS[type(node.op)]} ({ast.unparse(node.right)})"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield node, str(not node.value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield node, repr(node.value + 1)
        elif isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], LEAVES):
            yield node.test, "False"


def candidates(file: str) -> Iterator[Mutant]:
    """All mutants of a file."""
    text = (ROOT / file).read_text(encoding="utf-8")
    lines = text.encode().splitlines(keepends=True)  # columns are counted in bytes
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    tests = next(tests for area, tests in AREAS.items() if file.startswith(f"{area}/"))
    for node, changed in changes(ast.parse(text)):
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before, rest = text.encode()[:begin].decode(), text.encode()[end:].decode()
        name = f"{file}:{node.lineno}: {ast.unparse(node)} -> {changed}"
        yield Mutant(name, file, text, f"{before}({changed}){rest}", tests, marks=SHORT)


def drawn(seed: int, count: int) -> list[Mutant]:
    """So many mutants, an equal number of each area."""
    chance = Random(seed)
    found: list[Mutant] = []
    for area in AREAS:
        files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / area).rglob("*.py"))
        found += chance.sample([mutant for file in files for mutant in candidates(file)], count // len(AREAS))
    chance.shuffle(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--list", action="store_true", help="print the mutants, and run none")
    asked = parser.parse_args()
    mutants = drawn(asked.seed, asked.count)
    if asked.list:
        print("\n".join(mutant.mechanism for mutant in mutants))
        return
    run_all(mutants, hangs_s=HANGS_S)


if __name__ == "__main__":
    main()
