"""What a call cost and how much a model can read, from the data that is bundled with genai-prices: never from the network."""

from __future__ import annotations

from contextlib import suppress
from decimal import ROUND_HALF_EVEN, Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

from stead.agent.models.address import is_loopback
from stead.core.clock import SystemClock
from stead.core.parts import Tokens

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, Provider

_PROVIDERS = {"openai": "openai", "anthropic": "anthropic", "gemini": "google", "openrouter": "openrouter"}
_NINE = Decimal("0.000000001")


def price(provider_kind: str, model: str, tokens: Tokens, *, url: str | None = None, at: int | None = None) -> float | None:
    """Dollars for a call with these tokens, rounded to 9 decimals; None where the price is unknown. `url` is the provider's
    address: a known compatible house has its own prices, and Ollama on this machine costs nothing. `at` is
    milliseconds since 1970 (default: now), for prices that have changed."""
    if provider_kind == "ollama":
        return 0.0 if url is None or is_loopback(url) else None
    found = _find(provider_kind, model, url)
    if found is None:
        return None
    from datetime import UTC, datetime

    from genai_prices import Usage

    provider, info = found
    usage = Usage(
        input_tokens=tokens["input"] + tokens["cache_read"] + tokens["cache_write"],
        cache_read_tokens=tokens["cache_read"],
        cache_write_tokens=tokens["cache_write"],
        output_tokens=tokens["output"] + tokens["reasoning"],
    )
    when = datetime.fromtimestamp((SystemClock().now() if at is None else at) / 1000, UTC)
    try:
        total = info.calc_price(usage, provider, genai_request_timestamp=when).total_price
    except (ValueError, LookupError, ArithmeticError):
        return None
    return float(total.quantize(_NINE, ROUND_HALF_EVEN))


def context_window(kind: str, model: str, *, url: str | None = None) -> int | None:
    """Tokens that the model can read, None where unknown."""
    found = _find(kind, model, url)
    return found[1].context_window if found else None


def _find(kind: str, model: str, url: str | None) -> tuple[Provider, ModelInfo] | None:
    provider = _PROVIDERS.get(kind)
    if provider is None or not model:
        return None
    data, name = _snapshot(), model.removeprefix("models/")
    try:
        if kind == "openai" and url:
            # The kind only tells the format here: a known house has its own list. A proxy that nobody knows is taken to pass
            # on OpenAI's models under their names; other names are unknown anyway.
            # Open weights run anywhere, and here most likely at home.
            with suppress(LookupError):
                house = data.find_provider(None, None, url)
                return data.find_provider_model(name, house, None, None) if house.find_model(name.lower()) else None
            provider = None if "gpt-oss" in name else provider
        return data.find_provider_model(name, None, provider, None) if provider else None
    except LookupError:
        return None


@lru_cache(maxsize=1)
def _snapshot() -> DataSnapshot:
    """The bundled data itself: whatever snapshot another part of the program has set counts for nothing here."""
    from genai_prices.data import providers
    from genai_prices.data_snapshot import DataSnapshot

    return DataSnapshot(providers=providers, from_auto_update=False)
