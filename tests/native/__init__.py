"""The native kernels of the CPU backend."""
