"""Time, memory and error of attention, measured side by side with those of others."""
