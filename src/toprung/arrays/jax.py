"""Adapter for JAX's arrays, by DLPack; products run eagerly, not inside of what JAX traces."""

from __future__ import annotations

from typing import Any

from toprung.arrays.base import Adapter, Operand, refuse_dtype
from toprung.arrays.dlpack import DLPack
from toprung.errors import BadArray

PACKAGES = ("jax", "jaxlib")
"""Packages that define the types of JAX's arrays and tracers."""

TYPES = ("Array", "ArrayImpl", "Tracer")
"""Names of those types."""


class JAX(DLPack):
    """Adapter of ``jax.Array``. A result is a new one: JAX's arrays cannot be written, so that none can be ``out``."""

    name = "JAX"
    order = 0

    def knows(self, kind: type) -> bool:
        return any(c.__name__ in TYPES and c.__module__.partition(".")[0] in PACKAGES for c in kind.__mro__)

    def half(self, thing: Any) -> str:
        # the type of halves; a tracer is refused as any is
        return "" if any(c.__name__ == "Tracer" for c in type(thing).__mro__) else Adapter.half(self, thing)

    def widened(self, thing: Any) -> Any:
        return thing if thing.is_deleted() else thing.astype("float32")

    def operand(self, thing: Any, name: str) -> Operand:
        # the array; raise BadArray for a tracer, what is deleted or spread over devices, and for another type or place
        if any(c.__name__ == "Tracer" for c in type(thing).__mro__):
            raise BadArray(
                f"{name} is traced by JAX (jit, grad, vmap), and toprung multiplies arrays: call it outside of the traced "
                "function, or through jax.pure_callback"
            )
        if not self.knows(type(thing)):  # what ``empty`` made
            return super().operand(thing, name)
        if str(thing.dtype) != "float32":
            raise refuse_dtype(name, thing.dtype, f"{name}.astype(jax.numpy.float32)")
        if thing.is_deleted():
            raise BadArray(
                f"{name} has been deleted, by delete() or because its memory was donated (donate_argnums of jit): pass what the "
                "jitted function returned, or do not donate this argument"
            )
        spread = len(thing.sharding.device_set)
        if spread > 1:
            raise BadArray(
                f"{name} is spread over {spread} devices, and toprung multiplies on one: move it to one with "
                "jax.device_put(x, jax.devices()[0]), or multiply each of its addressable_shards"
            )
        if name == "out":
            raise BadArray("JAX's arrays cannot be written, so that none can be out: leave it away, and take what is returned")
        return super().operand(thing, name)


adapter = JAX()
