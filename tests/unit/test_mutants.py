"""Mutants of source files take out what is there, and name tests that are there."""

import pytest

from tests.calm.table import ROOT
from tests.mutants import calm, cluster, group_admins


@pytest.mark.parametrize(
    "mutant", [*calm.MUTANTS, *group_admins.MUTANTS, *cluster.MUTANTS], ids=lambda mutant: mutant.mechanism
)
def test_every_mutant_takes_out_what_is_there(mutant):
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    assert mutant.applied(source) != source
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(encoding="utf-8")
