"""Transactional commands: a shell command runs on an overlay of the project, whose upper layer is then exactly what it changed.

`support` says whether that can be done here, `layer` makes the overlay and removes it, `effect` reads the upper layer, `facts` and
`placing` make it the project's, `transaction` is all of it around one call. Linux alone has it (docs/decisions/0022).
"""
