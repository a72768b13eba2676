"""Pure functions of arrays: no parameters, no randomness without a key, no framework."""
