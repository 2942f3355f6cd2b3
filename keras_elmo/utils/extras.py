"""Import the backend of Keras and optional packages, which the extras of keras-elmo install."""

import importlib
from typing import Any


def install_hint(extra: str) -> str:
    """Return how to install an extra. The package is not on PyPI, so its folder is needed."""
    return f'Install it in the folder of keras-elmo: pip install -e ".[{extra}]"'


def import_extra(module: str, owner: str, package: str, extra: str) -> Any:
    """Import and return a module, or say how to install it.

    Args:
        module: str. Name of the module.
        owner: str. Name of the feature that needs the module, for the error.
        package: str. Name of the package, for the error.
        extra: str. The extra of keras-elmo that installs it.

    Raises:
        ImportError: If the module is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{owner} needs {package}. Received: no module {module}. {install_hint(extra)}"
        ) from error


def import_keras() -> None:
    """Import Keras and its backend, or say how to install the backend.

    Raises:
        ImportError: If the package of the backend is missing.
    """
    try:
        importlib.import_module("keras")
    except ModuleNotFoundError as error:
        backend = (error.name or "").partition(".")[0]
        if backend not in ("tensorflow", "jax", "torch"):
            raise
        raise ImportError(
            f"Keras needs its backend. Received: no module {backend}. {install_hint(backend)}, or "
            "set KERAS_BACKEND to a backend that is installed"
        ) from None
