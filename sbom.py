"""Write sbom.cdx.json: what the image installs, as a CycloneDX bill of materials, from the lock alone.

    python sbom.py [FILE]

One component for each package of requirements.lock, with its version, its package URL and the hashes of the files that
pip may install for it (`pip install --require-hashes` takes no other). Nothing in it depends on the time or the
machine, so the file changes with the lock alone, and a test compares both. https://cyclonedx.org/docs/1.6/json/
"""

import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
LOCK, PROJECT, SBOM = ROOT / "requirements.lock", ROOT / "pyproject.toml", ROOT / "sbom.cdx.json"
_PACKAGE = re.compile(r"^([\w.-]+)==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)", re.MULTILINE)


def bill_of_materials(lock: str, project: dict[str, Any]) -> dict[str, Any]:
    """The bill of the packages in this lock."""
    components = [component(*package.groups()) for package in _PACKAGE.finditer(lock)]
    purl = f"pkg:pypi/{project['name']}@{project['version']}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, lock)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": purl,
                "name": project["name"],
                "version": project["version"],
                "purl": purl,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": components,
        "dependencies": [
            {"ref": purl, "dependsOn": [each["bom-ref"] for each in components]},
            *({"ref": each["bom-ref"]} for each in components),
        ],
    }


def component(name: str, version: str, hashes: str) -> dict[str, Any]:
    """One package, with the hashes of its files."""
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": each} for each in re.findall(r"sha256:([0-9a-f]{64})", hashes)],
    }


def text() -> str:
    """The file's content."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    return json.dumps(bill_of_materials(LOCK.read_text(encoding="utf-8"), project), indent=1) + "\n"


if __name__ == "__main__":
    Path(*sys.argv[1:2] or (SBOM,)).write_text(text(), encoding="utf-8")
