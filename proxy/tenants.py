"""Whose request this is, and the two values derived from that: an id for logs and a salt for the engine's cache.

Invariants
1. A credential is never stored, logged or hashed without the key. `Tenant.name` is the operator's word from the key
   file, never part of a credential.
2. Everything derived is HMAC-SHA256 over length-prefixed parts, the first of which says what it is for; so an id in the
   log says nothing about a salt, and no two inputs share an encoding.
3. A credential is compared through its HMAC, so neither the comparison nor the look-up tells how near a guess was.
4. With mode ``passthrough`` a tenant is everything by which the upstream may know a client: requests that differ in any
   credential are never one tenant's, even where they share another one (a placeholder key beside the real one).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from multidict import MultiMapping

from proxy.config import Auth
from toktier.whole_file import whole

MIN_KEY_BYTES = 16
"""Shortest HMAC key that is accepted."""

KEY_NAME = "hmac.key"
"""The generated key's file in `Auth.state_dir`: 64 hexadecimal digits, mode 0600."""

_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_SHORTEST_CREDENTIAL = 8


class AuthError(Exception):
    """The request brings no credential, or an unknown one (the client's to fix). Its text quotes no credential."""


class KeyFileError(Exception):
    """The key file cannot be used (the operator's to fix). Its text names the line, never a key."""


@dataclass(frozen=True)
class Tenant:
    """Who sends a request. ``id_hash`` (16 hexadecimal digits) is what logs and the session store use."""

    id_hash: str
    salt: str
    name: str | None = None
    credential: str | None = field(default=None, repr=False)
    """With passthrough only: the Authorization value that goes upstream, made from whichever header the client used."""


def mac(key: bytes, purpose: str, *parts: bytes) -> bytes:
    """HMAC-SHA256 over the length-prefixed purpose and parts: 32 bytes."""
    digest = hmac.new(key, digestmod=hashlib.sha256)
    for part in (purpose.encode(), *parts):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def parse_key_file(path: Path) -> dict[bytes, str]:
    """SHA-256 of each key, and its tenant's name.

    A line is ``name:key`` or ``name:sha256:HEX`` (HEX is the SHA-256 of the key, so that the file holds no key itself).
    Blank lines and lines that start with ``#`` are skipped. One name may stand on several lines (key rotation).
    Raises `KeyFileError`.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise KeyFileError("not UTF-8 text") from None
    except OSError as error:
        raise KeyFileError((error.strerror or "cannot be read").lower()) from None
    keys: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, colon, key = line.partition(":")
        name, key = name.strip(), key.strip()
        if not colon or not name or not key:
            raise KeyFileError(f"line {number} is not name:key")
        if key.startswith("sha256:"):
            match = _DIGEST.fullmatch(key)
            if match is None:
                raise KeyFileError(f"line {number}: sha256: is not followed by 64 hexadecimal digits")
            digest = bytes.fromhex(match[1])
        elif len(key) < _SHORTEST_CREDENTIAL:
            raise KeyFileError(f"line {number}: the key is shorter than {_SHORTEST_CREDENTIAL} characters")
        else:
            digest = hashlib.sha256(key.encode()).digest()
        if keys.setdefault(digest, name) != name:
            raise KeyFileError(f"line {number}: this key already belongs to another name")
    if not keys:
        raise KeyFileError("holds no key")
    return keys


def hmac_key(auth: Auth) -> bytes:
    """The configured key, else the persisted one, else a new one that is persisted. Raises OSError or KeyFileError."""
    if auth.hmac_key is not None:
        return auth.hmac_key.get_secret_value().encode()
    if auth.hmac_key_file is not None:
        return auth.hmac_key_file.read_bytes().strip()
    auth.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = auth.state_dir / KEY_NAME
    with contextlib.suppress(FileNotFoundError):
        return _read_key(path)
    # Written whole under another name, then linked: a second process that starts at the same moment sees no key or a
    # whole one, and the link of only one of them succeeds.
    with contextlib.suppress(FileExistsError), whole(path, durable=True, put=os.link) as file:
        file.write(secrets.token_hex(32).encode() + b"\n")
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    text = path.read_text("ascii", errors="replace").strip()
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise KeyFileError(f"{path} is not a key that TokTier wrote; remove it to get a new one")
    return bytes.fromhex(text)


class Tenants:
    """Decides, for each request's headers, whose it is. Immutable; a reload makes a new one with the same key."""

    def __init__(self, auth: Auth, key: bytes | None = None) -> None:
        """Reads (and may create) the HMAC key unless ``key`` is given. Raises OSError or KeyFileError."""
        self._auth = auth
        self._key = hmac_key(auth) if key is None else key
        self._names: dict[bytes, str] = {}
        if auth.mode == "keys":
            if auth.key_file is None:
                raise KeyFileError("auth.key_file is not set")
            digests = parse_key_file(auth.key_file)
            self._names = {self._lookup(digest): name for digest, name in digests.items()}
        self._everybody = self._tenant(b"", None, None)
        """With mode ``none``."""

    def reloaded(self, auth: Auth) -> Tenants:
        """New settings or a changed key file, same HMAC key: known tenants keep their ids and salts."""
        return Tenants(auth, self._key)

    def identify(self, headers: MultiMapping[str]) -> Tenant:
        """The tenant of a request. ``headers`` must look names up in any case, as aiohttp's do.

        The credential is, in this order: ``Authorization`` (with or without Bearer), ``X-Api-Key``, ``api-key``.
        With mode ``passthrough`` a request without one is the anonymous tenant's: the upstream decides about it; one
        with several, or with cookies, is of a tenant of its own (invariant 4).
        Raises `AuthError` with mode ``keys``, for a missing or unknown one.
        """
        if self._auth.mode == "none":
            return self._everybody
        credentials, authorization = _credentials(headers)
        if self._auth.mode == "passthrough":
            return self._tenant(_identity(credentials, headers.getall("Cookie", [])), None, authorization)
        if not credentials:
            raise AuthError("no API key was given; send it as 'Authorization: Bearer KEY'")
        name = self._names.get(self._lookup(hashlib.sha256(_bytes(credentials[0])).digest()))
        if name is None:
            raise AuthError("the API key is not known here")
        return self._tenant(b"name:" + name.encode(), name, None)

    def mixed_salt(self, tenant: Tenant, client_salt: str) -> str:
        """A salt that keeps apart what the client wanted apart, inside its tenant. Lone surrogates are allowed."""
        return mac(self._key, "client-cache-salt", tenant.salt.encode(), _bytes(client_salt)).hex()[:32]

    def _lookup(self, digest: bytes) -> bytes:
        return mac(self._key, "credential", digest)

    def _tenant(self, identity: bytes, name: str | None, credential: str | None) -> Tenant:
        return Tenant(
            id_hash=mac(self._key, "tenant-id", identity).hex()[:16],
            salt=mac(self._key, "cache-salt", identity).hex()[:32],
            name=name,
            credential=credential,
        )


def _bytes(text: str) -> bytes:
    # Header bytes that are not UTF-8 arrive as surrogates, and a JSON string may hold one.
    return text.encode("utf-8", "surrogatepass")


def _credentials(headers: MultiMapping[str]) -> tuple[list[str], str | None]:
    """(the bare credentials without repeats, the Authorization value that carries the first upstream)."""
    found: dict[str, str] = {}
    for line in headers.getall("Authorization", []):
        authorization = line.strip()
        scheme, _, rest = authorization.partition(" ")
        found.setdefault(rest.strip() if scheme.lower() == "bearer" else authorization, authorization)
    for name in ("X-Api-Key", "api-key"):
        for line in headers.getall(name, []):
            found.setdefault(line.strip(), f"Bearer {line.strip()}")
    found.pop("", None)
    return list(found), next(iter(found.values()), None)


def _identity(credentials: list[str], cookies: list[str]) -> bytes:
    """What tells clients apart that the upstream tells apart. Length-prefixed where there is more than one part."""
    if not cookies and len(credentials) < 2:
        return b"credential:" + _bytes(credentials[0]) if credentials else b"anonymous"
    parts = [str(len(credentials)).encode(), *map(_bytes, credentials), *map(_bytes, cookies)]
    return b"credentials:" + b"".join(len(part).to_bytes(8, "big") + part for part in parts)
