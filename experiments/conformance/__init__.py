"""The contract held against every implementation of ours, and against those of others."""
