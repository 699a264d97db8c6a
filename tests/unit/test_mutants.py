"""Mutants of source files take out what is there, and name tests that are there."""

from tests.calm.table import ROOT
from tests.mutants import calm, cluster, continuation, group_admins


def test_every_mutant_takes_out_what_is_there():
    wrong = []
    for mutant in (*calm.MUTANTS, *group_admins.MUTANTS, *cluster.MUTANTS, *continuation.MUTANTS):
        source = (ROOT / mutant.file).read_text(encoding="utf-8")
        if source.count(mutant.before) != 1 or mutant.applied(source) == source:
            wrong.append(f"{mutant.mechanism}: {mutant.file} has no such text, or several times")
        for test in mutant.tests:
            file, _, name = test.partition("::")
            if f"def {name.partition('[')[0]}" not in (ROOT / file).read_text(encoding="utf-8"):
                wrong.append(f"{mutant.mechanism}: there is no test {test}")
    assert wrong == []
