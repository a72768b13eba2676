"""How well a model does, as numbers that can be compared."""
