"""How far a value can be believed: intervals, diagnostics, a verdict."""
