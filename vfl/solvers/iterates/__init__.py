"""Work on iterates that costs no budget: averages, stopping, extrapolation, and least squares on released sums."""
