"""Sources of examples, tokenizers, and batches."""
