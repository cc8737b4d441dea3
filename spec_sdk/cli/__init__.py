"""The command line's own parts: overrides as people type them, errors in one line, help, sweeps."""
