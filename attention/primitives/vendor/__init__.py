"""Attention of other libraries behind the contract of `attend`; imported on first use."""
