"""Native kernels of the CPU backend: C++ in ``source/``, compiled on the machine that runs it."""
