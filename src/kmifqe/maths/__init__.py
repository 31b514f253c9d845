"""Pure functions of arrays: the paper's equations, and nothing of ours is imported here."""
