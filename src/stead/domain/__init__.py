"""One module a noun: its events, tables, projector, commands, queries and restart rule stand on one page."""
