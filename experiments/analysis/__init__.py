"""What a run and its model look like."""
