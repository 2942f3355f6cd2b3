"""Names for types."""

from typing import Any, TypeAlias

Tensor: TypeAlias = Any
