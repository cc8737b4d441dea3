"""Options: how they are declared and composed, and the YAML and the reference that are written from them."""
