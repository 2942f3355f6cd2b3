"""A run: its settings, folder, optimizer, checkpoint and devices."""
