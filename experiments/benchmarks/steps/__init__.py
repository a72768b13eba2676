"""Profile of a training step and of beam search: shares of time by source file."""
