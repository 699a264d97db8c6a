"""The workflow that publishes a tag: what needs neither a registry nor a signature runs here, as it stands there."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8"))
[JOB] = WORKFLOW["jobs"].values()
STEPS = JOB["steps"]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
PLACE, DIGEST = "registry.example.com/acme", f"sha256:{'0a' * 32}"


def run(name, folder, **environment):
    """Run the step of this name in a folder with the chart and the project; what it passes to later steps."""
    [command] = [step["run"] for step in STEPS if step.get("name") == name]
    shutil.copytree(ROOT / "helm", folder / "helm", dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", folder)
    passed_on = folder / "passed-on"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command], cwd=folder, check=False, text=True,
        capture_output=True, env=os.environ | {"GITHUB_ENV": str(passed_on)} | environment,
    )  # fmt: skip
    said = passed_on.read_text() if passed_on.exists() else ""
    return done, dict(line.split("=", 1) for line in said.splitlines())


def compare(folder, tag, registry="registry.example.com"):
    known = {"GITHUB_REF_NAME": tag, "REGISTRY": registry, "GITHUB_REPOSITORY_OWNER": "Acme"}
    return run("Compare the tag with the versions of wheel and chart", folder, **known)


def test_the_tag_of_this_version_is_published_under_its_owner(tmp_path):
    done, passed_on = compare(tmp_path, f"v{VERSION}")
    assert done.returncode == 0, done.stderr
    assert passed_on == {"PLACE": PLACE, "VERSION": VERSION}


@pytest.mark.parametrize(("tag", "registry"), [("v9.9.9", "registry.example.com"), (f"v{VERSION}", "")])
def test_another_tag_or_a_registry_that_is_not_set_publishes_nothing(tag, registry, tmp_path):
    done, passed_on = compare(tmp_path, tag, registry)
    assert done.returncode != 0
    assert passed_on == {}


def test_the_packed_chart_names_the_published_image(tmp_path):
    """`helm package FOLDER --destination FOLDER` is done by the library that the tests of the chart use. It is loaded
    here, because its threads do not outlive a fork (tests/forked_workers.py).
    """
    import helm_python  # noqa: PLC0415

    helm = tmp_path / "helm.py"
    package = "import sys, helm_python\nhelm_python.package(sys.argv[2], destination=sys.argv[4])\n"
    helm.write_text(f"#!{sys.executable}\n{package}")
    helm.chmod(0o755)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "helm").symlink_to(helm)
    (tmp_path / "dist").mkdir()
    pack = "Pack the chart, with this image in its values"
    done, _ = run(pack, tmp_path, PLACE=PLACE, DIGEST=DIGEST, PATH=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    with helm_python.Chart.load(tmp_path / f"dist/fairlead-{VERSION}.tgz") as chart:
        assert f"{PLACE}/fairlead@{DIGEST}" in "".join(chart.render({}, name="fairlead", namespace="llm").values())


def test_every_action_is_pinned_by_its_commit_and_no_other_job_may_write():
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each) for each in used), used
    assert WORKFLOW["permissions"] == {}
