"""Tasks: what is learned, one file each."""
