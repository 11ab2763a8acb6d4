from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stead.config.secrets import Sealed, Secrets, master_key
from stead.core.errors import SteadError


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_secret_is_made_once_and_privately(tmp_path: Path, umask: int) -> None:
    house = tmp_path / "new" / "house"
    first = master_key(house, environ={}, create=True)
    assert len(first) == 32 and first == master_key(house, environ={}) == master_key(house, environ={}, create=True)
    assert stat.S_IMODE((house / "secret.key").stat().st_mode) == 0o600
    assert stat.S_IMODE(house.stat().st_mode) == 0o700
    assert os.listdir(house) == ["secret.key"]
    assert first != master_key(tmp_path / "other", environ={}, create=True)


def test_reading_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(SteadError, match=r"secret\.key is missing") as failed:
        master_key(tmp_path, environ={})
    assert failed.value.code == "store_damaged" and os.listdir(tmp_path) == []
    assert Secrets(tmp_path, environ={}).values() == []


def test_the_order_of_the_sources(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from a file\r\n")
    master_key(tmp_path, environ={}, create=True)
    environ = {"STEAD_SECRET": "from the environment"}
    assert master_key(tmp_path, environ=environ, secret_file=tmp_path / "file") == b"from the environment"
    assert master_key(tmp_path, environ={"STEAD_SECRET": ""}, secret_file=tmp_path / "file") == b"from a file"
    assert Secrets(tmp_path, environ=environ).source == "STEAD_SECRET"
    assert Secrets(tmp_path, environ={}, secret_file=tmp_path / "file").source == str(tmp_path / "file")
    assert Secrets(tmp_path, environ={}).source == str(tmp_path / "secret.key")


@pytest.mark.parametrize("content", [b"", b"\n", None])
def test_a_configured_file_is_never_made_or_guessed(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(SteadError, match="file") as failed:
        master_key(tmp_path, environ={}, secret_file=tmp_path / "file", create=True)
    assert failed.value.code == "store_damaged"
    assert not (tmp_path / "secret.key").exists()


@pytest.mark.parametrize("content", [b"", b"\0" * 1206, b"x", b"A" * 44, b"A" * 42, b"\xff" * 44, b"my own secret\n"])
def test_b005_a_damaged_secret_is_reported_and_kept(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret.key"
    path.write_bytes(content)
    with pytest.raises(SteadError, match=r"secret\.key is damaged") as failed:
        master_key(tmp_path, environ={}, create=True)
    assert failed.value.code == "store_damaged" and failed.value.to_json()["details"]["bytes"] == len(content)
    assert path.read_bytes() == content


def test_b003_nul_bytes_behind_the_secret_do_not_matter(tmp_path: Path) -> None:
    secret = master_key(tmp_path, environ={}, create=True)
    with (tmp_path / "secret.key").open("ab") as file:
        file.write(b"\0" * 1206)
    assert master_key(tmp_path, environ={}) == secret


@pytest.mark.parametrize("kind", ["folder", "dangling", "pipe"])
def test_something_else_at_its_place(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "secret.key"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("nowhere")
    with pytest.raises(SteadError) as failed:
        master_key(tmp_path, environ={}, create=True)
    assert failed.value.code == "store_damaged" and os.path.lexists(path)
    assert Secrets(tmp_path, environ={}).values() == []  # and nobody waits for a writer


def test_processes_that_make_it_at_once_get_the_same(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from stead.config.secrets import master_key\n"
        "import stead.store.safefile, base64\n"
        "sys.stdin.read(1)\n"
        "print(master_key(Path(sys.argv[1]), environ={}, create=True).hex())\n"
    )
    house = tmp_path / "house"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    running = [subprocess.Popen([sys.executable, "-c", program, str(house)], text=True, **pipes) for _ in range(6)]  # type: ignore[call-overload]
    for process in running:
        process.stdin.write("g")
        process.stdin.flush()
    assert len({process.communicate()[0] for process in running}) == 1
    assert os.listdir(house) == ["secret.key"]


def test_sealing_and_opening(tmp_path: Path) -> None:
    vault = Secrets(tmp_path, environ={"STEAD_SECRET": "s"})
    sealed = vault.seal("providers:a", "key", b"value \0\xff")
    assert vault.unseal("providers:a", "key", sealed) == b"value \0\xff"
    assert b"value" not in sealed.sealed and sealed.version == vault.version() and len(sealed.nonce) == 12
    assert Secrets(tmp_path, environ={"STEAD_SECRET": "s"}).unseal("providers:a", "key", sealed) == b"value \0\xff"
    assert len(vault.version()) == 16


@pytest.mark.parametrize(("owner", "field"), [("providers:b", "key"), ("providers:a", "token"), ("mcp:a", "key")])
def test_what_was_sealed_for_another_place_does_not_open(tmp_path: Path, owner: str, field: str) -> None:
    vault = Secrets(tmp_path, environ={"STEAD_SECRET": "s"})
    sealed = vault.seal("providers:a", "key", b"value")
    with pytest.raises(SteadError) as failed:
        vault.unseal(owner, field, sealed)
    assert failed.value.code == "no_key"


def test_what_another_secret_sealed_is_said_so(tmp_path: Path) -> None:
    sealed = Secrets(tmp_path, environ={"STEAD_SECRET": "one"}).seal("providers:a", "key", b"value")
    other = Secrets(tmp_path, environ={"STEAD_SECRET": "two"})
    with pytest.raises(SteadError, match="another application secret"):
        other.unseal("providers:a", "key", sealed)
    with pytest.raises(SteadError, match="was changed or belongs elsewhere"):
        other.unseal("providers:a", "key", Sealed(other.version(), sealed.nonce, sealed.sealed))


def test_the_secret_itself_is_known_for_masking(tmp_path: Path) -> None:
    master_key(tmp_path, environ={}, create=True)
    (tmp_path / "file").write_text("from a file\n")
    own = (tmp_path / "secret.key").read_text().strip()
    assert Secrets(tmp_path, environ={}).values() == [own]
    found = Secrets(tmp_path, environ={"STEAD_SECRET": "env"}, secret_file=tmp_path / "file").values()
    assert found == ["env", "from a file", own]
