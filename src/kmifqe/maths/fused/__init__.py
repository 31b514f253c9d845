"""GPU kernels: one program where XLA would launch many."""
