"""Pretraining: raw text in, a biLM out.

``prepare.py``, ``train.py``, ``scores.py`` and ``preset.py`` are what users call; below them stand
the data (``data/``), the model (``model/``), the run (``run/``) and its results (``results/``).
"""
