"""Starting runs on clusters."""
