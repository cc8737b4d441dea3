"""Feature-level draft heads: modules that draft from a target's hidden states, and the files they are published in."""
