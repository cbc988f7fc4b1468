"""Numerical solvers of the batch metric learners: pure functions, no estimators."""
