"""A few ratios in a few minutes, beside those that were kept (``make bench-quick``)."""
