"""Helpers for files, locks and the CPU, which know nothing of a biLM."""
