"""Configurations in the pages are valid: a reader types them as they stand."""

import re

import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli import app
from tests.docs.words import PAGES, ROOT

BLOCK = re.compile(r"^```yaml\n(# fairlead\.yaml\n.*?)^```$", re.MULTILINE | re.DOTALL)
CONFIGURATIONS = [
    pytest.param(text, id=f"{path.relative_to(ROOT)}:{number}")
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    for number, text in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")), 1)
]


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_a_configuration_of_a_page_is_valid(text, tmp_path):
    file = tmp_path / "fairlead.yaml"
    file.write_text(text)
    for tenant in yaml.safe_load(text).get("tenants", {}):
        CliRunner().invoke(app, ["keys", "new", tenant, "--config", str(file)])
    checked = CliRunner().invoke(app, ["check-config", str(file)])
    assert checked.exit_code == 0, checked.output
