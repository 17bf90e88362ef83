from __future__ import annotations

import hashlib
import hmac
import multiprocessing
import os
import stat
from pathlib import Path

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from proxy.config import Auth
from proxy.tenants import KEY_NAME, AuthError, KeyFileError, Tenant, Tenants, hmac_key, mac, parse_key_file

KEY = b"k" * 32


def headers(**given: str) -> CIMultiDictProxy[str]:
    return CIMultiDictProxy(CIMultiDict({name.replace("_", "-"): value for name, value in given.items()}))


def key_file(path: Path, text: str) -> Auth:
    (path / "keys").write_text(text, "utf-8")
    return Auth(mode="keys", key_file=path / "keys")


def test_mode_none_has_one_tenant_whatever_is_sent() -> None:
    tenants = Tenants(Auth(), KEY)
    one, two = tenants.identify(headers()), tenants.identify(headers(Authorization="Bearer x"))
    assert one == two
    assert one.credential is None


def test_passthrough_tells_credentials_apart_and_passes_them_on() -> None:
    tenants = Tenants(Auth(mode="passthrough"), KEY)
    a = tenants.identify(headers(Authorization="Bearer key-a"))
    b = tenants.identify(headers(Authorization="Bearer key-b"))
    assert a.credential == "Bearer key-a"
    assert len({a.id_hash, b.id_hash, a.salt, b.salt}) == 4
    assert tenants.identify(headers(authorization="bearer  key-a")).id_hash == a.id_hash
    by_header = tenants.identify(headers(X_Api_Key="key-a"))
    assert (by_header.id_hash, by_header.credential) == (a.id_hash, "Bearer key-a")
    assert tenants.identify(headers(api_key="key-a")).id_hash == a.id_hash
    assert tenants.identify(headers(Authorization="Basic key-a")).id_hash != a.id_hash


def test_passthrough_without_a_credential_is_anonymous() -> None:
    tenants = Tenants(Auth(mode="passthrough"), KEY)
    nobody = tenants.identify(headers())
    assert nobody.credential is None
    assert nobody == tenants.identify(headers(Authorization="Bearer "))
    assert nobody.id_hash != tenants.identify(headers(Authorization="anonymous")).id_hash


def test_keys_mode_knows_plain_and_hashed_keys(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"bob-secret-key").hexdigest()
    auth = key_file(tmp_path, f"# people\n\nalice: alice-key-1\nalice:alice-key-2\n  bob:sha256:{digest.upper()}  \n")
    tenants = Tenants(auth, KEY)
    alice = tenants.identify(headers(Authorization="Bearer alice-key-1"))
    assert (alice.name, alice.credential) == ("alice", None)
    assert tenants.identify(headers(X_Api_Key="alice-key-2")) == alice, "a name is a tenant, not a key"
    bob = tenants.identify(headers(Authorization="Bearer bob-secret-key"))
    assert bob.name == "bob"
    assert bob.id_hash != alice.id_hash
    assert bob.salt != alice.salt


@pytest.mark.parametrize(
    "value", ["Bearer wrong-key-1", "alice", "Bearer alice-key", "Bearer alice-key-11", "Bearer \udcff"]
)
def test_keys_mode_refuses_what_it_does_not_know(tmp_path: Path, value: str) -> None:
    tenants = Tenants(key_file(tmp_path, "alice:alice-key-1"), KEY)
    with pytest.raises(AuthError) as caught:
        tenants.identify(headers(Authorization=value))
    assert value not in str(caught.value)
    with pytest.raises(AuthError, match="no API key was given"):
        tenants.identify(headers())


def test_the_digest_in_the_file_is_no_key(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"bob-secret-key").hexdigest()
    tenants = Tenants(key_file(tmp_path, f"bob:sha256:{digest}"), KEY)
    for attempt in (digest, f"sha256:{digest}"):
        with pytest.raises(AuthError):
            tenants.identify(headers(Authorization=f"Bearer {attempt}"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no key"),
        ("# only a comment", "holds no key"),
        ("alice", "line 1 is not name:key"),
        ("\nalice:", "line 2 is not name:key"),
        (":CANARY-KEY", "line 1 is not name:key"),
        ("alice:CANARY", "line 1: the key is shorter than 8 characters"),
        ("alice:sha256:CANARY", "line 1: sha256: is not followed by 64 hexadecimal digits"),
        ("alice:CANARY-KEY\nbob:CANARY-KEY", "line 2: this key already belongs to another name"),
    ],
)
def test_a_wrong_key_file_is_named_by_line_and_never_quoted(tmp_path: Path, text: str, problem: str) -> None:
    auth = key_file(tmp_path, text)
    assert auth.key_file is not None
    with pytest.raises(KeyFileError) as caught:
        parse_key_file(auth.key_file)
    assert str(caught.value) == problem
    assert "CANARY" not in str(caught.value)


def test_key_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="no such file"):
        parse_key_file(tmp_path / "absent")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(KeyFileError, match="not UTF-8"):
        parse_key_file(tmp_path / "binary")


def test_reload_reads_the_key_file_again_and_keeps_identities(tmp_path: Path) -> None:
    auth = key_file(tmp_path, "alice:alice-key-1")
    before = Tenants(auth, KEY)
    alice = before.identify(headers(Authorization="alice-key-1"))
    key_file(tmp_path, "alice:alice-key-9")
    after = before.reloaded(auth)
    assert after.identify(headers(Authorization="alice-key-9")) == alice
    with pytest.raises(AuthError):
        after.identify(headers(Authorization="alice-key-1"))
    assert before.identify(headers(Authorization="alice-key-1")) == alice, "requests under way are not touched"


def test_derived_values_have_domains_and_depend_on_the_key() -> None:
    tenants, other = Tenants(Auth(), KEY), Tenants(Auth(), b"o" * 32)
    tenant = tenants.identify(headers())
    assert tenant.id_hash not in tenant.salt
    assert other.identify(headers()) != tenant
    assert len(tenant.id_hash) == 16
    assert len(tenant.salt) == 32
    mixed = tenants.mixed_salt(tenant, "AAAA")
    assert len({mixed, tenants.mixed_salt(tenant, "AAAB"), tenant.salt}) == 3
    elsewhere = Tenant("x", "another salt")
    assert tenants.mixed_salt(elsewhere, "AAAA") != mixed
    assert tenants.mixed_salt(tenant, "\ud800") != mixed, "what JSON may hold does not raise"


def test_mac_is_length_prefixed_hmac_sha256() -> None:
    message = (1).to_bytes(8, "big") + b"p" + (2).to_bytes(8, "big") + b"ab"
    assert mac(KEY, "p", b"ab") == hmac.new(KEY, message, hashlib.sha256).digest()
    assert mac(KEY, "p", b"ab", b"c") != mac(KEY, "p", b"a", b"bc")
    assert mac(KEY, "pa", b"b") != mac(KEY, "p", b"ab")


def test_credential_is_not_in_the_representation() -> None:
    tenant = Tenants(Auth(mode="passthrough"), KEY).identify(headers(Authorization="Bearer CANARY"))
    assert "CANARY" not in repr(tenant)


def test_configured_key_goes_before_a_generated_one(tmp_path: Path) -> None:
    auth = Auth(hmac_key="x" * 20, state_dir=tmp_path / "state")
    assert hmac_key(auth) == b"x" * 20
    (tmp_path / "file").write_bytes(b"y" * 20 + b"\n")
    assert hmac_key(Auth(hmac_key_file=tmp_path / "file", state_dir=tmp_path / "state")) == b"y" * 20
    assert not (tmp_path / "state").exists()


def test_generated_key_persists_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    auth = Auth(state_dir=tmp_path / "a" / "state")
    old = os.umask(0)
    try:
        key = hmac_key(auth)
    finally:
        os.umask(old)
    assert len(key) == 32
    assert hmac_key(auth) == key
    path = auth.state_dir / KEY_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(auth.state_dir.stat().st_mode) == 0o700
    assert os.listdir(auth.state_dir) == [KEY_NAME], "nothing is left beside it"
    assert hmac_key(Auth(state_dir=tmp_path / "b")) != key


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64, b"g" * 64])
def test_a_damaged_key_is_not_used(tmp_path: Path, content: bytes) -> None:
    (tmp_path / KEY_NAME).write_bytes(content)
    with pytest.raises(KeyFileError, match="remove it to get a new one"):
        hmac_key(Auth(state_dir=tmp_path))


def _generate(folder: str, barrier: object, results: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    results.put(hmac_key(Auth(state_dir=Path(folder))))  # type: ignore[attr-defined]


def test_processes_that_start_at_once_agree_on_the_key(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        folder = tmp_path / str(attempt)
        barrier, results = context.Barrier(8), context.Queue()
        processes = [context.Process(target=_generate, args=(str(folder), barrier, results)) for _ in range(8)]
        for process in processes:
            process.start()
        keys = {results.get(timeout=30) for _ in processes}
        for process in processes:
            process.join(30)
        assert len(keys) == 1
        assert os.listdir(folder) == [KEY_NAME]
