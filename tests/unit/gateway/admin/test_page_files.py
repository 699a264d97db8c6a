"""The page's files: served to every caller, under a policy that lets a browser run nothing else; what was vendored is
as it was published.
"""

import gzip
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

import vendor_web
from gateway.admin.models.forms import MODULE, fields_module
from gateway.admin.page_files import PREFIX, STATIC, StaticFiles, content_security_policy
from gateway.admin.port import PROVIDERS

ROOT = Path(__file__).parents[4]
FILES = StaticFiles(made={MODULE: fields_module(), PROVIDERS: b""})
INDEX = (STATIC / "index.html").read_text(encoding="utf-8")
OURS = [path for path in STATIC.rglob("*") if path.suffix in (".js", ".html", ".css") and "vendor" not in path.parts]
IMPORTS = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*["']([^"']+)["']""")


def ask(path, method="GET", **headers):
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return FILES.find(make_mocked_request(method, path, headers=sent))


def directives(policy):
    return {name: values for name, *values in (each.split() for each in policy.split("; "))}


def test_the_policy_lets_run_only_the_pages_own_modules_and_its_import_map():
    policy = directives(ask("/").headers["Content-Security-Policy"])
    assert policy["default-src"] == ["'none'"]
    (own, import_map) = policy["script-src"]
    assert own == "'self'"
    assert re.fullmatch(r"'sha256-[A-Za-z0-9+/]{43}='", import_map)
    assert not any("unsafe" in value or "*" in value or ":" in value for values in policy.values() for value in values)
    assert policy["require-trusted-types-for"] == ["'script'"]
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == ["'none'"]


PARSE = """
import { readFileSync } from "node:fs";
import { SourceTextModule } from "node:vm";
const paths = process.argv.slice(1);
for (const path of paths) {
  try {
    new SourceTextModule(readFileSync(path, "utf8"), { identifier: path });
  } catch (error) {
    console.error(error.stack);
    process.exitCode = 1;
  }
}
console.log(paths.length);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_every_module_is_one():
    """What a browser would refuse: a syntax error, a name that is declared twice."""
    modules = [str(path) for path in OURS if path.suffix == ".js"]
    command = ["node", "--experimental-vm-modules", "--no-warnings", "--input-type=module", "-e", PARSE, *modules]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, f"{len(modules)}\n"), checked.stderr


def test_another_import_map_has_another_hash():
    assert content_security_policy(INDEX) != content_security_policy(INDEX.replace("preact", "other"))


@pytest.mark.parametrize("path", sorted(FILES))
def test_a_file_is_asked_for_again_by_its_etag_and_comes_compressed_where_that_is_accepted(path):
    plain, packed = ask(path), ask(path, Accept_Encoding="br, gzip;q=0.8")
    assert plain.status == packed.status == 200
    assert plain.headers["ETag"] == packed.headers["ETag"]
    assert "no-cache" in plain.headers["Cache-Control"]
    assert plain.headers["X-Content-Type-Options"] == "nosniff"
    if packed.headers.get("Content-Encoding") == "gzip":
        assert gzip.decompress(packed.body) == plain.body
        assert len(packed.body) < len(plain.body)
    for given in (plain.headers["ETag"], f'"other", {plain.headers["ETag"]}', "*"):
        assert ask(path, If_None_Match=given).status == 304
    assert ask(path, If_None_Match='"other"').status == 200


@pytest.mark.parametrize("given", ["", "identity", "gzip;q=0", "gzip; q=0.0", "br"])
def test_a_file_comes_as_it_is_where_gzip_is_not_accepted(given):
    assert "Content-Encoding" not in ask("/web/app.js", Accept_Encoding=given).headers


@pytest.mark.parametrize(
    "path", ["/web/", "/web/../files.py", "/web/%2e%2e/files.py", "/web/nothing.js", "/web/vendor/LICENSE.htm", "//"]
)
def test_nothing_else_is_served(path):
    assert ask(path) is None


def test_only_reading_is_answered():
    assert ask("/", method="HEAD").status == 200
    assert ask("/", method="POST") is None


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_nothing_is_loaded_from_outside_and_nothing_becomes_markup(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+/", text) == []
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert "dangerouslySetInnerHTML" not in text


def test_every_import_is_a_file_that_is_served():
    names = json.loads(re.search(r'<script type="importmap">(.*?)</script>', INDEX, re.DOTALL)[1])["imports"]
    assert set(names.values()) <= set(FILES)
    for path in STATIC.rglob("*.*js"):
        for name in IMPORTS.findall(path.read_text(encoding="utf-8")) if "vendor" not in path.parts else ():
            target = names.get(name) or PREFIX + (path.parent / name).resolve().relative_to(STATIC).as_posix()
            assert target in set(FILES), f"{path.name}: {name}"
    for target in re.findall(r'(?:href|src)="([^"#]+)"', INDEX):
        assert target in set(FILES)


def test_vendored_files_are_what_was_published_and_have_their_licences():
    sums = dict(line.split("  ")[::-1] for line in vendor_web.SUMS.read_text().splitlines())
    named = {target for package in vendor_web.packages() for target in package["files"].values()}
    assert set(sums) == named
    for target, digest in sums.items():
        assert hashlib.sha256((ROOT / target).read_bytes()).hexdigest() == digest, target
    there = {path.relative_to(ROOT).as_posix() for path in (STATIC / "vendor").iterdir()}
    assert there == {target for target in named if target.startswith("gateway/")}
    for package in vendor_web.packages():
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", package["integrity"])
        assert any("LICENSE" in target for target in package["files"].values()), package["name"]
