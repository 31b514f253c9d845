"""GPU kernels, one program where XLA would launch many, and whether the default device can run them."""

from __future__ import annotations

import jax


def use_kernels(precision: str) -> bool:
    """Return whether GPU kernels in mixed precision are asked for by `precision` and can run here."""
    return precision == "mixed" and has_tensor_cores()


def has_tensor_cores() -> bool:
    """Return whether the default device is an NVIDIA GPU of the Ampere generation or later."""
    if jax.default_backend() != "gpu":
        return False
    capability = str(getattr(jax.devices()[0], "compute_capability", "0"))
    return capability.replace(".", "", 1).isdigit() and float(capability) >= 8.0
