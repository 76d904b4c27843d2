"""Physical units of arguments, where they are pint quantities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ._arguments import has_units

Quantity = Any


def _magnitude(value: Any) -> Any:
    return value.magnitude if has_units(value) else value


@dataclass(frozen=True)
class Units:
    """The unit of x * w, with its registry; both None where no argument has one."""

    registry: Any = None
    unit: Any = None

    @staticmethod
    def of(x: Any, w: Any, bias: Any) -> Units:
        """From the arguments of a product."""
        carrier = next((value for value in (x, w, bias) if has_units(value)), None)
        if carrier is None:
            return Units()
        registry = carrier._REGISTRY
        unit = registry.dimensionless
        for name, value in (("x", x), ("w_data", w)):
            if has_units(value) and registry.Quantity(0.0, value.units).to_base_units().magnitude != 0:
                raise ValueError(
                    f"[lacewing.etp.sparse_matmul] {name} has unit {value.units}, whose zero is not zero: it has no "
                    "product"
                )
            unit = unit * (value.units if has_units(value) else registry.dimensionless)
        return Units(registry, unit)

    def magnitudes(self, x: Any, w: Any, bias: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        """Plain tensors; the bias in the unit of the product."""
        if bias is None or self.unit is None:
            return _magnitude(x), _magnitude(w), bias
        given = bias.units if has_units(bias) else self.registry.dimensionless
        if not given.is_compatible_with(self.unit):
            raise ValueError(
                f"[lacewing.etp.sparse_matmul] bias has unit {given}, which cannot be converted to {self.unit}, the "
                "unit of x times w_data"
            )
        # A unit like degree Celsius has an offset besides its factor.
        offset, one, two = (self.registry.Quantity(float(k), given).to(self.unit).magnitude for k in range(3))
        factor = one - offset if offset else one
        if abs(two - offset - 2 * factor) > 1e-9 * abs(factor):
            raise ValueError(f"[lacewing.etp.sparse_matmul] bias has unit {given}, which is not a linear one")
        converted = _magnitude(bias) * factor
        return _magnitude(x), _magnitude(w), converted + offset if offset else converted

    def attach(self, y: Tensor) -> Any:
        """The result with its unit, or plain where that is none."""
        if self.unit is None:
            return y
        if self.unit.is_compatible_with(self.registry.dimensionless):
            return y * self.registry.Quantity(1.0, self.unit).to("").magnitude
        return self.registry.Quantity(y, self.unit)
