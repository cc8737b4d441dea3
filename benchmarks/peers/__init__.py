"""Other programs' decoders beside ours, each in a process of its own (``python -m benchmarks.against_peers``)."""
