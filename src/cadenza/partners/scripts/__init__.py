"""Programs that another environment's Python runs; they import nothing of this package."""
