"""Weight files of other projects: tables from their tensors to ours, and readers."""
