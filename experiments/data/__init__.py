"""Where sentences come from and how they become batches."""
