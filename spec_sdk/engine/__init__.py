"""The engine: requests, the step that serves them together, and what drives it."""
