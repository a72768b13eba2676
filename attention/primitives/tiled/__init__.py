"""Attention in tiles: exact, and linear in memory."""
