"""Records to tables and plots."""
