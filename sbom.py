"""Write sbom.cdx.json: what the image installs, as a CycloneDX bill of materials, from two lists alone.

    python sbom.py [FILE]

One component for each package of requirements.lock, with its version, its package URL and the hashes of the files that
pip may install for it (`pip install --require-hashes` takes no other), and one for each package of vendored.toml of
which the page has files. Nothing in it depends on the time or the machine, and a test compares both.
https://cyclonedx.org/docs/1.6/json/
"""

import base64
import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
VENDORED, SHIPPED = ROOT / "vendored.toml", "gateway/"
LOCK, PROJECT, SBOM = ROOT / "requirements.lock", ROOT / "pyproject.toml", ROOT / "sbom.cdx.json"
_PACKAGE = re.compile(r"^([\w.-]+)==(\S+)((?: \\\n +--hash=sha256:[0-9a-f]{64})+)", re.MULTILINE)


def bill_of_materials(lock: str, project: dict[str, Any], vendored: list[dict[str, Any]]) -> dict[str, Any]:
    """The bill of the packages in this lock, and of those whose files are vendored into what is installed."""
    components = [component(*package.groups()) for package in _PACKAGE.finditer(lock)]
    components += [
        vendored_component(each)
        for each in vendored
        if any(target.startswith(SHIPPED) for target in each["files"].values())
    ]
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


def vendored_component(package: dict[str, Any]) -> dict[str, Any]:
    """One package from npm, with the hash of its archive."""
    purl = f"pkg:npm/{package['name']}@{package['version']}"
    digest = base64.b64decode(package["integrity"].removeprefix("sha512-")).hex()
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package["name"],
        "version": package["version"],
        "purl": purl,
        "licenses": [{"license": {"id": package["licence"]}}],
        "hashes": [{"alg": "SHA-512", "content": digest}],
    }


def text() -> str:
    """The file's content."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    vendored = tomllib.loads(VENDORED.read_text(encoding="utf-8"))["package"]
    return json.dumps(bill_of_materials(LOCK.read_text(encoding="utf-8"), project, vendored), indent=1) + "\n"


if __name__ == "__main__":
    Path(*sys.argv[1:2] or (SBOM,)).write_text(text(), encoding="utf-8")
