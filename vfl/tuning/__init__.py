"""Private choice among candidate jobs under one ε: `tune`, its candidates, trials and secret draw."""
