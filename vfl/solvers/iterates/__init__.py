"""Functions of iterates, which cost no budget: averages, stopping, extrapolation, and least squares on released sums."""
