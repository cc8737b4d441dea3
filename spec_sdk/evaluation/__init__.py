"""Benchmarks of the LM Evaluation Harness (Gao et al. 2024), answered and scored by a pipeline."""
