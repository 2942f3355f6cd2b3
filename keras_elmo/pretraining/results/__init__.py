"""What a run leaves: a preset with a model card."""
