"""The nouns of the house in their order: what its store is opened with."""

from __future__ import annotations

from stead.domain import (
    asks,
    attachments,
    changes,
    owners,
    partials,
    people,
    permissions,
    projects,
    providers,
    queue,
    rewinds,
    runs,
    sessions,
    settings,
    todos,
    usage,
)

FEATURES = (
    people.FEATURE,
    projects.FEATURE,
    providers.FEATURE,
    settings.FEATURE,
    owners.FEATURE,
    sessions.FEATURE,
    runs.FEATURE,
    queue.FEATURE,
    partials.FEATURE,
    asks.FEATURE,
    changes.FEATURE,
    rewinds.FEATURE,
    permissions.FEATURE,
    todos.FEATURE,
    attachments.FEATURE,
    usage.FEATURE,
)
