"""Asking a provider which models it has, and what each can do as far as it says."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from stead.agent.models.address import is_loopback
from stead.agent.models.anthropic import VERSION
from stead.agent.models.base import ProviderError
from stead.agent.models.errors import refused
from stead.agent.models.http import CONNECT, failed, new_client
from stead.agent.models.prices import context_window

_WAIT = 20.0  # seconds for one answer
_DETAILS = 200  # local models whose details are asked for, one small request each


async def fetch(kind: str, url: str, key: str | None) -> list[dict[str, Any]]:
    """The models of the provider at `url` (in the kind's own form)."""
    async with new_client(url, idle=_WAIT) as client:
        ask = _Asker(client, url, key)
        if kind == "anthropic":
            rows = await _anthropic(ask)
        elif kind == "gemini":
            rows = await _gemini(ask)
        elif kind == "ollama":
            rows = await _ollama(ask)
        else:
            rows = await _chat(ask)
    for row in rows:
        if row["context"] is None:
            row["context"] = context_window(kind, row["id"], url=url)
        if kind == "ollama" and is_loopback(url) and "cloud" not in row["id"]:  # it runs on this machine
            row["free"] = True
    return sorted(rows, key=lambda row: str(row["id"]))


async def names(url: str, timeout: float) -> list[str]:
    """Ids of the models at an OpenAI-compatible `url`; raises `TimeoutError` after `timeout` seconds."""
    async with asyncio.timeout(timeout), new_client(url, idle=timeout) as client:
        return [row["id"] for row in await _chat(_Asker(client, url, None))]


class _Asker:
    """JSON requests to one provider, with its errors as `ProviderError`."""

    def __init__(self, client: httpx2.AsyncClient, url: str, key: str | None) -> None:
        self.client, self.url, self.key = client, url, key

    async def json(self, path: str, headers: dict[str, str] | None = None, body: Any = None) -> Any:
        url = self.url + path
        try:
            timeout = httpx2.Timeout(_WAIT, connect=CONNECT)
            if body is None:
                response = await self.client.get(url, headers=headers, timeout=timeout)
            else:
                response = await self.client.post(url, headers=headers, json=body, timeout=timeout)
        except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
            problem = failed(error, url, self.key)
            if problem.code == "stream_cut":  # nothing was being streamed: the server just did not answer
                problem = ProviderError("provider_unreachable", problem.message, retryable=True)
            raise problem from None
        if response.status_code >= 300:
            problem = refused(max(response.status_code, 400), response.content, response.headers, key=self.key)
            if problem.code == "model_unknown":  # no model was named: it is the address that is not known there
                hint = "Check the provider's URL: `stead provider add NAME --url URL` changes it."
                problem = ProviderError("provider_error", f"There is no list of models at {url}.", status=404, hint=hint)
            raise problem
        try:
            return response.json()
        except ValueError:
            raise ProviderError(
                "provider_error", "The provider's list of models is not JSON.", hint="Check the provider's URL."
            ) from None

    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}


def _row(id: Any, **known: Any) -> dict[str, Any]:
    return {"id": str(id), "context": None, "tools": None, "reasoning": None, "free": None, "size": None, **known}


def _dicts(value: Any, name: str) -> list[dict[str, Any]]:
    rows = value.get(name) if isinstance(value, dict) else value
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


async def _chat(ask: _Asker) -> list[dict[str, Any]]:
    rows = []
    for model in _dicts(await ask.json("/models", ask.bearer()), "data"):
        if "id" not in model:
            continue
        meta = model.get("meta") or {}  # llama.cpp
        able = model.get("supported_parameters")  # OpenRouter
        pricing = model.get("pricing")
        rows.append(
            _row(
                model["id"],
                context=_number(model.get("context_length") or model.get("max_model_len") or meta.get("n_ctx_train")),
                tools="tools" in able if isinstance(able, list) else None,
                reasoning="reasoning" in able if isinstance(able, list) else None,
                free=_is_free(pricing) if isinstance(pricing, dict) else None,
                size=_number(meta.get("size")),
            )
        )
    return rows


async def _anthropic(ask: _Asker) -> list[dict[str, Any]]:
    headers = {"anthropic-version": VERSION, **({"x-api-key": ask.key} if ask.key else {})}
    rows, after = [], ""
    for _ in range(20):
        page = await ask.json(f"/v1/models?limit=1000{after}", headers)
        models = [model for model in _dicts(page, "data") if "id" in model]
        # Every model of Anthropic's takes tools.
        rows += [_row(model["id"], context=_number(model.get("max_input_tokens")), tools=True) for model in models]
        if not page.get("has_more") or not models:
            break
        after = f"&after_id={models[-1]['id']}"
    return rows


async def _gemini(ask: _Asker) -> list[dict[str, Any]]:
    headers = {"x-goog-api-key": ask.key} if ask.key else {}
    rows, token = [], ""
    for _ in range(20):
        page = await ask.json(f"/v1beta/models?pageSize=1000{token}", headers)
        for model in _dicts(page, "models"):
            methods = model.get("supportedGenerationMethods")
            if isinstance(methods, list) and "generateContent" not in methods:
                continue
            thinks = model.get("thinking")
            rows.append(
                _row(
                    str(model.get("name", "")).removeprefix("models/"),
                    context=_number(model.get("inputTokenLimit")),
                    reasoning=thinks if isinstance(thinks, bool) else None,
                )
            )
        if not page.get("nextPageToken"):
            break
        token = f"&pageToken={page['nextPageToken']}"
    return rows


async def _ollama(ask: _Asker) -> list[dict[str, Any]]:
    """Ollama's own interface says more than the compatible one; a server without it is asked the compatible way."""
    own = _Asker(ask.client, ask.url.rsplit("/v1", 1)[0], ask.key)
    try:
        models = _dicts(await own.json("/api/tags", own.bearer()), "models")
    except ProviderError as error:
        if error.status not in (400, 404, 405):
            raise
        return await _chat(ask)
    gate = asyncio.Semaphore(4)

    async def details(model: dict[str, Any]) -> dict[str, Any]:
        name = model.get("model") or model.get("name")
        row = _row(name, size=_number(model.get("size")))
        async with gate:
            try:
                shown = await own.json("/api/show", own.bearer(), {"model": name})
            except ProviderError:
                return row
        able = shown.get("capabilities")
        if isinstance(able, list):
            row |= {"tools": "tools" in able, "reasoning": "thinking" in able}
        for field, value in (shown.get("model_info") or {}).items():
            if field.endswith(".context_length"):
                row["context"] = _number(value)
        return row

    rows = await asyncio.gather(*(details(model) for model in models[:_DETAILS]))
    return [*rows, *(_row(model.get("model") or model.get("name"), size=_number(model.get("size"))) for model in models[_DETAILS:])]


def _is_free(pricing: dict[str, Any]) -> bool | None:
    try:
        return all(float(pricing[name]) == 0 for name in ("prompt", "completion"))
    except (KeyError, TypeError, ValueError):
        return None


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 else None
