"""The laboratory: everything that needs data, a clock or a disk."""
