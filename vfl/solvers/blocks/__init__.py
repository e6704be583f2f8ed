"""Block coordinate descent (SkGD and CD): options, order and steps of blocks, division of the budget, lost parties."""
