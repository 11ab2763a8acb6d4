"""Doors: each maps one outside protocol onto the calls of `stead.app`, and knows nothing of the other doors."""
