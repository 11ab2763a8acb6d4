"""The words everything else is written in: ids, clock, errors, JSON, text, parts, events. No I/O."""
