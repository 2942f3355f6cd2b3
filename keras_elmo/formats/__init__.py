"""The formats in which files hold a biLM: one module for each, and the weight mapping."""
