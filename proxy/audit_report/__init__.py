"""`toktier audit`: what the structured log says about requests, checks and mismatches."""
