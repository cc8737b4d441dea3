"""The parts of benchmarks/fuzz.py: sound material, how it is broken, and one case run in a process of its own."""
