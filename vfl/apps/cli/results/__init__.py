"""Commands that apply, measure, check and show finished runs."""
