"""Where data goes and where it does not: connections of a run, and copies of a person's files."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stead.agent.gate import parse
from tests.agent.house import house, project, provide, use, write_script
from tests.agent.servers import KEY, answer, call, serving, text

ALL = [parse("*", "allow", "flag")]


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The address of every connection that this process opens, and every name that it looks up."""
    made: list[Any] = []
    for name in ("connect", "connect_ex", "sendto"):
        original = getattr(socket.socket, name)

        def noted(self: socket.socket, *args: Any, _original: Any = original) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6):
                made.append(args[-1] if isinstance(args[-1], tuple) else args[0])
            return _original(self, *args)

        monkeypatch.setattr(socket.socket, name, noted)
    looked_up = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *args: Any, **more: Any) -> Any:
        made.append((host, port))
        return looked_up(host, port, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield made


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
async def test_f400_a_run_connects_to_its_provider_and_to_nothing_else(kind: str, connections: list[Any], tmp_path: Path) -> None:
    folder = project(tmp_path)
    with serving(kind) as server, serving("openai") as other:
        async with house(tmp_path, environ={"PATH": os.environ["PATH"], "HTTP_PROXY": other.origin}) as at:
            model = await provide(at, server)
            await provide(at, other, "another")
            server.say(answer(call("bash", {"command": "true"})), answer(text("ok")))
            run = await at.prompt(None, "go", project=folder, model=model, rules=ALL)
            assert (await run.result())["outcome"] == "done"
        assert {(str(host), int(port)) for host, port in connections} == {("127.0.0.1", server.port)}
        assert other.asked == []


async def test_f400_a_script_opens_no_connection(connections: list[Any], tmp_path: Path) -> None:
    folder = project(tmp_path)
    model = write_script(folder, [{"tools": [use("read", path="calc.py"), use("bash", command="true")]}, {"text": "ok"}])
    async with house(tmp_path, environ={"PATH": os.environ["PATH"], "OPENAI_API_KEY": KEY}) as at:
        run = await at.prompt(None, "go", project=folder, model=model, rules=ALL)
        assert (await run.result())["outcome"] == "done"
    assert connections == []


async def test_a_run_closes_its_connections_when_it_ends(tmp_path: Path) -> None:
    import psutil

    folder = project(tmp_path)
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            for _ in range(3):
                run = await at.prompt(None, "go", project=folder, model=model)
                await run.ended()
            kept = [one for one in psutil.Process().net_connections("tcp") if one.raddr and one.raddr[1] == server.port]
            assert [one for one in kept if one.status == psutil.CONN_ESTABLISHED] == []


async def test_f377_the_data_folder_holds_no_files_of_the_project_but_before_images_and_what_tools_put_out(tmp_path: Path) -> None:
    folder = project(tmp_path)
    secret = "only in the project " * 8000
    (folder / "untouched.txt").write_text(secret)
    (folder / "changed.txt").write_text("before " * 30_000)
    turns = [
        {"tools": [use("glob", pattern="**/*.txt"), use("list"), use("write", path="changed.txt", content="after " * 30_000)]},
        {"text": "ok"},
    ]
    model = write_script(folder, turns)
    async with house(tmp_path) as at:
        run = await at.prompt(None, "go", project=folder, model=model, rules=ALL)
        assert (await run.result())["outcome"] == "done"
        with at.store.view() as view:
            blobs = [at.store.blobs.get(row[0]) for row in view.q("SELECT hash FROM blobs")]
        known = {("before " * 30_000).encode(), ("after " * 30_000).encode()}
        assert known <= set(blobs) and not any(b"only in the project" in blob for blob in blobs)
        with at.store.view() as view:
            log = b"".join(bytes(row[0]) for row in view.q("SELECT data FROM events"))
        assert b"only in the project" not in log and b"before before" not in log
    names = {path.name for path in (tmp_path / "data").rglob("*") if path.is_file()}
    assert "untouched.txt" not in names and "changed.txt" not in names


async def test_i11_the_key_is_in_no_event_no_blob_no_file_and_in_no_tools_environment(tmp_path: Path) -> None:
    folder = project(tmp_path)
    with serving("openai") as server:
        async with house(tmp_path, environ={"PATH": os.environ["PATH"], "MY_TOKEN": f"Bearer {KEY}", "OPENAI_API_KEY": KEY}) as at:
            model = await provide(at, server)
            server.say(answer(call("bash", {"command": "env"})), answer(text("ok")))
            run = await at.prompt(None, "go", project=folder, model=model, rules=ALL)
            assert (await run.result())["outcome"] == "done"
            sent = str(server.asked[-1])
        assert KEY not in sent and "PATH=" in sent
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path
