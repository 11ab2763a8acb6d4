"""Bad input and bad servers: one clear error with a stable code, and nothing lost."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from stead.agent.gate import parse
from stead.app import Stead
from stead.core.errors import SteadError
from stead.domain import providers
from stead.store import faults
from tests.agent.house import calls, events, house, kinds, parts, project, provide, script, status, tools, use, write_script
from tests.agent.servers import Answer, answer, call, serving, text

EDIT = [parse("edit", "allow", "flag")]


async def refused(at: Stead, **given: Any) -> str:
    """The code with which a prompt is refused; checks that nothing was stored of it."""
    before = events(at)
    with pytest.raises(SteadError) as error:
        await at.prompt(given.pop("session", None), "go", **given)
    assert events(at) == before and str(error.value)
    return error.value.code


async def test_what_cannot_begin_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "bad.yaml").write_text("turns:\n- text: x\n  wrong: 1\n")
    async with house(tmp_path) as at:
        await at.store.commit(lambda tx: providers.save(tx, "keyless", kind="openai", url="http://127.0.0.1:1/v1"))
        assert await refused(at, project=tmp_path / "nowhere", model="script/x.yaml") == "project_missing"
        assert await refused(at, project=folder, model="script/nowhere.yaml") == "not_found"
        assert await refused(at, project=folder, model="script/bad.yaml") == "script_invalid"
        assert await refused(at, project=folder, model="openai/gpt") == "no_key"
        assert await refused(at, project=folder, model="keyless/gpt") == "no_key"
        assert await refused(at, project=folder, model="nobody/gpt") == "not_found"
        assert await refused(at, project=folder, model="no-slash") == "usage"
        assert await refused(at, project=folder) == "usage"  # there is a provider, but no model
        assert await refused(at, session="0123456789abcdef") == "not_found"
        assert await refused(at) == "usage"
        assert await refused(at, project=folder, model="script/bad.yaml", on_ask="maybe") == "usage"


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
@pytest.mark.parametrize(
    ("answered", "code"), [(401, "bad_key"), (404, "model_unknown"), (400, "provider_error"), (413, "context_full")]
)
async def test_a_refusal_ends_the_run_at_once_with_its_code(answered: int, code: str, kind: str, tmp_path: Path) -> None:
    folder = project(tmp_path)
    with serving(kind) as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(Answer(status=answered))
            run = await at.prompt(None, "go", project=folder, model=model)
            result = await run.result()
            assert (result["outcome"], result["error"]["code"]) == ("error", code) and len(server.asked) == 1
            assert status(at, run.session) == "error" and result["cost"] == 0 and kinds(at, run) == []
            assert [(row["purpose"], row["input"]) for row in calls(at, run.id)] == [("failed", 0)]
            assert (await (await at.prompt(run.session, "again")).result())["outcome"] == "done"
        assert server.refusals == []


async def test_a_server_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stead.agent.models import retry

    monkeypatch.setattr(retry, "delay", lambda error, attempt, **more: 0.0 if attempt < 3 else None)
    folder = project(tmp_path)
    with serving("openai") as server:
        pass
    async with house(tmp_path) as at:
        model = await provide(at, server)
        run = await at.prompt(None, "go", project=folder, model=model)
        result = await run.result()
        assert result["error"]["code"] == "provider_unreachable" and str(server.port) in result["error"]["message"]
        assert [row["purpose"] for row in calls(at, run.id)] == ["failed"] * 3


async def test_a_fault_in_a_model_ends_its_run_and_nothing_else(tmp_path: Path) -> None:
    folder = project(tmp_path)

    class Broken:
        family = "fake"

        async def stream(self, request: Any) -> Any:
            raise KeyError("x" * 100_000)
            yield

        async def aclose(self) -> None:
            pass

    async with house(tmp_path, models={"fake": Broken()}) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        result = await run.result()
        assert result["outcome"] == "error" and result["error"]["code"] == "internal"
        at.models = script([{"text": "ok"}])
        assert (await (await at.prompt(run.session, "again")).result())["outcome"] == "done"


async def test_who_looks_on_cannot_end_a_run(tmp_path: Path) -> None:
    folder = project(tmp_path)

    def broken(_: Any) -> None:
        raise RuntimeError("a screen that fell over")

    async with house(tmp_path, models=script([{"text": "words"}])) as at:
        at.on_frame(broken)
        at.store.listen(broken)
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        assert (await run.result())["result"] == "words"


@pytest.mark.parametrize("at_commit", [2, 3, 4, 5, 6, 7, 8])
async def test_a_disk_that_is_full_for_a_moment_ends_the_run_and_loses_nothing_that_was_told(
    at_commit: int, tmp_path: Path
) -> None:
    folder = project(tmp_path)
    turns = [{"text": "words", "tools": [use("write", path="new.txt", content="x\n")]}, {"text": "end"}]
    async with house(tmp_path, models=script(turns)) as at:

        def full(name: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", name)

        faults.arm("writer.before_commit", full, count=at_commit)
        try:
            run = await at.prompt(None, "go", project=folder, model="fake/m", rules=EDIT)
            result = await run.result()
        finally:
            faults.disarm()
        assert result["outcome"] in ("error", "done") and len(events(at, run.session, "run.ended")) == 1
        assert all(tool["status"] in ("done", "error") for tool in tools(at, run))
        on_disk = (folder / "new.txt").exists()
        assert not on_disk or events(at, run.session, "change.captured")
        at.models = script([{"text": "ok"}])
        assert (await (await at.prompt(run.session, "again")).result())["outcome"] == "done"


async def test_a_session_whose_provider_was_removed_goes_on_with_another(tmp_path: Path) -> None:
    folder = project(tmp_path)
    with serving("anthropic") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(answer(call("list")), answer(text("ok")))
            run = await at.prompt(None, "go", project=folder, model=model)
            await run.ended()
            await at.store.commit(lambda tx: providers.remove(tx, "anthropic"))
            assert await refused(at, session=run.session) == "no_key"
            again = await at.prompt(run.session, "go", model=write_script(folder, [{"text": "here"}]))
            assert (await again.result())["result"] == "here" and parts(at, again)[0]["text"] == "here"
