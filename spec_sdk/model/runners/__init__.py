"""Block runners: how the blocks of one forward pass are executed."""
