"""The config of a run: options, and how they are composed of YAML and overrides."""
