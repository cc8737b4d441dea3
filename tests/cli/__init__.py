"""Tests of the command line, the registry, the tasks and the metrics."""
