"""Private choice among candidate jobs under one ε: `tune`, its candidates, its sealed trials and its secret draw."""
