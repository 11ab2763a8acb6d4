"""The application secret, and sealing with it. Bytes go in and come out; where sealed bytes are kept is not known here.

The secret is, in this order: `STEAD_SECRET` in the environment, the file that `secret_file` in config.toml names, or `secret.key`
in the data folder (0600), made once. Keys are sealed with AES-256-GCM under a key derived from it (HKDF-SHA256). What is sealed
is bound to its owner, its field and the secret's own fingerprint, so a sealed value that was moved to another row does not open.

A secret that is missing although something was sealed with it, is damaged, or is another one is said so; none is made in its place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stead.core.errors import SteadError
from stead.core.ids import secret_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VARIABLE = "STEAD_SECRET"
FILE_NAME = "secret.key"
_BYTES = 32
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed value. `version` is the fingerprint of the application secret that opens it."""

    version: str
    nonce: bytes
    sealed: bytes


class Secrets:
    """The application secret of one data folder; read when first needed and kept in memory."""

    def __init__(self, data_dir: Path, *, environ: Mapping[str, str] | None = None, secret_file: str | Path | None = None) -> None:
        self._data_dir = data_dir
        self._environ = os.environ if environ is None else environ
        self._secret_file = secret_file
        self._master: bytes | None = None

    @property
    def source(self) -> str:
        """Where the secret comes from, for people: the variable's name or the path of the file."""
        if self._environ.get(VARIABLE):
            return VARIABLE
        return str(self._secret_file or self._data_dir / FILE_NAME)

    def master(self, *, create: bool = False) -> bytes:
        """The secret; see `master_key`."""
        if self._master is None:
            self._master = master_key(self._data_dir, environ=self._environ, secret_file=self._secret_file, create=create)
        return self._master

    def version(self) -> str:
        """The fingerprint of the secret: tells two secrets apart and gives nothing of them away."""
        return _derive(self.master(), b"stead fingerprint 1", 8).hex()

    def seal(self, owner: str, field: str, value: bytes, *, create: bool = False) -> Sealed:
        """Seal `value` for this owner and field. `create`: a `secret.key` may be made, because nothing is sealed yet."""
        master = self.master(create=create)
        version, nonce = self.version(), secret_bytes(_NONCE_BYTES)
        return Sealed(version, nonce, _cipher(master).encrypt(nonce, value, _bound_to(owner, field, version)))

    def unseal(self, owner: str, field: str, sealed: Sealed) -> bytes:
        """The value that was sealed for this owner and field.

        Raises `no_key` when another secret sealed it or it was tampered with, `store_damaged` when the secret cannot be read.
        """
        from cryptography.exceptions import InvalidTag

        version = self.version()
        if sealed.version != version:
            raise SteadError(
                "no_key",
                f"The stored {field} of {owner} was sealed with another application secret than the one in {self.source}.",
                hint=f"Put the former secret back, or give the {field} again.",
                details={"owner": owner, "field": field, "sealed_with": sealed.version, "secret": version},
            )
        try:
            return _cipher(self.master()).decrypt(sealed.nonce, sealed.sealed, _bound_to(owner, field, version))
        except InvalidTag:
            raise SteadError("no_key", f"The stored {field} of {owner} was changed or belongs elsewhere; give it again.") from None

    def values(self) -> list[str]:
        """The secret itself as it may turn up in an environment or a file, for masking; empty when there is none."""
        found = [self._environ.get(VARIABLE, "")]
        for path in (self._secret_file or self._data_dir / FILE_NAME, self._data_dir / FILE_NAME):
            try:
                found.append(_read(Path(path)).strip(b"\0 \t\r\n").decode())
            except (SteadError, UnicodeDecodeError):
                continue
        return [value for value in dict.fromkeys(found) if value]


def master_key(data_dir: Path, *, environ: Mapping[str, str], secret_file: str | Path | None = None, create: bool = False) -> bytes:
    """The application secret. With `create`, a missing `secret.key` is made; several processes at once get the same one.

    Raises `store_damaged` for a file that is missing, empty or no secret; it is never replaced.
    """
    if given := environ.get(VARIABLE):
        return given.encode("utf-8", "surrogateescape")
    if secret_file:
        return _configured(Path(secret_file).expanduser())
    path = data_dir / FILE_NAME
    if not os.path.lexists(path):
        if not create:
            raise SteadError(
                "store_damaged",
                f"{path} is missing, and stored keys were sealed with it.",
                hint="Put it back from a backup; or remove the providers and give their keys again.",
                details={"path": str(path)},
            )
        _make(path)
    return _own(path)


def _configured(path: Path) -> bytes:
    content = _read(path).strip(b"\r\n \t")
    if not content:
        raise SteadError("store_damaged", f"The secret_file {path} is empty.", details={"path": str(path)})
    return content


def _own(path: Path) -> bytes:
    from base64 import urlsafe_b64decode

    content = _read(path)
    try:
        secret = urlsafe_b64decode(content.strip(b"\0\r\n \t"))  # a power cut may leave NUL bytes behind the text
    except ValueError:
        secret = b""
    if len(secret) != _BYTES:
        raise SteadError(
            "store_damaged",
            f"{path} is damaged ({len(content):,} bytes): it is not a secret that stead made.",
            hint="Put it back from a backup. Only if no stored key is to be read again: remove the file, and a new one is made.",
            details={"path": str(path), "bytes": len(content)},
        )
    return secret


def _read(path: Path) -> bytes:
    from stead.store.safefile import read_bytes

    try:
        return read_bytes(path, 1 << 16)
    except SteadError as error:
        raise SteadError(
            "store_damaged", f"The application secret cannot be read: {error.message}", details=error.details
        ) from None


def _make(path: Path) -> None:
    """Make `path` with a fresh secret, whole or not at all; who comes second leaves the first one's in place."""
    from base64 import urlsafe_b64encode

    from stead.store.safefile import create_private, private_folder

    private_folder(path.parent)
    create_private(path, urlsafe_b64encode(secret_bytes(_BYTES)) + b"\n")


def _bound_to(owner: str, field: str, version: str) -> bytes:
    assert ":" not in field, "the field's end would be anybody's guess"
    return f"{owner}:{field}:{version}".encode()


def _cipher(master: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(_derive(master, b"stead sealing 1", 32))


def _derive(master: bytes, purpose: bytes, length: int) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=length, salt=None, info=purpose).derive(master)
