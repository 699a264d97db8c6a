"""The keys file survives crashes and other writers, and holds no keys."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gateway.config.key_file import KEY_PREFIX, KeyHmac, add_key, key_hmac, make_secret, new_key, read_keys, revoke_key

SECRET = b"0123456789abcdef"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys"


def add(path, tenant="alice"):
    return add_key(path, tenant=tenant, secret=SECRET, created_at="2026-01-01T00:00:00+00:00")


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_key_has_256_random_bits_and_only_its_hmac_is_kept(path):
    key = add(path)
    assert key.startswith(KEY_PREFIX)
    assert len(key) == len(KEY_PREFIX) + 43
    assert key.removeprefix(KEY_PREFIX).isalnum(), "its end is not taken for an option of a command"
    assert add(path) != key
    assert key not in path.read_text()
    first, _ = read_keys(path)
    assert (first.tenant, first.hmac, first.last_four) == ("alice", key_hmac(SECRET, key).hex(), key[-4:])


def test_only_the_owner_can_read_keys_and_secret(path, tmp_path):
    add(path)
    make_secret(tmp_path / "secret")
    assert mode_of(path) == mode_of(tmp_path / "secret") == 0o600


def test_a_secret_is_never_overwritten(tmp_path):
    make_secret(tmp_path / "secret")
    before = (tmp_path / "secret").read_text()
    make_secret(tmp_path / "secret")
    assert (tmp_path / "secret").read_text() == before
    assert len(before.strip()) >= 32


def test_no_file_is_no_keys(path):
    assert read_keys(path) == []


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "{}",
        "[]",
        '{"tenant":"a","hmac":"00","last_four":"x","created_at":"x"}',
        f'{{"tenant":1,"hmac":"{"00" * 32}","last_four":"x","created_at":"x"}}',
        f'{{"tenant":"a","hmac":"{"zz" * 32}","last_four":"x","created_at":"x"}}',
        f'{{"tenant":"a","hmac":"{"00" * 32}","last_four":"x","created_at":"x","key":"x"}}',
        "\x80",
    ],
)
def test_a_damaged_line_is_named_and_not_skipped(path, line):
    add(path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match="no valid key in line 2"):
        read_keys(path)


def test_a_key_is_revoked_by_the_start_of_its_hmac_or_by_its_end(path):
    keys = [add(path) for _ in range(3)]
    assert revoke_key(path, keys[1][-4:])[0].last_four == keys[1][-4:]
    assert revoke_key(path, key_hmac(SECRET, keys[0]).hex()[:16])
    assert [record.last_four for record in read_keys(path)] == [keys[2][-4:]]


def test_nothing_is_revoked_where_it_is_not_clear_which(path):
    add(path)
    add(path)
    assert len(revoke_key(path, "")) == 2
    assert revoke_key(path, "none") == []
    assert len(read_keys(path)) == 2


def test_writers_at_once_do_not_lose_each_others_keys(path):
    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(lambda _: add(path), range(24)))
    assert {record.hmac for record in read_keys(path)} == {key_hmac(SECRET, key).hex() for key in keys}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    add(path)
    before = path.read_bytes()

    def no_replace(_self, _target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", no_replace)
    with pytest.raises(OSError, match="No space"):
        add(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("secret_bytes", [0, 1, 32, 64, 65, 200])
def test_the_hmac_that_is_begun_once_is_that_of_the_library(secret_bytes):
    secret = bytes(range(secret_bytes))
    begun = KeyHmac(secret)
    for key in ("", "sk-1234", new_key(), "\udcff", "x" * 512):
        assert begun.of(key) == key_hmac(secret, key)
