"""Options: how they are declared, and the YAML and the reference that are written from their declarations."""
