"""stead: a local-first workbench for coding agents on a durable data layer.

Importing this package costs nothing but its own few lines: the public names are loaded when they are first used.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers know the name; the module `typing` alone would double the time of `stead --version`

if TYPE_CHECKING:
    from stead.app import Stead
    from stead.store import Store, open_store

__all__ = ["Stead", "Store", "__version__", "open_store"]


def __getattr__(name: str) -> object:
    """Load a public name on first use (PEP 562), so that `import stead` stays as cheap as bare Python."""
    if name == "Stead":
        from stead.app import Stead

        return Stead
    if name in ("Store", "open_store"):
        from stead import store

        return getattr(store, name)
    raise AttributeError(f"module 'stead' has no attribute {name!r}")
