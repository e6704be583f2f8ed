"""Parts of block coordinate descent (SkGD and CD): options, draws and steps of blocks, shares of the budget, lost parties."""
