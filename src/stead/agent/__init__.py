"""Runs one prompt: context, model stream, gate, tools, and what is stored of each."""
