"""Draft models that attend to the target's own K and V (Gemma 4's assistants)."""
