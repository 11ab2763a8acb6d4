"""The command line: a door to the house. `table.py` names the commands; the module of a command is imported when it runs."""
