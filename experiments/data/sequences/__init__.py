"""Sources of texts and pairs, one file for each."""
