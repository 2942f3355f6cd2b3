"""The containers that hold biLMs in the world: a module for each, and what they are read with."""
