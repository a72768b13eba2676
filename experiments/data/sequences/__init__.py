"""Where pairs of sequences come from: one source a file."""
