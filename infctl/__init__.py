"""infctl: cluster manager and ops toolkit for fleets of SGLang inference workers."""

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """`__version__` is looked up only when asked for: metadata costs 20 ms that a TAB press should not pay."""
    if name == "__version__":
        from importlib.metadata import version

        return version("infctl")
    raise AttributeError(name)
