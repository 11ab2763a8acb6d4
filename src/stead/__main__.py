"""The program `stead`. `--version` is answered before anything else is imported; the rest begins in `interfaces/cli/entry.py`."""

import sys


def main() -> int:
    """Run the command line and give its exit code."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from stead import __version__

        try:
            print(f"stead {__version__}", flush=True)
            return 0
        except OSError:  # told as any command tells it
            pass
    try:
        from stead.interfaces.cli.entry import run
    except KeyboardInterrupt:  # while the modules were loading: nothing has begun
        return 130
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
