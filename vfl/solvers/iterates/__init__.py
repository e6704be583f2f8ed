"""Functions of iterates that cost no budget: averages, stopping, extrapolation, and least squares on released sums."""
