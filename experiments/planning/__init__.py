"""Memory, FLOPs and communication of a training step on each device of a mesh, by arithmetic."""
